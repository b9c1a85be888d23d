"""Figures on the pages: what follows from a formula is computed here, what is measured is looked up."""

import ast
import doctest
import itertools
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.cli.report.comparison import comparison, measured_of
from pliant.codecs import BlockTopK, Int4, MinMax8, Natural, Qsgd, RandomK, Sign, Ternary, TopK
from pliant.spec import Graph, SyncPlan, Timeline, load
from processes.ranks import fork, said

EXAMPLES = {name: sys.modules[getattr(pliant, name).__module__] for name in pliant.__all__}
"""Public name -> module that defines it."""
EXPLAINED = {
    "CommError",
    "IncompleteBackwardError",
    "NonFiniteGradientError",
    "ReplicasDisagreeError",
    "Run",
    "register",
}
"""Errors; what `relax` returns; and a name that stays in the process: docs/tutorial.md has the example."""
ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "algorithms"
NUMEL, SIZE = 25_000_000, 4  # 100 MB of float32 on 4 ranks


def gap(graph: Graph, size: int) -> float:
    """1 - the factor by which one exchange shrinks distances from the mean: the geometric mean over a period."""
    period, mean = graph.period(size), np.full((size, size), 1 / size)

    def matrix(step):
        rows = graph.mixing(step, size)
        return np.array([[row.get(j, 0.0) for j in range(size)] for row in rows])

    if not period:  # at random: E W^T W, where W^T W = W, is known in closed form for a matching of all
        assert np.allclose(matrix(0) @ matrix(0), matrix(0))
        return 1 - (0.5 - 0.5 / (size - 1)) ** 0.5
    product = np.eye(size)
    for step in range(period):
        product = matrix(step) @ product
    factor = np.linalg.norm(product - mean, 2)
    return 1 - (factor if factor > 1e-9 else 0.0) ** (1 / period)


@pytest.mark.parametrize("kind", ["complete", "exponential", "ring", "grid", "one_peer", "hypercube", "round_robin"])
def test_gaps_of_graphs(kind):
    row = next(
        line
        for line in (PAGES / "gossip.md").read_text().splitlines()
        if f"| `{kind}`" in line or f", `{kind}`" in line
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [float(cell) for cell in cells[1:5]] == [round(gap(Graph(kind=kind), n), 3) for n in (4, 8, 16, 32)]
    partners = max(len(r) - 1 for r in Graph(kind=kind).mixing(0, SIZE))
    assert cells[6] == f"{partners * 4 * NUMEL // 10**6} MB"


def test_gap_of_random_matchings():
    graph, sizes = Graph(kind="matching"), (4, 8, 16, 32)
    row = next(line for line in (PAGES / "gossip.md").read_text().splitlines() if "`matching`" in line)
    assert [float(cell) for cell in row.split("|")[2:6]] == [round(gap(graph, n), 3) for n in sizes]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 1000))
    x -= x.mean(0)
    shrunk = []
    for step in range(200):
        w = np.array([[row.get(j, 0.0) for j in range(8)] for row in graph.mixing(step, 8)])
        shrunk.append(np.square(w @ x).sum() / np.square(x).sum())
    assert np.sqrt(np.mean(shrunk)) == pytest.approx(1 - gap(graph, 8), abs=0.01)


def test_bytes_of_quantizers():
    text = (PAGES / "quantized.md").read_text()
    codecs = {
        "bytegrad()": MinMax8(),
        "natural()": Natural(),
        "qsgd(8)": Qsgd(),
        "qsgd(4)": Qsgd(bits=4),
        "int4()": Int4(),
        "terngrad()": Ternary(),
        "onebit()": Sign(),
    }
    for name, codec in codecs.items():
        cells = next(line for line in text.splitlines() if line.startswith(f"| `{name}`")).split("|")
        num_bytes = codec.nbytes(NUMEL)
        assert float(cells[3]) == pytest.approx(num_bytes / NUMEL, abs=6e-4), name
        assert cells[4].strip() == f"{2 * (SIZE - 1) / SIZE * num_bytes / 1e6:.1f} MB", name


