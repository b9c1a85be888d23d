"""Work in stages, as generators that yield where the next stage may begin."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import TypeVar

__all__ = ["do_all", "side_by_side"]

T = TypeVar("T")


def do_all(stages: Generator[None, None, T]) -> T:
    """Do all stages one after another; return the result."""
    while True:
        try:
            next(stages)
        except StopIteration as ended:
            return ended.value


def side_by_side(works: Sequence[Generator[None, None, T]]) -> Generator[None, None, list[T]]:
    """Do the first stages of all works, then the second ones, and so on; return the results, in their order.

    Where one raises, the others are closed, so that what they have under way ends.
    """
    results: dict[int, T] = {}
    with ExitStack() as stack:  # which closes all, whatever one of them raises
        for work in reversed(works):
            stack.callback(work.close)
        while True:
            for k, work in enumerate(works):
                if k not in results:
                    try:
                        next(work)
                    except StopIteration as ended:
                        results[k] = ended.value
            if len(results) == len(works):
                return [results[k] for k in range(len(works))]
            yield
