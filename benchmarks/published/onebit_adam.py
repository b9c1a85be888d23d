"""1-bit Adam (arXiv:2102.02888), table 1: BERT-Large in fp16, of which all gradients are summed after backward."""

from dataclasses import replace

from benchmarks.published.hosts import Cluster
from benchmarks.published.record import Row, Source

from pliant.netmodel import PRESETS

__all__ = ["ONEBIT_ADAM"]

GRADIENT_BYTES = 672e6
"""336 M parameters in two bytes each."""
ETHERNET = replace(
    PRESETS["v100"],
    gpus=4,
    link_bytes_per_s=0.0,
    loopback_bytes_per_s=4 * 9e9,
    nics=1,
    nic_bytes_per_s=4.1e9 / 8,
    transport_efficiency=1.0,
)
"""4 V100 of a host on PCIe; the rate between hosts is the paper's own, by iperf."""
INFINIBAND = replace(PRESETS["v100"], nics=1, nic_bytes_per_s=12.5e9, transport_efficiency=0.48)
"""8 V100 with NVLink and one interface of 100 Gbit/s InfiniBand, of which such hosts reach 6 GB/s (nccl-tests#29)."""
_TABLE = (  # network, hosts, GPUs of a host, batch and accumulation, ms of the all-reduce
    ("40 GbE", 16, 4, "1, 1", 2205.86),
    ("40 GbE", 16, 4, "16, 1", 2275.43),
    ("40 GbE", 16, 4, "16, 4", 2259.36),
    ("40 GbE", 8, 4, "16, 1", 2173.35),
    ("40 GbE", 4, 4, "16, 1", 2133.24),
    ("40 GbE", 2, 4, "16, 1", 1897.21),
    ("40 GbE", 1, 4, "16, 1", 239.76),
    ("InfiniBand", 8, 8, "1, 1", 316.18),
    ("InfiniBand", 8, 8, "16, 1", 336.40),
    ("InfiniBand", 8, 8, "16, 4", 339.52),
    ("InfiniBand", 4, 8, "16, 1", 297.28),
    ("InfiniBand", 2, 8, "16, 1", 183.74),
    ("InfiniBand", 1, 8, "16, 1", 28.18),
)


def _all_reduce_ms(cluster: Cluster) -> float:
    """Return the time of one sum of all gradients, with copies into one buffer and back, and a division."""
    return 1e3 * (cluster.all_reduce_s(GRADIENT_BYTES) + 3 * cluster.passes_s(2 * GRADIENT_BYTES))


def _row(network: str, hosts: int, gpus: int, batch: str, published_ms: float) -> Row:
    machine = ETHERNET if network == "40 GbE" else INFINIBAND
    cluster = Cluster(machine=machine, num_hosts=hosts, gpus=gpus, headers=1.0)
    return Row(
        case=f"{network}, {hosts} x {gpus}",
        arm=f"batch and accumulation {batch}",
        topology=f"{hosts} hosts x {gpus}",
        machine="v100 on PCIe" if network == "40 GbE" else "v100, InfiniBand",
        workload="BERT-Large, fp16",
        plan="one all-reduce of 672 MB",
        published=published_ms,
        unit="ms",
        uncertainty=0.01,
        where="table 1",
        predict=lambda: _all_reduce_ms(cluster),
    )


ONEBIT_ADAM = Source(
    name="1-bit Adam, all-reduce",
    link="https://arxiv.org/abs/2102.02888",
    rows=tuple(_row(*each) for each in _TABLE),
    constants=(
        ("4.1 Gbit/s between hosts of the first cluster", "the paper's iperf, in its text"),
        ("6 of 12.5 GB/s over InfiniBand", "NVIDIA/nccl-tests#29: 4 hosts of 8 V100, one such interface each"),
        ("9 GB/s between GPUs on PCIe", "NVIDIA/nccl, src/graph/topo.h: 12 GB/s, three quarters through the processor"),
        ("130 GB/s between GPUs with NVLink, 900 GB/s of memory", "data sheet of V100"),
    ),
    misses=(
        "**Ethernet.** The rows mean 4.8 to 5.0 Gbit/s of payload, above the paper's iperf of 4.1: some 17 points.",
        "**InfiniBand.** From 2 to 8 hosts the published time grows by 1.8, a ring's by 1.05: links or switches are "
        "shared, of which the paper says nothing.",
        "**Inside hosts.** 28.2 ms on NVLink are 42 GB/s, a third of what NCCL reaches on such hosts, and 240 ms on "
        "PCIe are 4.2 GB/s, half; both as in virtual machines that hide which GPUs are neighbours.",
        "The goal was 15 %; it was not reached without fitting one of these rates to the table.",
    ),
    ceiling=0.27,
)
