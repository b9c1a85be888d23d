"""Staleness clocks: which rank may continue, when ranks are at different steps."""

__all__ = ["StalenessClock"]


class StalenessClock:
    """Steps of all ranks under stale synchronous parallel, kept by one owner. No tensor, no thread, no network.

    A rank's clock is the number of gradients that it has sent. After each, it asks for weights, and is answered when
    the slowest clock has reached what it needs (Ho et al., NeurIPS 2013, section 2, with clocks counted from 0):

        s = 0:  need(c) = c           the answer is awaited before the next step: all c-th gradients are in it
        s > 0:  need(c) = c + 1 - s   the answer is on its way during the next step, and awaited after that

    So a rank that computes its (c+1)-th gradient has weights that were answered when the slowest clock was at least c -
    s: it is never more than s ahead of the slowest, and its weights lack nothing that was sent before clock c - s.

    A step of the optimizer is due when there are as many gradients as active ranks, from any of them (Zhang et al.,
    IJCAI 2016, 1-softsync). So learning rates, momenta and variances mean what they do in lockstep, and fewer gradients
    than ranks are ever pending.

    A rank that leaves is no longer waited for. When all have left, pending gradients become a step of their own, all
    clocks restart at 0, and all ranks are active again.
    """

    def __init__(self, size: int, staleness: int) -> None:
        if size < 1 or staleness < 0:
            raise ValueError(f"{size} ranks with a staleness of {staleness} cannot be; use at least 1, and at least 0.")
        self.staleness = staleness
        self.clocks = [0] * size
        self.left = [False] * size
        self.waiting = 0
        """Gradients that no step has used."""
        self.epoch = 0
        """How often all have left."""

    def push(self, rank: int) -> int:
        """Note a gradient; return how many gradients are in the step that is now due, or 0 if none is."""
        self.clocks[rank] += 1
        self.waiting += 1
        return self._due()

    def leave(self, rank: int) -> int:
        """Note that a rank sends nothing until all have left; return what `push` returns."""
        self.left[rank] = True
        due = self._due()
        if all(self.left):
            self.epoch += 1
            self.clocks, self.left = [0] * len(self.clocks), [False] * len(self.left)
        return due

    def may_read(self, rank: int, epoch: int) -> bool:
        """Say whether a rank that asked in this epoch, after its last gradient or on leaving, may be answered."""
        if self.epoch > epoch:
            return True
        return not self.left[rank] and self.clocks[self.slowest] >= self.need(self.clocks[rank])

    def need(self, clock: int) -> int:
        """Return where the slowest must be for a rank that asks at this clock."""
        return clock if self.staleness == 0 else clock + 1 - self.staleness

    @property
    def slowest(self) -> int:
        """The active rank with the lowest clock."""
        return self.slowest_but(-1)

    def slowest_but(self, rank: int) -> int:
        """Return the active rank with the lowest clock, but for one rank unless no other is active."""
        active = [(r == rank, clock, r) for r, clock in enumerate(self.clocks) if not self.left[r]]
        return min(active)[2]

    def _due(self) -> int:
        active = self.left.count(False)
        if self.waiting < max(active, 1):
            return 0
        due, self.waiting = self.waiting, 0
        return due
