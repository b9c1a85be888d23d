"""Text that follows from the rows of algorithms and codecs.

`.venv/bin/python scripts/rows.py` writes the names of algorithms into `src/pliant/__init__.pyi`, for type checkers, and
adds new rows to the golden file, whose old rows it never changes. `scripts/rows.py pages FOLDER` writes the pages of
docs/ there, with their tables, for `scripts/docs`.
"""

import inspect
import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STUB, GOLDEN = ROOT / "src/pliant/__init__.pyi", ROOT / "tests/spec/rows_of_format_2.json"
MARK = "# isort: split\n# Algorithms, as `scripts/rows.py` writes them from the registry.\n"


def stub(text):
    """Return a stub's text with the names of all algorithms behind the mark."""
    from pliant.algorithms.registry import ALGORITHMS

    names, written = {}, text.partition(MARK)[0]
    for name, row in sorted(ALGORITHMS.items()):
        if f" {name} as {name},\n" in written:
            continue  # a function that reads texts as well
        names.setdefault(row.make.__module__.removeprefix("pliant"), []).append(name)
    blocks = [
        f"from {module} import (\n" + "".join(f"    {name} as {name},\n" for name in listed) + ")\n"
        for module, listed in sorted(names.items())
    ]
    return written.rstrip() + "\n\n" + MARK + "".join(blocks)


def golden():
    """Return what all rows mean: the text and the hash of each algorithm's plan, the settings of each codec."""
    from pliant.algorithms.grammar import parse
    from pliant.algorithms.registry import ALGORITHMS
    from pliant.spec import CODECS, Rule, SyncPlan

    nodes = {name: parse(row.example or name) for name, row in ALGORITHMS.items()}
    return {
        "algorithms": {n: [str(node), SyncPlan(rules=(Rule(exchange=node),)).hash] for n, node in nodes.items()},
        "codecs": {name: {key: of.default for key, of in facts.settings.items()} for name, facts in CODECS.items()},
    }


def algorithm_table():
    """Return the table of algorithms: name with settings, meaning, node."""
    from pliant.algorithms.grammar import parse
    from pliant.algorithms.registry import ALGORITHMS

    rows = ["| name | what it is | as a node of a plan |", "|---|---|---|"]
    for name, row in sorted(ALGORITHMS.items()):
        settings = ", ".join(inspect.signature(row.make).parameters)
        meaning = inspect.getdoc(row.make).partition("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{name}({settings})` | {meaning} | `{parse(row.example or name)}` |")
    return "\n".join(rows)


def codec_table():
    """Return the table of codecs: name, kind, settings, size."""
    from pliant.layouts import payload_bytes
    from pliant.spec import CODECS, CodecSpec

    rows = ["| codec | kind | settings | bytes of 1 M float32 | |", "|---|---|---|--:|---|"]
    for name, facts in CODECS.items():
        settings = ", ".join(f"{key}={of.default:g}" for key, of in facts.settings.items())
        size = payload_bytes(CodecSpec(name=name), 1_000_000)
        rows.append(f"| `{name}` | {facts.kind} | {settings} | {size:,} | {'biased' if facts.biased else ''} |")
    return "\n".join(rows)


def functions():
    """Return mkdocstrings' lines for the functions of all algorithms."""
    from pliant.algorithms.registry import ALGORITHMS

    return "\n\n".join(f"::: {row.make.__module__}.{name}" for name, row in ALGORITHMS.items())


def filled(markdown):
    """Put the tables where a page asks for them."""
    for word, made in (("algorithm table", algorithm_table), ("codec table", codec_table), ("functions", functions)):
        mark = f"<!-- {word} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    return markdown


def write_pages(folder):
    """Write all pages and mkdocs.yml into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs")
    for page in (folder / "docs").rglob("*.md"):
        page.write_text(filled(page.read_text()))
    sources = ", ".join(str(ROOT / name) for name in ("src", "bench"))
    (folder / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text().replace("[src, bench]", f"[{sources}]"))


def main():
    """Write what is kept as files, or the pages."""
    if sys.argv[1:2] == ["pages"]:
        write_pages(Path(sys.argv[2]))
        return
    STUB.write_text(stub(STUB.read_text()))
    kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    rows = {kind: {**new, **kept.get(kind, {})} for kind, new in golden().items()}
    GOLDEN.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
