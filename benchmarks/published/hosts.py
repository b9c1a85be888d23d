"""Clusters of published runs: a machine, hosts, and the rate that its transport reaches between them."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pliant.netmodel import PRESETS, Links, Messages, Overheads
from pliant.simulator.collective_rounds import ring, ring_all_gather
from pliant.spec import Host, Machine, Topology

__all__ = ["TCP_SHARE", "TCP_WINDOW_BYTES", "Cluster"]

TCP_SHARE = 0.32
"""NCCL over TCP at 100 Gbit/s between V100 hosts: 4 to 6 GB/s at best after tuning (NVIDIA/nccl#450); the lower end."""
TCP_WINDOW_BYTES = 2 << 20
"""Half of Linux' largest send buffer (net.ipv4.tcp_wmem, 4 MiB), as the kernel sizes it (tcp_sndbuf_expand). Half of
the receive buffer (tcp_rmem, 6 MiB) is more, and does not bind."""
CHANNELS = 2
"""NCCL opens two channels for each interface, with a connection each (NVIDIA/nccl#438)."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal hosts of GPUs."""

    machine: Machine
    num_hosts: int
    gpus: int
    bytes_per_s: float = 0.0
    """Shaped rate of a host's link; 0 for that of its interfaces."""
    trip_s: float = 0.0
    """Round trip between hosts, as ping shows it."""
    headers: float = 1.05
    """Bytes on the link over payload."""

    @cached_property
    def overheads(self) -> Overheads:
        """Costs of the machine."""
        return replace(Overheads.of(self.machine), wire_factor=self.headers)

    @cached_property
    def topology(self) -> Topology:
        """All GPUs as ranks."""
        return self._of(self.gpus)

    @cached_property
    def everybody(self) -> Links:
        """All GPUs."""
        return Links(self.topology, self.overheads)

    @cached_property
    def leaders(self) -> Links:
        """One GPU of each host."""
        return Links(self._of(1), self.overheads)

    def _of(self, num_ranks: int) -> Topology:
        reached = self.machine.transport_bytes_per_s
        rate = min(self.bytes_per_s or reached, reached)
        hosts = tuple(
            Host(
                name=f"s{k}",
                num_ranks=num_ranks,
                send_bytes_per_s=rate,
                receive_bytes_per_s=rate,
                delay_s=self.trip_s / 2,
            )
            for k in range(self.num_hosts)
        )
        window_bytes = TCP_WINDOW_BYTES if self.trip_s else 0
        return Topology(hosts=hosts, connections=CHANNELS, window_bytes=window_bytes, restarts_slowly=False)

    def all_reduce_s(self, num_bytes: float, *, among: str = "all") -> float:
        """Return the time of NCCL's all-reduce among all GPUs, or among one of each host."""
        links = self.everybody if among == "all" else self.leaders
        return self.takes_s(links, ring(np.array([num_bytes]), links.num_ranks))

    def gather_s(self, num_bytes: float) -> float:
        """Return the time of NCCL's all-gather of so many bytes from one GPU of each host."""
        return self.takes_s(self.leaders, ring_all_gather(np.array([num_bytes]), self.num_hosts))

    @staticmethod
    def takes_s(links: Links, each: "object") -> float:
        """Return the time of a round of messages."""
        messages: Messages = each.messages
        return float(links.load(messages, each.repeat).total_s[0])

    def passes_s(self, num_bytes: float) -> float:
        """Return the time in which a GPU's memory moves so many bytes."""
        return num_bytes / self.machine.memory_bytes_per_s + self.machine.launch_s

    def inside_s(self, num_bytes: float) -> float:
        """Return the time of a reduce to one GPU of a host, or of a broadcast from it, along a chain of its GPUs."""
        if self.gpus == 1:
            return 0.0
        rate = self.machine.inside_bytes_per_s / self.machine.gpus
        return num_bytes / rate + self.gpus * 3.4e-6 + 8.4e-6


def tcp_v100(share: float = TCP_SHARE) -> Machine:
    """Return BAGUA's server: 8 V100 with NVLink, and one interface of 100 Gbit/s for TCP."""
    return replace(PRESETS["v100"], nics=1, nic_bytes_per_s=12.5e9, transport_efficiency=share)
