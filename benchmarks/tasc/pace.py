"""How soon and how well a ratio follows the network: python benchmarks/tasc/pace.py OUT.md [NAME] [TARGET_MS] [STEPS].

Two emulated hosts whose links go from 1000 to 100 to 10 to 100 Mbit/s while they train.
"""

import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from pliant.network import emulate_cluster
from pliant.spec import Host, Topology

RATES_MBIT = (1000, 100, 10, 100)
WORKER = Path(__file__).with_name("pace_worker.py")
WINDOW, WITHIN = 8, 0.1


def hosts(mbit: int) -> Topology:
    rate = mbit * 125e3
    return Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(2)))


def exposed(phase: dict) -> list[float]:
    """What the rank that waits least has waited, as medians of the last 8 steps."""
    least = [min(both) for both in zip(*phase["exposed_s"], strict=True)]
    return [statistics.median(least[k - WINDOW : k]) for k in range(WINDOW, len(least) + 1)]


def held_after(medians: list[float], target_s: float) -> int | None:
    """The first step after which the median of 8 is within 10 %, and stays so for the next 8."""
    good = [abs(s / target_s - 1) <= WITHIN for s in medians]
    return next((k + WINDOW for k in range(len(good) - WINDOW) if all(good[k : k + WINDOW])), None)


def measured(algorithm: str, target_s: float, num_steps: int) -> list[dict]:
    phases: list[dict] = [{"exposed_s": [], "ratios": [], "sent_bytes": [], "step_s": []} for _ in RATES_MBIT]
    with tempfile.TemporaryDirectory() as folder, emulate_cluster(hosts(RATES_MBIT[0])) as cluster:

        def take(rank: int, line: str) -> None:
            if not line.startswith("{"):
                print(f"[{rank}] {line}", flush=True)
                return
            said = json.loads(line)
            for name, values in phases[said["phase"]].items():
                values.append(said[name])
            if rank == 0 and said["phase"] + 1 < len(RATES_MBIT):
                cluster.reshape(hosts(RATES_MBIT[said["phase"] + 1]))
                Path(folder, f"go{said['phase'] + 1}").touch()

        argv = [sys.executable, str(WORKER), folder, str(target_s), str(num_steps), str(len(RATES_MBIT)), algorithm]
        results = cluster.run(argv, on_line=take, timeout_s=500)
    if any(result.exit_code for result in results):
        raise SystemExit("a rank has failed; see above.")
    return phases


def main(out: Path, algorithm: str = "tasc", target_ms: str = "40", steps: str = "120") -> None:
    target_s, num_steps, rows = float(target_ms) / 1e3, int(steps), []
    for rate, phase in zip(RATES_MBIT, measured(algorithm, target_s, num_steps), strict=True):
        medians = exposed(phase)
        half = medians[len(medians) // 2 :]
        late = [min(both) for both in zip(*phase["exposed_s"], strict=True)][num_steps // 2 :]
        within = sum(abs(s / target_s - 1) <= WITHIN for s in half) / len(half)
        ratio, sent = (statistics.median(phase[name][0][num_steps // 2 :]) for name in ("ratios", "sent_bytes"))
        rows.append(
            f"| {rate} | {target_ms} | {statistics.median(late) * 1e3:.1f} | {statistics.mean(late) * 1e3:.1f} "
            f"| {within:.0%} | {ratio:.4f} | {sent / 1e3:.0f} | {held_after(medians, target_s)} |"
        )
        print(rows[-1], flush=True)
    head = (
        f"`python benchmarks/tasc/pace.py {out.name} {algorithm} {target_ms} {steps}`, {datetime.date.today()}, "
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.0f} at the end; two hosts, "
        f"`dynamic({algorithm})` from 1 % on, one layer of 1200 x 1200, links changed between the phases; figures of "
        f"the second half of each phase; 'held after': from this step on medians of {WINDOW} stay within 10 %\n\n"
        "| link, Mbit/s | target, ms | exposed, median | mean | medians within 10 % | ratio | sent, kB a step "
        "| held after, steps |\n|---|---|---|---|---|---|---|---|\n"
    )
    out.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
