"""Cost of lookups so far."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pliant.comm.recorded import RecordedComm
from pliant.recsys.embedding.channel import PairwiseChannel

__all__ = ["LookupStats", "stats_of"]


@dataclass(frozen=True, kw_only=True)
class LookupStats:
    """Cost on one rank, since it began."""

    num_steps: int
    sent_bytes: dict[str, int]
    """By phase: 'sizes', 'requests', 'answers', 'gradients'; 'masks' and 'early' of prefetching; 'hot rows' of a
    change of the hot set; 'replicas', sums of their gradients."""
    received_bytes: dict[str, int]
    wait_s: dict[str, float]
    """Seconds waited for each phase; in a thread of its own where a batch was prefetched."""
    num_ids: int
    """Looked up so far, with those that were there twice."""
    num_vectors: int
    """Asked of owners, this rank's own among them."""
    num_local: int
    """Ids, or distinct ones where vectors move, that were found in replicas."""
    age: int
    """Steps since gradients of rows on all ranks were last used."""

    @property
    def hot_share(self) -> float:
        """Share of what was looked up that replicas had."""
        return self.num_local / max(1, self.num_local + self.num_vectors)


def stats_of(
    channels: Sequence[PairwiseChannel], sums: RecordedComm, counts: Tensor, num_steps: int, age: int
) -> LookupStats:
    """Put together what was counted; counts are (ids, vectors, found in replicas)."""
    sent, received = Counter[str](), Counter[str]()
    wait_s: defaultdict[str, float] = defaultdict(float)
    for channel in channels:
        sent.update(channel.sent_bytes)
        received.update(channel.received_bytes)
        for phase, seconds in channel.wait_s.items():
            wait_s[phase] += seconds
    num_ids, num_vectors, num_local = counts.tolist()
    return LookupStats(
        num_steps=num_steps,
        sent_bytes={**sent, "replicas": sums.sent_bytes},
        received_bytes={**received, "replicas": sums.received_bytes},
        wait_s={**wait_s, "replicas": sums.wait_s},
        num_ids=num_ids,
        num_vectors=num_vectors,
        num_local=num_local,
        age=age,
    )