def test_bytes_of_sparsifiers():
    text = (PAGES / "sparse.md").read_text()
    sent = {
        "topk": (SIZE - 1) * TopK().nbytes(NUMEL),
        "blocktopk": (SIZE - 1) * BlockTopK().nbytes(NUMEL),
        "randomk": 2 * (SIZE - 1) / SIZE * RandomK().nbytes(NUMEL),
    }
    for name, num_bytes in sent.items():
        cells = next(line for line in text.splitlines() if line.startswith(f"| `{name}(ratio)`")).split("|")
        assert cells[3].strip() == f"{num_bytes / 1e6:.1f} MB", name


@pytest.mark.parametrize("model", ["vgg", "gpt", "lstm", "wide"])
def test_measured_step_times_are_those_of_the_results(model):
    """Columns headed by a model hold how many times faster than DDP, and in brackets the time over computing alone."""
    results = next((ROOT / "benchmarks" / "results").glob(f"steps_{model}_*.md")).read_text()
    arms = {"`qsgd(4)`": "qsgd4", "torch's hook, rank 1": "ddp-powersgd", "`powersgd()` (rank 4)": "powersgd"}
    found = 0
    for page in ("quantized.md", "powersgd.md"):
        lines = (PAGES / page).read_text().splitlines()
        head = next((k for k, line in enumerate(lines) if f" {model} |" in line), None)
        if head is None:
            continue
        column = [cell.strip() for cell in lines[head].split("|")].index(model)
        for line in lines[head + 2 :]:
            if not line.startswith("|"):
                break
            cells = [cell.strip() for cell in line.split("|")]
            if not cells[column]:
                continue
            arm = arms.get(cells[1], cells[1].strip("`"))
            row = next(r for r in results.splitlines() if r.startswith(f"| {arm} | {model} |"))
            ratios = re.findall(r"([\d.]+)x \(", row)
            assert re.findall(r"[\d.]+", cells[column]) == ratios[: len(re.findall(r"[\d.]+", cells[column]))], line
            found += 1
    assert found


PLACES = {
    "exact.md": ["bf16", "ddp"],
    "quantized.md": ["bytegrad", "qsgd", "qsgd4", "terngrad", "natural", "int4", "onebit", "onebit(warmup_steps=50)"],
    "powersgd.md": ["powersgd(rank=4)", "powersgd(rank=2)", "powersgd(rank=1)", "ddp-powersgd"],
    "sparse.md": ["topk", "topk(ratio=0.04)", "topk(warmup_steps=50)", "topk_dgc", "blocktopk", "randomk"],
    "late.md": ["late", "local_sgd(period=1,delay_steps=1)"],
    "local.md": ["local_sgd", "local_sgd(period=1,delay_steps=1)", "ddp-postlocal"],
    "async.md": ["async_average", "async_average(warmup_steps=70)"],
    "diloco.md": ["diloco", "diloco(averaging=int4)", "streaming_diloco", "sparse_loco"],
    "index.md": ["onebit", "powersgd(rank=4)", "topk", "topk_dgc", "blocktopk", "randomk", "ddp-powersgd", "late"],
}


@pytest.mark.parametrize("page", PLACES)
def test_measured_accuracies_are_those_of_the_results(page):
    rows: dict[str, set[str]] = {}
    for path in (ROOT / "benchmarks" / "results").glob("accuracy*.md"):
        text = path.read_text()
        lines = [line for line in text.splitlines() if line.startswith("|")]
        column = [cell.strip() for cell in lines[0].split("|")].index("vs bf16")
        earlier = "`powersgd` is of rank 1 here" in text
        for line in lines[2:]:
            cells = [cell.strip() for cell in line.split("|")]
            name = cells[1] if cells[1] != "powersgd" else f"powersgd(rank={1 if earlier else 4})"
            rows.setdefault(name, set()).add(cells[column].replace("+0.00", "0.00"))
    text = (PAGES / page).read_text()
    for arm in PLACES[page]:
        assert any(points in text for points in rows[arm]), f"{arm} has {rows[arm]}, which is not on {page}"


def test_measured_timelines_are_those_of_the_results():
    text = (ROOT / "docs" / "timelines.md").read_text()
    folder = next((ROOT / "benchmarks" / "results").glob("timelines_*"))
    for plan in ("allreduce", "bytegrad"):
        timeline = load(Timeline, folder / plan / "rank0.json")
        assert timeline.plan == load(SyncPlan, folder / plan / "plan.json").hash
        cells = next(line for line in text.splitlines() if line.startswith(f"| {plan} |")).strip("|").split("|")[1:]
        measured = [cell.partition("/")[0].strip() for cell in cells]
        assert measured == [value for _, value in comparison(measured_of([timeline], 1), None)[1]]


