"""A topology by a name or a file: a named world, a record, or matrices as people write them."""

from pathlib import Path
from typing import Any, cast

from pliant.spec import Topology, from_json
from pliant.spec.matrices import topology_of_words
from pliant.spec.reading import parse_json, read_text
from pliant.spec.worlds import WORLDS, world

__all__ = ["TOPOLOGY_HELP", "read_topology_file"]

TOPOLOGY_HELP = f"A topology's file, matrices, or a world: {', '.join(WORLDS)}"


def read_topology_file(name: str | Path) -> Topology:
    """Return the topology that a name stands for; a file goes before a world of the same name, but no folder does.

    Raises:
        ValueError: There is neither, or the file holds something else; the message names it.

    """
    path = Path(name)
    if str(name) in WORLDS and not path.is_file():
        return world(str(name))
    if not path.exists():
        raise ValueError(f"there is no topology {str(name)!r}: it is neither a file nor one of {', '.join(WORLDS)}.")
    text = read_text(path)
    try:
        body = parse_json(text)
        if isinstance(body, dict) and "pliant" not in body and "rates" in body:
            return topology_of_words(cast(dict[str, Any], body))
        return from_json(Topology, text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
