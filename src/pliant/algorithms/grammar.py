"""Text form of algorithms: ``diloco(period=64, averaging=int4)`` means the same in Python, in a shell and in a plan."""

import ast
from collections.abc import Callable
from typing import Any, Never, cast, get_args, get_type_hints

from pliant.algorithms.inputs import AlgorithmLike, as_codec_spec, node_of
from pliant.algorithms.registry import algorithm_named, algorithm_names, row_of, why_unknown
from pliant.spec import (
    CODECS,
    NODES,
    CodecSpec,
    CurvatureSpec,
    Exchange,
    Graph,
    Host,
    Link,
    Move,
    OptimizerState,
    Outer,
    Placement,
    Rack,
    ReduceScatter,
    Schedule,
    Selection,
    Target,
    Topology,
    WeightGather,
)

__all__ = ["parse", "parse_value"]

_VALUES = {
    kind.__name__: kind
    for kind in (
        *(Outer, Graph, Target, Placement, Selection, CurvatureSpec, Topology, Host, Link, Rack),
        *(ReduceScatter, WeightGather, Schedule, Move, OptimizerState),
    )
}
_WORDS: dict[str, Callable[..., Any]] = {
    "differences": lambda codec: WeightGather.of_differences(as_codec_spec(codec)),
}
"""Words for values that are no algorithms."""
_TRUTHS = {"true": True, "false": False}
"""As a shell or JSON has them."""
_GRAPHS = tuple(kind for kind in get_args(get_type_hints(Graph)["kind"]) if kind != "matrix")
_LONGEST = 1 << 16


def parse(text: str) -> Exchange:
    """Return the node that a text names; ``parse(str(node)) == node``.

    The text is a name, or ``name(setting=value)``, nested: names of algorithms and types of nodes. Settings may stand
    in their order without a name. A codec or a graph is a word as well: ``choco(codec=sign, graph=ring)``.

    Raises:
        ValueError: The text is not of this form, a name is not known, or a setting is not accepted.

    >>> str(parse("every(2, qsgd(bits=4))"))
    'Every(inner=ScatterGather(codec=qsgd(bits=4)), steps=2)'

    """
    node = parse_value(text)
    if not isinstance(node, Exchange):
        raise ValueError(f"{text[:200]!r} is no algorithm; there are {', '.join(algorithm_names())}.")
    return node


def parse_value(text: str) -> Any:
    """Return the node, or the value of a node's setting such as ``differences(int4)``, that a text names.

    Raises:
        ValueError: As `parse` does.

    """
    if len(text) > _LONGEST:
        raise ValueError(f"an algorithm of {len(text)} characters was given; at most {_LONGEST} are read.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ValueError(
            f"{text[:200]!r} cannot be read as an algorithm; write it as in 'topk(ratio=0.05)' or 'every(2, int4)'."
        ) from None
    return _value(tree, "")


def _value(tree: ast.expr, key: str) -> Any:
    """Return what an expression stands for, as the value of a setting of that name."""
    if isinstance(tree, ast.Constant):
        return _word(tree.value, key) if isinstance(tree.value, str) and key in ("codec", "graph") else tree.value
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub) and isinstance(tree.operand, ast.Constant):
        number = tree.operand.value
        return -number if isinstance(number, int | float) else _refuse(tree)
    if isinstance(tree, ast.Tuple):
        return tuple(_value(each, "") for each in tree.elts)
    if isinstance(tree, ast.Dict) and all(isinstance(k, ast.Constant) for k in tree.keys):
        return {
            k.value: _value(v, "") for k, v in zip(tree.keys, tree.values, strict=True) if isinstance(k, ast.Constant)
        }
    if isinstance(tree, ast.Name):
        return _word(tree.id, key)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        args = [_value(each, "") for each in tree.args]
        names = [str(each.arg) for each in tree.keywords]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"{ast.unparse(tree)[:200]!r} has the setting {twice} twice; leave one out.")
        settings = {name: _value(each.value, name) for name, each in zip(names, tree.keywords, strict=True)}
        return _build(tree.func.id, key, args, settings)
    return _refuse(tree)


def _refuse(tree: ast.expr) -> Never:
    raise ValueError(f"{ast.unparse(tree)[:200]!r} is neither a number, a word nor name(setting=value).")


def _word(word: str, key: str) -> Any:
    """Return what a word without settings stands for."""
    if word in _TRUTHS:
        return _TRUTHS[word]
    if key == "codec":
        return CodecSpec(name=word)
    if key == "graph":
        if word not in _GRAPHS:
            raise ValueError(f"there is no graph {word!r}; there are {', '.join(_GRAPHS)}.")
        return Graph(kind=cast(Any, word))
    if word in NODES or word in _VALUES:
        return _build(word, key, [], {})
    if row_of(word) is not None or key in ("", "averaging", "algorithm", "inner", "first", "then"):
        return algorithm_named(word)
    return word  # such as feedback=both


def _build(name: str, key: str, args: list[Any], settings: dict[str, Any]) -> Any:
    """Return what a name with settings stands for."""
    if key == "codec" and name in CODECS:
        if args:
            raise ValueError(f"the settings of the codec {name} must be named, as in {name}(block=64).")
        return CodecSpec(name=name, settings=settings)
    make: Callable[..., Any] | None = NODES.get(name) or _VALUES.get(name) or _WORDS.get(name)
    if make is None and (row := row_of(name)) is not None:
        make = row.make
    if make is None:
        said = f"there is no algorithm {name!r}; there are {', '.join(algorithm_names())}, and types of nodes"
        raise ValueError(f"{why_unknown(said)}.")
    try:
        made = make(*args, **settings)
    except (TypeError, AttributeError) as error:  # a number where a node or a record belongs
        raise ValueError(f"{name} does not take these settings: {error}.") from None
    return made if name in _VALUES or name in _WORDS else node_of(cast(AlgorithmLike, made))
