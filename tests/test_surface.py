"""Promises about the package as a whole."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

import pliant
import rows
from pliant.algorithms.by_name import plan_of_text

SOURCE = Path(pliant.__file__).parent
LABORATORY = Path(__file__).parents[1] / "bench" / "pliant_bench"
MODULES = [path for folder in (SOURCE, LABORATORY) for path in sorted(folder.rglob("*.py"))]
DOCS = Path(__file__).parents[1] / "docs"


NO_NOUNS = ("What", "Of", "How", "Where", "Who", "That", "So", "To", "From", "Whose", "Whoever")
"""First words of a sentence that goes on where a name left off."""


def below(path):
    """Return a module's path below the folder that is searched for packages."""
    return path.relative_to((SOURCE if SOURCE in path.parents else LABORATORY).parent)


ROOMS = {str(room): [*paths] for room, paths in groupby(MODULES, lambda path: Path(*below(path).parts[:2]))}


def files(check):
    """Turn a check of one file into a test of all files of a room: one for each would take longer than the checks."""

    def test(room):
        for path in ROOMS[room]:
            check(path)

    test.__doc__ = check.__doc__
    return pytest.mark.parametrize("room", ROOMS)(test)


@files
def test_all_names_what_a_module_offers(path):
    if path.with_suffix(".pyi").exists():  # its names are handed on lazily, and stand in the stub
        module = import_module(".".join(path.parent.relative_to(SOURCE.parent).parts))
        assert all(hasattr(module, name) for name in module.__all__)
        return
    tree, listed = ast.parse(path.read_text()), None
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.AnnAssign(target=ast.Name(id="__all__")):
                listed = ast.literal_eval(node.value)
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
    assert text.count("\n") <= 279
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node, clean=False)
            length = node.end_lineno - node.lineno + 1 - (documented.count("\n") + 1 if documented else 0)
            assert length <= 60, f"{node.name} has {length} lines"
            if path.parent.name != "integrations":  # whose hooks take what their framework passes
                assert node.name.startswith("_") or node.args.kwarg is None, f"{node.name} swallows options"


@files
def test_a_docstring_begins_with_a_noun_or_a_verb(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node) or "A module or a function without one"
            first = text.partition(" ")[0]
            assert first not in NO_NOUNS, text
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
    "pliant.metrics",
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


@cache
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


def test_the_glossary_has_one_line_for_each_class():
    page = (DOCS / "glossary.md").read_text()
    words = re.findall(r"^\| ((?!class)[a-z][^|]*) \|", page, re.MULTILINE)
    classes = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert len(words) == len(set(words))
    assert sorted(classes) == sorted(public_classes())


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


def module_name(path):
    return ".".join(below(path).with_suffix("").parts).removesuffix(".__init__")


def imports_of(tree, modules):
    """Return the modules of ours that a module imports, anywhere in it: for type checkers, or in a function, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ([name for name in inner if name in modules] or [node.module])


def test_modules_do_not_import_each_other_in_a_circle():
    names = {module_name(path): path for path in MODULES}
    imports = {name: {*imports_of(ast.parse(path.read_text()), names)} - {name} for name, path in names.items()}
    TopologicalSorter(imports).prepare()


def test_a_class_is_abstract_or_final():
    """Who overrides a method has it from a base that nothing makes: empty moments, a protocol, an abstract class."""
    made, classes = set(), {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                    made.add(name)
                case ast.ClassDef(name=name):
                    classes[name] = node

    def methods(node):
        return {f.name for f in node.body if isinstance(f, ast.FunctionDef) and not f.name.startswith("__")}

    def bases(node):
        for base in node.bases:
            if (name := ast.unparse(base).partition("[")[0]) in classes:
                yield classes[name]
                yield from bases(classes[name])

    overridden = {
        (node.name, base.name): methods(node) & methods(base)
        for node in classes.values()
        for base in bases(node)
        if base.name in made
    }
    assert {pair: names for pair, names in overridden.items() if names} == {}


def test_the_face_is_complete_sorted_and_described():
    assert pliant.__all__ == sorted(pliant.__all__)
    page = rows.filled((DOCS / "api.md").read_text())
    for name in pliant.__all__:
        thing = getattr(pliant, name)
        assert thing.__doc__, f"pliant.{name} has no docstring"
        assert f".{name}\n" in page, f"pliant.{name} is not in docs/api.md"
    assert set(dir(pliant)) == set(pliant.__all__)
    with pytest.raises(AttributeError, match="No pliant attribute auto"):
        _ = pliant.auto


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_examples_in_the_docs_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    for example in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(example, str(path), "exec"), {"__name__": "__example__"})


def test_every_module_imports():
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        if ".kernels.triton" in name and find_spec("triton") is None:
            continue  # which no environment for the CPU has; codecs/test_triton.py imports them
        framework = name.partition("pliant.integrations.")[2]
        if framework and framework not in ("fabric", "loop") and find_spec(framework) is None:
            continue  # tests/integrations imports it where its framework is
        import_module(name)