def test_each_promise_names_laws_of_the_suite():
    """Each paragraph of `docs/guarantees.md` names tests that hold what it promises."""
    page = (ROOT / "docs" / "guarantees.md").read_text()
    folders = (ROOT / "tests", ROOT / "bench" / "tests")
    tests = {path: path.read_text() for folder in folders for path in folder.rglob("test_*.py")}
    laws = {name for text in tests.values() for name in re.findall(r"def (test_\w+)\(", text)}
    promises = page.split("\n**")[1:]
    assert len(promises) > 15
    for promise in promises:
        named = re.findall(r"`(test_\w+)`", promise)
        files = re.findall(r"`(tests/[\w/]+\.py)`", promise)
        assert named or files, promise
        assert laws.issuperset(named), set(named) - laws
        assert all(ROOT / file in tests for file in files), files


def test_each_note_stands_once_and_is_on_the_page_of_concepts():
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    written = [name for text in sources for name in re.findall(r"Note \[([^]]+)\]: ", text)]
    referred = {name for text in sources for name in re.findall(r"Note \[([^]]+)\]", text)}
    rows = re.findall(
        r"^\| ([^|`]+) \| `(pliant[\w.]+)` \|$", (ROOT / "docs" / "concepts.md").read_text(), re.MULTILINE
    )
    assert len(written) == len(set(written)) == len(rows) == 18
    assert set(written) == referred == {name for name, _ in rows}
    for name, module in rows:
        assert f"Note [{name}]: " in (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").read_text()


@pytest.mark.parametrize("name", sorted(set(pliant.__all__) - EXPLAINED))
def test_the_example_of_each_public_name_runs(name):
    tests = doctest.DocTestFinder(recurse=False).find(getattr(pliant, name), name, globs=vars(EXAMPLES[name]).copy())
    assert tests[0].examples, f"pliant.{name} has no example"
    output: list[str] = []
    failed = doctest.DocTestRunner().run(tests[0], out=output.append).failed
    assert failed == 0, "".join(output)


def _scripts(page):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/install.md", "docs/start.md"])
def test_scripts_of_the_first_pages_run_as_they_are(page):
    scripts = _scripts(page)
    assert scripts
    for script in scripts:
        exec(compile(script, page, "exec"), {})


@pytest.mark.processes
def test_the_script_of_the_readme_runs_in_two_processes(tmp_path):
    (script,) = _scripts("README.md")
    ranks = fork(script, 2, tmp_path)
    assert [rank.wait(timeout=250) for rank in ranks] == [0, 0], said(tmp_path, 0) + said(tmp_path, 1)
    assert "onebit" in said(tmp_path, 0)


@pytest.mark.extended
def test_the_script_of_the_readme_runs_under_torchrun(tmp_path):
    (script,) = _scripts("README.md")
    file = tmp_path / "train.py"
    file.write_text(script)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "onebit" in done.stdout


def _said(path):
    """Return the constant parts of all strings of a module, adjoining ones joined."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "\0".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_members_of_the_reference_are_in_their_modules():
    """The builder says nothing about one that is not there."""
    lines = (ROOT / "docs" / "api.md").read_text().splitlines()
    missing: dict[str, list[str]] = {}
    for above, line in itertools.pairwise(lines):
        if (found := re.search(r"members: \[(.+?)\]", line)) is None or "pliant_bench" in above:
            continue  # the laboratory need not be here
        place = pkgutil.resolve_name(name := above.removeprefix("::: ").strip())
        known = {*dir(place), *getattr(place, "__annotations__", {})}
        missing |= {name: names} if (names := sorted(set(found[1].split(", ")) - known)) else {}
    assert missing == {}


def test_messages_of_the_troubleshooting_page_are_in_the_source():
    said = "\n".join(words for path in (ROOT / "src").rglob("*.py") for words in _said(path))
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE
    )
    messages = [row for row in rows if row != "message" and not row.startswith("---")]
    assert len(messages) > 30
    missing = [
        (message, part)
        for message in messages
        for part in (each.strip(" ;,:") for each in message.removesuffix(" (a warning)").split("..."))
        if part and part not in said
    ]
    assert not missing
