"""Communications in flight: ended ones, several as one, in stages, and what waits for them in any case."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from pliant.comm.base import CommError, Work

__all__ = ["AllWorks", "EndedWork", "StagedWork", "ends_what_is_sent", "waited_for"]


class EndedWork:
    """A communication that has ended before its caller waits."""

    def wait(self) -> None:
        """Return at once, since nothing is under way."""


class AllWorks:
    """Several communications in flight as one."""

    def __init__(self, *works: Work) -> None:
        self._works = works

    def wait(self) -> None:
        """Wait for all, one after another."""
        for work in self._works:
            work.wait()


class StagedWork:
    """A communication of several rounds, as stages that yield while messages are under way; the first begins it."""

    def __init__(self, stages: Generator[None]) -> None:
        self.stages = stages
        self._failed: CommError | None = None

    def wait(self) -> None:
        """Do what is left of it."""
        if self._failed is not None:
            raise self._failed
        try:
            for _ in self.stages:
                pass
        except CommError as error:
            self._failed = error
            raise


def waited_for(work: Work) -> Generator[None]:
    """Yield while messages are under way, and wait for them in any case: what is left behind would meet later ones."""
    try:
        if isinstance(work, StagedWork):
            yield from work.stages
        else:
            yield
    finally:
        work.wait()


@contextmanager
def ends_what_is_sent(works: Sequence[Work]) -> Generator[None]:
    """Wait for messages under way where a block ends before its time: what is left behind would meet later ones.

    Args:
        works: What the block has begun, and adds to.

    """
    try:
        yield
    except CommError:  # one of them has failed, and with it the connections
        raise
    except BaseException:  # also of a generator that is closed within the block
        for work in works:
            with suppress(CommError):
                work.wait()
        raise
