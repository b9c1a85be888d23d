"""Promises about the package as a whole."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pliant
from pliant.algorithms import plan_of_text

SOURCE = Path(pliant.__file__).parent
LABORATORY = Path(__file__).parents[1] / "bench" / "pliant_bench"
MODULES = [path for folder in (SOURCE, LABORATORY) for path in sorted(folder.rglob("*.py"))]
DOCS = Path(__file__).parents[1] / "docs"


def below(path):
    """Return a module's path below the folder that is searched for packages."""
    return path.relative_to((SOURCE if SOURCE in path.parents else LABORATORY).parent)


files = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(below(path)))


@files
def test_all_names_what_a_module_offers(path):
    if path.with_suffix(".pyi").exists():  # its names are handed on lazily, and stand in the stub
        module = import_module(".".join(path.parent.relative_to(SOURCE.parent).parts))
        assert all(hasattr(module, name) for name in module.__all__)
        return
    tree = ast.parse(path.read_text())
    listed = (
        next(
            (
                ast.literal_eval(node.value)
                for node in tree.body
                if isinstance(node, (ast.Assign, ast.AnnAssign))
                and (node.targets[0] if isinstance(node, ast.Assign) else node.target).id == "__all__"
            ),
            None,
        )
        if any("__all__" in ast.dump(node) for node in tree.body)
        else None
    )
    assert listed is not None, f"{path} has no __all__"
    assert len(set(listed)) == len(listed)
    defined = {
        n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")
    }
    if path.name != "__init__.py":
        assert defined <= set(listed), f"{sorted(defined - set(listed))} are public, but not in __all__"


@files
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node, clean=False)
            length = node.end_lineno - node.lineno + 1 - (documented.count("\n") + 1 if documented else 0)
            assert length <= 60, f"{node.name} has {length} lines"
            assert node.name.startswith("_") or node.args.kwarg is None, f"{node.name} swallows options"


@files
def test_a_docstring_begins_with_a_noun_or_a_verb(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node) or "A module or a function without one"
            first = text.partition(" ")[0]
            assert first not in ("What", "Of", "How", "Where", "Who", "That", "So"), text
            assert len(text.split()) > 3, f"{text!r} says too little"


@files
def test_nothing_forbidden(path):
    found = re.findall(
        r"NotImplementedError|\bTODO\b|\bFIXME\b|0\.0\.0\.0|pickle\.loads?\b|shell=True", path.read_text()
    )
    assert found == []


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


WITHOUT_TORCH = [
    "pliant",
    "pliant.algorithms",
    "pliant.algorithms.by_name",
    "pliant.layouts",
    "pliant.spec",
    "pliant.cli.main",
    "pliant.cli.embed",
    "pliant.cli.emulate",
    "pliant.cli.schedule",
    "pliant.cli.simulate",
    "pliant.network",
    "pliant.recsys",
    "pliant.schedules",
    "pliant.simulator",
]


def test_they_start_without_torch_and_change_nothing():
    """One after the other in one process: who needs torch is the first after which it is there."""
    code = (
        "import os, sys, threading; before = dict(os.environ); import importlib\n"
        f"for name in {WITHOUT_TORCH!r}:\n"
        "    importlib.import_module(name)\n"
        "    print(name, 'torch' in sys.modules, dict(os.environ) == before, threading.active_count())"
    )
    assert in_fresh_python(code).splitlines() == [f"{name} False True 1" for name in WITHOUT_TORCH]


def public_classes():
    """Return class -> modules of Pliant that define it."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        module = ".".join(below(path).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return found


def test_a_class_name_means_one_thing():
    assert {name: modules for name, modules in public_classes().items() if len(modules) > 1} == {}


def test_what_was_renamed_is_where_the_table_says():
    """Names of `docs/renamed.md` exist by their new names, no class by an old one, and older texts are still read."""
    page, classes = (DOCS / "renamed.md").read_text(), public_classes()
    tables = {
        head: [re.findall(r"`([^`]+)`", line) for line in body.splitlines() if line.startswith("| `")]
        for head, body in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    }
    counts = {"Modules": 100, "Classes": 150, "Functions": 120, "Methods": 5, "Texts": 5}
    assert {head: len(rows) >= counts[head] for head, rows in tables.items()} == dict.fromkeys(counts, True)

    def file_of(module):
        return (SOURCE.parent if module.startswith("pliant.") else LABORATORY.parent) / Path(*module.split("."))

    for _, new in tables["Modules"]:
        assert file_of(new).with_suffix(".py").exists() or file_of(new).is_dir(), new
    for old, new, module in tables["Classes"] + tables["Functions"]:
        text = file_of(module).with_suffix(".py").read_text()
        assert re.search(rf"^((class|def) {new}\b|{new}(:| =))", text, re.MULTILINE), (old, new)
        assert f"pliant.{old.rpartition('.')[0]}" not in classes.get(old.rpartition(".")[2], []), old
    for old, new, module in tables["Methods"]:
        assert f"    def {new}(" in file_of(module).with_suffix(".py").read_text(), old
    settings = {"delayed": "(int4)", "with_target": "(topk, exposed_share=0.1)"}
    for old, new in tables["Texts"]:
        text = settings.get(new, "")
        assert pliant.parse(old + text) == pliant.parse(new + text)
        assert plan_of_text(old + text) == plan_of_text(new + text)


def test_the_face_is_complete_sorted_and_described():
    assert pliant.__all__ == sorted(pliant.__all__)
    page = (DOCS / "api.md").read_text()
    for name in pliant.__all__:
        thing = getattr(pliant, name)
        assert thing.__doc__, f"pliant.{name} has no docstring"
        assert f".{name}\n" in page, f"pliant.{name} is not in docs/api.md"
    assert set(dir(pliant)) == set(pliant.__all__)
    with pytest.raises(AttributeError, match="No pliant attribute auto"):
        _ = pliant.auto


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_examples_in_the_docs_run(path):
    for example in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(example, str(path), "exec"), {"__name__": "__example__"})


def test_every_module_imports():
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        import_module(name)
