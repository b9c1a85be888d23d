"""One arm's training step, timed and counted; the same for tables of TorchRec and of Pliant."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from dlrm import DenseNet
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from pliant_bench.clicks.batch import ClickBatch, auc
from pliant_bench.harness.wire import interface_bytes


class Bags(Protocol):
    """Sharded tables, as an arm has them."""

    def input_of(self, batch: ClickBatch) -> Any:
        """Return the ids of a batch as this takes them."""
        ...

    def __call__(self, ids: Any, following: Any) -> list[Tensor]:
        """Return (batch, dim) for each table; `following` is the next batch's, or None."""
        ...

    def step(self) -> None:
        """Update rows, as far as backward has not."""
        ...


@dataclass(kw_only=True)
class Arm:
    """A way to hold the tables, with a dense part of its own."""

    name: str
    bags: Bags
    kind: str
    """Arms of one kind take the same form of input."""
    about: str
    num_tables: int
    dim: int
    lr: float
    period: int = 1
    """Steps after which what it sends repeats."""
    sent_bytes: Callable[[], int] | None = None
    """What our own recorder says this rank has sent so far for rows."""
    exact: bool = True
    """Whether it does the same arithmetic as the others, but for the order of sums."""
    net: DistributedDataParallel = field(init=False)
    made: int = 0
    """Steps that were made."""

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.net = DistributedDataParallel(DenseNet(self.num_tables, self.dim))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr)

    def step(self, batch: ClickBatch, ids: Any, following: Any) -> None:
        """Train on one batch."""
        logits = self.net(batch.dense, self.bags(ids, following))
        loss = binary_cross_entropy_with_logits(logits, batch.label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.bags.step()
        self.made += 1

    def run(self, batches: Sequence[ClickBatch], inputs: Sequence[Any], num_steps: int) -> None:
        """Train for so many steps, over and over the batches."""
        for k in range(num_steps):
            now, following = self.made % len(batches), (self.made + 1) % len(batches)
            self.step(batches[now], inputs[now], inputs[following] if k + 1 < num_steps else None)

    @torch.no_grad()
    def auc(self, batches: Sequence[ClickBatch]) -> float:
        """Return the area under the curve over all ranks' test batches. Collective."""
        found = [self.net(b.dense, self.bags(self.bags.input_of(b), None)) for b in batches]
        mine = torch.stack([torch.cat(found), torch.cat([b.label for b in batches])])  # (2, samples)
        everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, mine)
        scores, labels = torch.cat(everybody, dim=1)
        return auc(scores, labels)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What so many steps of an arm took."""

    steps: int
    step_s: float
    """Of the slowest rank."""
    link_bytes: float
    """That left the busiest host's interface in a step, headers and the dense part too."""
    links_bytes: float
    """The same, of all hosts together."""
    own_bytes: float
    """Our recorder's count of what the busiest rank sent for rows in a step; 0 where it does not see."""
    cpu_s: float
    """Of processor time in a step, summed over ranks."""


def timed(arm: Arm, batches: Sequence[ClickBatch], inputs: Sequence[Any], num_steps: int) -> Timed:
    """Train for so many steps and measure. Collective."""
    dist.barrier()
    own = arm.sent_bytes() if arm.sent_bytes else 0
    wire, cpu_s, start_s = interface_bytes(), time.process_time(), time.perf_counter()
    arm.run(batches, inputs, num_steps)
    took_s, used_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    dist.barrier()  # what is still in a queue has left by now
    sent = float(interface_bytes() - wire)
    own_sent = float(arm.sent_bytes() - own) if arm.sent_bytes else 0.0
    most = torch.tensor([took_s, sent, own_sent], dtype=torch.float64)
    total = torch.tensor([sent, used_s], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    step_s, busiest, own_most = (most / num_steps).tolist()
    links, cpu_all_s = (total / num_steps).tolist()
    return Timed(
        steps=num_steps, step_s=step_s, link_bytes=busiest, links_bytes=links, own_bytes=own_most, cpu_s=cpu_all_s
    )
