"""What is compared: peers, the Pliant arm that each corresponds to, and one run as data. No torch."""

import json
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = Path.home() / ".cache" / "pliant" / "peers"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A peer and the Pliant arm that does the same thing."""

    package: str
    """Its worker is package_worker.py, and its environment ENVIRONMENTS / package: but of torch, which runs in ours."""
    arm: str
    """What the worker is to do."""
    pliant: str
    """What pliant_worker.py is to do."""
    period: int
    """Steps from one exchange to the next; of gossip, until the graph repeats."""
    same: str
    """What both do."""
    lead: int = 0
    """Untimed steps beyond whole periods: half a period where exchanges are not tied to steps, to count all of each."""

    @property
    def python(self) -> Path:
        """The interpreter that has the package."""
        return Path(sys.executable) if self.package == "torch" else ENVIRONMENTS / self.package / "bin" / "python"

    @property
    def version(self) -> str:
        """The package and what it is pinned to; torch as it is here."""
        if self.package == "torch":
            return f"torch {version('torch')}"
        return (HERE / "requirements" / f"{self.package}.txt").read_text().split()[0].replace("==", " ")


PAIRS = {
    "torch-ddp": Pair(
        package="torch", arm="ddp", pliant="allreduce", period=1, same="gradients averaged each step, no hook"
    ),
    "torch-postlocal": Pair(
        package="torch",
        arm="ddp-postlocal",
        pliant="post_local_sgd",
        period=8,
        same="gradients averaged in the untimed steps, then weights every 8 steps (torch: after the first of 8)",
    ),
    "torch-powersgd": Pair(
        package="torch",
        arm="ddp-powersgd",
        pliant="powersgd",
        period=1,
        same="gradients averaged each step as products of rank 1 (torch: all in one bucket)",
    ),
    "torchft-localsgd": Pair(
        package="torchft", arm="localsgd", pliant="local_sgd", period=8, same="weights averaged every 8 steps"
    ),
    "torchft-diloco": Pair(
        package="torchft",
        arm="diloco",
        pliant="diloco",
        period=32,
        same="DiLoCo every 32 steps, one fragment, outer Nesterov SGD, lr 0.7, momentum 0.9",
    ),
    "torchft-ddp": Pair(
        package="torchft", arm="ddp", pliant="allreduce", period=1, same="gradients averaged each step"
    ),
    "decent-dp": Pair(
        package="decent_dp",
        arm="one-peer-exp",
        pliant="gossip",
        period=2,
        same="weights averaged with one partner a step, rank i xor 2^t, beside the next step",
    ),
    "hivemind": Pair(
        package="hivemind",
        arm="local",
        pliant="local_sgd",
        period=32,
        same="weights averaged every 32 steps of local updates (hivemind: when it estimates that all have done them)",
        lead=16,
    ),
    "horovod": Pair(
        package="horovod", arm="none", pliant="allreduce", period=1, same="gradients averaged each step, 32 bits"
    ),
    "horovod-fp16": Pair(
        package="horovod", arm="fp16", pliant="fp16", period=1, same="gradients averaged each step, 16 bits"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of one worker on every rank."""

    arm: str
    period: int
    model: str
    """cnn learns real images; the others take made-up batches, for step times."""
    seed: int
    warm_up_steps: int
    """Those that are trained, but not timed."""
    steps: int
    """Whole periods that are timed."""
    data: str
    """Folder of the images, for cnn."""
    batch: int = 64

    @property
    def lr(self) -> float:
        """That of `pliant bench`."""
        return 0.015 if self.model == "cnn" else 1e-3

    def lr_factor(self, step: int) -> float:
        """Return what the learning rate is multiplied with: a tenth of warm-up, then linear decay, as in the bench."""
        total = self.warm_up_steps + self.steps
        warm = max(total // 10, 1)
        return min((step + 1) / warm, max(total - step, 1) / max(total - warm, 1))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> "Job":
        return Job(**json.loads(path.read_text()))


def whole_periods(num_steps: int, period: int) -> int:
    """Return the least whole number of periods with at least so many steps, in steps."""
    return max(1, -(-num_steps // period)) * period
