"""Mutants of Python sources, by the operators of cosmic-ray (benchmarks/mutants/install)."""

import ast
import warnings
from functools import cache

_NEED_ARGUMENTS = ("core/VariableReplacer", "core/VariableInserter")

Change = tuple[str, int]
"""An operator, and which of the places that it can change, from 0."""


@cache
def places(text: str) -> dict[tuple[int, int], list[Change]]:
    """Return what cosmic-ray's operators can do to a source: (line, column) -> changes.

    Annotations are left alone: what is changed there fails at import or changes nothing.
    """
    from cosmic_ray.ast import ast_nodes, get_ast  # only drawing needs it
    from cosmic_ray.plugins import get_operator, operator_names

    noted = _annotations(text)
    nodes = list(ast_nodes(get_ast(text)))
    found: dict[tuple[int, int], list[Change]] = {}
    for name in operator_names():
        if name in _NEED_ARGUMENTS:
            continue
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            if not any(first <= start < last for first, last in noted):
                found.setdefault(start, []).append((name, occurrence))
    return dict(sorted(found.items()))


def changed(text: str, change: Change) -> str | None:
    """Return the source with one change; None if that is no Python, or the same."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    found: str | None = mutate_code(text, get_operator(change[0])(), change[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the interpreter finds these by itself
        try:
            compile(found or "", "mutant", "exec")
        except (SyntaxError, SyntaxWarning):
            return None
    return found if found != text else None


def _annotations(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return (start, end) of all annotations, each as (line, column)."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
        if isinstance(node, ast.FunctionDef):
            found.append(node.returns)
    return [((e.lineno, e.col_offset), (e.end_lineno or 0, e.end_col_offset or 0)) for e in found if e is not None]
