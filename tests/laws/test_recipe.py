"""The recipes of CONTRIBUTING.md, carried out in a copy: one file and one row make a codec or an algorithm."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pliant

ROOT, SOURCE = Path(__file__).parents[2], Path(pliant.__file__).parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
LAWS = (
    "tests/laws/test_codecs.py",
    "tests/laws/test_tables.py",
    "tests/engine/test_algorithms.py",
    "tests/engine/test_checkpoint.py",
    "tests/simulator/test_bytes.py",
)

WITHOUT_TORCH = """
import sys
import pliant
from pliant.spec import CodecSpec, Rule, SyncPlan, from_json

text = '{"pliant": "SyncPlan", "format": 2, "rules": [{"exchange": {"type": "Fading", "keep": 0.9}}]}'
plan = from_json(SyncPlan, text)  # the first that names the node
assert plan.rules[0].exchange == pliant.fading(keep=0.9) == pliant.parse("fading(keep=0.9)")
node = pliant.parse("diloco(averaging=Fading(keep=0.5, codec=trunc(kept=9)))").averaging
assert (node.keep, node.codec) == (0.5, CodecSpec(name="trunc", settings={"kept": 9}))

from pliant.planner import Gene, Genome, Quality, Space, all_of
from pliant.simulator import workload_named
from pliant.spec import Host, Topology

topology = Topology(hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=1e7, receive_bytes_per_s=1e7) for k in range(2)))
space = Space(workload_named("vgg16", 0.1), topology, Quality(budget=1.0001))
mild, strong = all_of("fading")
assert Genome(strong).plan().rules[-1].exchange == pliant.fading(keep=0.9)
assert Genome(mild) in space and Genome(strong) in space
assert any(genes.base == strong for genes in space.enumerate())

import rows

assert "| `fading(keep)` | Send gradients in 16 bits, with error feedback that fades. |" in rows.algorithm_table()
assert "| `trunc` | quantizer | kept=12 | 2,000,000 | biased |" in rows.codec_table()
assert "::: pliant.algorithms.fading.fading" in rows.filled("<!-- functions -->")
assert "    fading as fading,\\n" in rows.stub("")
assert rows.golden()["algorithms"]["fading"][0] == "Fading"
assert "torch" not in sys.modules
"""


def blocks(page):
    """Yield the files that a page shows: path, and what is in the block behind it."""
    yield from re.findall(r"`(src/pliant/[\w/]+\.py)`[^`]*?:\n\n```python\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a copy of the package and of its laws in which the recipes were carried out."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(SOURCE, folder / "src/pliant", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml", "scripts/rows.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    done = {"file": 0, "row": 0}
    for name, text in blocks(PAGE):
        path = folder / name
        if path.exists():
            table = re.search(r"^(CODECS|ALGORITHMS): .*?(?=^    }\n\)\n)", path.read_text(), re.DOTALL | re.MULTILINE)
            before, after = path.read_text()[: table.end()], path.read_text()[table.end() :]
            path.write_text(before + text + after)
        else:
            path.write_text(text)
        done["row" if path.name in ("codecs.py", "registry.py") else "file"] += 1
    assert done == {"file": 2, "row": 2}
    # Of one name the first distribution counts: an installed laboratory, of this tree or another, is not looked for.
    (folder / "src/pliant_bench-0.dist-info").mkdir()
    (folder / "src/pliant_bench-0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: pliant-bench\nVersion: 0\n"
    )
    return folder


def python(folder, *arguments):
    """Run a fresh Python that has the copy on its path; return what it said."""
    paths = os.pathsep.join(str(folder / name) for name in ("src", "tests", "scripts"))
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_texts_plans_search_and_docs_know_them_without_torch(copy):
    python(copy, "-c", WITHOUT_TORCH)


def test_the_command_line_knows_them(copy):
    main = "from pliant.cli.main import main; main()"
    where = ("--hosts", "16", "--rate", "1gbit", "--delay", "5ms")
    assert "fading(keep=0.9): predicted" in python(
        copy, "-c", main, "simulate", "fading(keep=0.9)", *where, "--workload", "vgg16", "--compute", "1s"
    )


@pytest.mark.extended
def test_they_obey_the_laws(copy):
    """Ranks stay equal, feedback telescopes, bytes are those predicted, a saved run goes on; and the laws of codecs."""
    only = ("-k", "trunc or fading", "-m", "not extended")
    said = python(copy, "-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", *only, *LAWS)
    passed = int(re.search(r"(\d+) passed", said).group(1))
    assert passed >= 25, said
    assert "skipped" not in said


def test_the_page_is_one_page():
    """A page of text besides the files that it shows."""
    shown = re.sub(r"^```.*?^```\n", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(shown.splitlines()) <= 66


def test_the_map_of_floors_names_every_room():
    """Floors and rooms are those that import-linter holds, and all that there are."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    held = [sorted(re.findall(r"(?<!\()\b\w+\b(?!\))", layer)) for layer in layers]
    shown = [re.findall(r"`(\w+)`", line.split("|")[2]) for line in PAGE.splitlines() if re.match(r"\| \d", line)]
    assert [sorted(rooms) for rooms in shown] == held
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {room for rooms in shown for room in rooms} == there - {"__init__", "__main__"}
