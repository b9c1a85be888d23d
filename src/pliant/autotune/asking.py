"""Search of the first rank, wish by wish."""

import logging
from collections.abc import Callable, Generator

from pliant.planner import Genome, SearchResult, Trial

__all__ = ["Asking"]

_log = logging.getLogger("pliant")


class Asking:
    """A search that has its next wish, or its result; neither on other ranks than the first, or once it is dropped.

    Args:
        search: The search, which begins now; None on other ranks.

    """

    def __init__(self, search: Generator[tuple[Genome, float], Trial, SearchResult] | None) -> None:
        self.wish: tuple[Genome, float] | None = None
        """A plan to try, and the step time above which its trial ends."""
        self.found: SearchResult | None = None
        self.spared = 0
        """Steps of trials under the plan that was in force before."""
        if search is not None:
            self._search = search
            self._advance(lambda: next(search))

    def tell(self, trial: Trial) -> None:
        """Go on with the outcome of the wish."""
        self._advance(lambda: self._search.send(trial))

    def drop(self) -> None:
        """Wish for nothing more, and have no result."""
        self.wish = self.found = None

    def _advance(self, go_on: Callable[[], tuple[Genome, float]]) -> None:
        self.wish = None
        try:
            self.wish = go_on()
        except StopIteration as end:
            self.found = end.value
        except Exception as error:  # noqa: BLE001  none could be in force, or it failed: training goes on without it
            _log.warning("auto keeps torch's own exchange: %s: %s.", type(error).__name__, error)
