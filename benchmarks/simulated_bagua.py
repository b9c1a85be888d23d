"""BAGUA's published figures, simulated; ``python benchmarks/simulated_bagua.py`` prints the table for the docs.

Figures: BaguaSys/tutorials, benchmark figures of 2021-08, read off by pixel (16 servers with 8 V100 each, 100 Gbit/s
TCP, rates and delays by tc). The time of computing is that of their asynchronous arm, which waits for nothing; so all
is compared as time over that of the asynchronous arm. Everything else is from data sheets, and nothing is fitted:

- a V100 reads and writes 900 GB/s, and a pass over float32 moves 4 to 8 bytes an element: 10^11 elements a second;
- NVLink between the GPUs of a server: 130 GB/s; 20 microseconds a message, 50 an exchange.

What stands for what: DDP and Horovod are NCCL's ring over all GPUs. Bagua's arms are hierarchical; "decentralized" was
run in its default mode, an all-reduce of weights beside the whole step; "low precision decentralized" is DCD on
a ring, which here travels beside the next step and there did not; "QAdam-1bit" is 1-bit Adam.
"""

from itertools import combinations
from types import MappingProxyType

import pliant as p
from pliant.algorithms.plans import plan_of
from pliant.simulator import KEYS, Overheads, bert_large, simulate, vgg16
from pliant.spec import CompressedMomentum, Host, LocalSteps, SyncPlan, Topology, Workload

_SPEED = MappingProxyType(dict.fromkeys((key.split()[1] for key in KEYS if key.startswith("encode ")), 1e-11))
GPU = Overheads(
    message_s=2e-5,
    bucket_s=5e-5,
    loopback_bytes_per_s=130e9,
    reduce_bytes_per_s=300e9,
    encode_s=_SPEED,
    feedback_s=_SPEED,
    decode_s=_SPEED,
    add_s=_SPEED,
    compute_overlap=1.0,
    exchange_overlap=1.0,
    provenance="data sheets of V100 and NVLink",
)
ARMS: dict[str, SyncPlan] = {
    "DDP": plan_of(p.allreduce()),
    "ByteGrad": plan_of(p.between_hosts(p.bytegrad())),
    "QAdam-1bit": plan_of(p.between_hosts(CompressedMomentum(beta=0.9, warmup_steps=1))),
    "Decentralized": plan_of(p.between_hosts(LocalSteps(period=1, delay_steps=1))),
    "LowPrecDecentr": plan_of(p.between_hosts(p.dcd(graph=p.Graph(kind="ring")))),
    "Async": plan_of(p.async_average()),
}
VGG_IMG_PER_S = {
    100: {
        "DDP": 8.9e3,
        "Decentralized": 13.7e3,
        "LowPrecDecentr": 15.9e3,
        "QAdam-1bit": 18.9e3,
        "ByteGrad": 21.8e3,
        "Async": 28.9e3,
    },
    10: {
        "DDP": 4.5e3,
        "Decentralized": 4.7e3,
        "LowPrecDecentr": 16.0e3,
        "QAdam-1bit": 17.8e3,
        "ByteGrad": 19.7e3,
        "Async": 28.9e3,
    },
}
BERT_ARMS = ("ByteGrad", "QAdam-1bit", "Decentralized", "LowPrecDecentr", "Async", "DDP")
BERT_EPOCH_S = {  # rate in Gbit/s -> seconds of an epoch
    1: (700, 75, 1505, 735, 61, 2590),
    4: (180, None, 401, 187, 61, 645),
    8: (95, None, 203, 106, 61, 320),
    64: (86, 68, 83, 75, 61, 125),
}
BERT_DELAY_EPOCH_S = {  # delay in ms -> seconds of an epoch; the rate is not written, 100 Gbit/s is taken
    1: (140, 82, 138, 93, 61, 291),
    2: (226, 125, 213, 107, 61, 499),
    3: (293, 160, 291, 120, 61, 697),
    5: (464, 219, 413, 156, 61, 903),
}
VGG_STEP_S = 128 * 32 / 28.9e3
BERT_STEP_S = 61 / (88_000 / (128 * 6))
"""88 thousand examples of SQuAD with windows, 6 per GPU."""


def servers(gbit_per_s: float, delay_s: float = 0.0) -> Topology:
    """Return 16 servers of 8 GPUs."""
    rate = gbit_per_s * 1e9 / 8
    return Topology(
        hosts=tuple(
            Host(name=f"s{k}", num_ranks=8, send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay_s)
            for k in range(16)
        )
    )


def compared(workload: Workload, topology: Topology, published: dict[str, float | None]) -> dict[str, tuple]:
    """Return arm -> (published, simulated), as time over that of the asynchronous arm."""
    alone = published["Async"] or 1.0
    base = simulate(ARMS["Async"], workload, topology, overheads=GPU, bucket_bytes=10 << 20).step_s
    return {
        arm: (
            theirs / alone,
            simulate(ARMS[arm], workload, topology, overheads=GPU, bucket_bytes=10 << 20).step_s / base,
        )
        for arm, theirs in published.items()
        if theirs is not None
    }


def cases() -> dict[str, dict[str, tuple[float, float]]]:
    """Return what all figures say: case -> arm -> (published, simulated)."""
    found = {}
    for rate, rates in VGG_IMG_PER_S.items():
        times = {arm: 1 / each for arm, each in rates.items()}
        found[f"VGG16, {rate} Gbit/s"] = compared(vgg16(VGG_STEP_S), servers(rate), times)
    for rate, epochs in BERT_EPOCH_S.items():
        published = dict(zip(BERT_ARMS, epochs, strict=True))
        found[f"BERT-Large, {rate} Gbit/s"] = compared(bert_large(BERT_STEP_S), servers(rate), published)
    for delay, epochs in BERT_DELAY_EPOCH_S.items():
        published = dict(zip(BERT_ARMS, epochs, strict=True))
        found[f"BERT-Large, {delay} ms"] = compared(bert_large(BERT_STEP_S), servers(100, delay / 1e3), published)
    return found


def agreement(case: dict[str, tuple[float, float]], *, tie: float = 1.1) -> tuple[int, int]:
    """Return how many pairs of arms are in the published order, of how many that differ by more than 10 %."""
    pairs = [(a, b) for a, b in combinations(case.values(), 2) if max(a[0] / b[0], b[0] / a[0]) > tie]
    return sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs), len(pairs)


def main() -> None:
    arms = list(ARMS)
    print("| case | " + " | ".join(arms) + " | pairs in order |")
    print("|---" * (len(arms) + 2) + "|")
    right = total = 0
    for name, case in cases().items():
        agree, of = agreement(case)
        right, total = right + agree, total + of
        cells = [
            f"{case[arm][0]:.3g} / {case[arm][1]:.3g} ({case[arm][1] / case[arm][0] - 1:+.0%})" if arm in case else "-"
            for arm in arms
        ]
        print(f"| {name} | " + " | ".join(cells) + f" | {agree} of {of} |")
    print(f"\npairs that differ by more than 10 %, in the published order: {right} of {total}")


if __name__ == "__main__":
    main()
