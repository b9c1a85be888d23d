"""Codec kernels on one core against memory bandwidth, side by side in one run.

    python benchmarks/codecs.py [--megabytes 100] [--rounds 9] [--codecs minmax8,sign] [--json FILE]

Every operation is timed once per round, rounds repeat, and the median is quoted with its spread (half of the distance
between the quartiles). Times are CPU times of the one thread, so that other programs disturb less; on a quiet machine
they equal the clock's. Two yardsticks are in the same rounds: reading the input once, and memcpy. "of read" compares
with the time to read the input; "of copy" compares bytes moved (reads and writes) per second with those of memcpy.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pliant.codecs import Codec, FusedFeedback, TopK, all_finite, codec_class, encode_feedback, tensor_hash
from pliant.spec.codecs import CODECS
from pliant.spec.files import write_atomically

# What issue 2 asks for: (codec, operation) -> (yardstick, least share of it).
TARGETS = {
    ("minmax8", "encode"): ("read", 0.70),
    ("minmax8", "decode_add"): ("copy", 0.80),
    ("sign", "decode_add"): ("copy", 0.80),
    ("sign", "encode_feedback"): ("copy", 0.70),
}


@dataclass
class Case:
    codec: str
    operation: str
    moved_bytes: int
    """Read and written, each counted once."""
    run: Callable[[], object]
    times_s: list[float]


def yardsticks(x: torch.Tensor, y: torch.Tensor) -> list[Case]:
    copy = lambda: ctypes.memmove(y.data_ptr(), x.data_ptr(), x.nbytes)  # noqa: E731
    return [
        Case("-", "read (torch.sum)", x.nbytes, x.sum, []),
        Case("-", "read (all_finite)", x.nbytes, lambda: all_finite(x), []),
        Case("-", "hash", x.nbytes, lambda: tensor_hash(x), []),
        Case("-", "memcpy", 2 * x.nbytes, copy, []),
    ]


def cases(name: str, codec: Codec, x: torch.Tensor, out: torch.Tensor, residual: torch.Tensor) -> list[Case]:
    payload = torch.empty(codec.nbytes(x.numel()), dtype=torch.uint8)
    codec.encode(x, payload, 0)
    full, coded = x.nbytes, payload.numel()
    fused = isinstance(codec, FusedFeedback)
    # A fused kernel reads x and residual and writes residual; the plain way does that, encodes, decodes and subtracts.
    feedback_bytes = 3 * full + coded + (0 if fused else 5 * full + coded)
    return [
        Case(name, "encode", full + coded, lambda: codec.encode(x, payload, 1), []),
        Case(name, "decode", full + coded, lambda: codec.decode(payload, out), []),
        Case(name, "decode_add", 2 * full + coded, lambda: codec.decode_add(payload, out), []),
        Case(
            name,
            "encode_feedback" if fused else "encode_feedback (plain)",
            feedback_bytes,
            lambda: encode_feedback(codec, x, residual, payload, 1),
            [],
        ),
    ]


def measure(todo: list[Case], rounds: int) -> None:
    for turn in range(rounds + 1):  # the first round touches the memory and is not counted
        for case in todo:
            start = time.thread_time()
            case.run()
            if turn:
                case.times_s.append(time.thread_time() - start)


def table(todo: list[Case], input_bytes: int) -> list[dict[str, object]]:
    median = {(c.codec, c.operation): statistics.median(c.times_s) for c in todo}
    read_s = min(median["-", "read (torch.sum)"], median["-", "read (all_finite)"])
    copied_bytes_per_s = 2 * input_bytes / median["-", "memcpy"]
    rows = []
    for c in todo:
        middle = median[c.codec, c.operation]
        low, _, high = statistics.quantiles(c.times_s, n=4)
        share = {"read": read_s / middle, "copy": c.moved_bytes / middle / copied_bytes_per_s}
        yardstick, least = TARGETS.get((c.codec, c.operation), (None, None))
        rows.append(
            {
                "codec": c.codec,
                "operation": c.operation,
                "median_s": middle,
                "spread_s": (high - low) / 2,
                "input_bytes_per_s": input_bytes / middle,
                "share_of_read": share["read"],
                "share_of_copy": share["copy"],
                "target": f"{least:.0%} of {yardstick}" if yardstick else None,
                "met": share[yardstick] >= least if yardstick else None,
            }
        )
    return rows


def show(rows: list[dict[str, object]]) -> None:
    print(f"{'codec':<16}{'operation':<26}{'ms':>9}{'±':>7}{'GB/s in':>9}{'of read':>9}{'of copy':>9}  target")
    for r in rows:
        met = "" if r["met"] is None else ("met" if r["met"] else "MISSED")
        print(
            f"{r['codec']:<16}{r['operation']:<26}{r['median_s'] * 1e3:>9.2f}{r['spread_s'] * 1e3:>7.2f}"
            f"{r['input_bytes_per_s'] / 1e9:>9.1f}{r['share_of_read']:>9.0%}{r['share_of_copy']:>9.0%}"
            f"  {r['target'] or ''} {met}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="size of the float32 input")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--codecs", default="", help="names, separated by commas; all if not given")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    unknown = sorted(set(filter(None, options.codecs.split(","))) - set(CODECS))
    if unknown:
        parser.error(f"there is no codec {unknown[0]!r}; there are {', '.join(CODECS)}.")
    if options.rounds < 2:
        parser.error(f"a spread needs two rounds, but --rounds is {options.rounds}.")

    torch.set_num_threads(1)
    numel = int(options.megabytes * 1e6) // 4
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(numel, generator=generator) for _ in range(2))
    out = torch.zeros(numel)
    chosen = {n: codec_class(n)() for n in CODECS if not options.codecs or n in options.codecs.split(",")}
    if "topk" in chosen:
        chosen["topk sampled"] = TopK(sampled=1)
    todo = yardsticks(x, out)
    for name, codec in chosen.items():
        todo += cases(name, codec, x, out, residual)
    measure(todo, options.rounds)
    rows = table(todo, x.nbytes)
    show(rows)
    if options.json:
        import json

        report = {"megabytes": options.megabytes, "rounds": options.rounds, "torch": torch.__version__, "rows": rows}
        write_atomically(options.json, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
