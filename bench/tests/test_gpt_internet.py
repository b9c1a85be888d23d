"""`examples/gpt_internet.py`: it learns, goes on to the bit, survives a lost site, and takes its page's commands."""

import copy
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import pliant

_ROOT = Path(__file__).parents[2]
_SCRIPT = _ROOT / "examples" / "gpt_internet.py"
_PAGE = _ROOT / "docs" / "over-the-internet.md"
_SMALL = ["--size", "0.06M", "--windows", "2", "--connections", "1"]


@pytest.fixture
def recipe(monkeypatch):
    """Return the module of the recipe; ranks that are threads make their models in turns, from one generator."""
    monkeypatch.syspath_prepend(str(_SCRIPT.parent))
    module, turn = importlib.import_module("gpt_internet"), threading.Lock()
    task_of = module.task_of

    def in_turns(options, rank):
        with turn:
            task = task_of(options, rank)
            first = task.model()
        return replace(task, model=lambda: copy.deepcopy(first))

    monkeypatch.setattr(module, "task_of", in_turns)
    yield module
    sys.modules.pop("gpt_internet", None)


@pytest.fixture
def text(tmp_path):
    """Return a folder of twenty small texts."""
    folder = tmp_path / "text"
    folder.mkdir()
    for k in range(20):
        (folder / f"{k:02}.txt").write_text(f"the sun rises over island {k} and sets behind island {k + 1}. " * 40)
    return folder


def trained(recipe, text, *arguments, size=2):
    """Train on threads; return each rank's result."""
    given = [*_SMALL, "--text", str(text), *arguments]
    run = lambda place: recipe.train(recipe.parsed(given), recipe.Rank(place.rank, place.size, place.process_group))  # noqa: E731
    return pliant.run_world(size, run, timeout_s=60)


def test_sites_learn_and_say_how_far_they_are(recipe, text):
    first, second = trained(recipe, text, "--steps", "46", "--judge-every", "15", "--lr", "0.02")
    assert [step for step, _, _ in first["curve"]] == [14, 29, 44]
    assert first["perplexity"] == second["perplexity"] < 0.7 * first["curve"][0][2]
    assert (first["first"], second["first"]) == (True, False)
    assert 0 < first["sent_bytes"] < 46 * 70_000  # a step of 16-bit data parallelism sends twice as much


def test_a_broken_run_goes_on_to_the_bit(recipe, text, tmp_path):
    """Exchanges are on their way at step 11: a third of the weights is sent after the tenth, and arrives two later."""
    arguments = ["--steps", "24", "--save-every", "11", "--save"]
    whole = trained(recipe, text, *arguments, str(tmp_path / "whole"))
    broken = trained(recipe, text, *arguments, str(tmp_path / "broken"), "--stop", "13")
    assert [each["steps"] for each in broken] == [13, 13]
    again = trained(recipe, text, *arguments, str(tmp_path / "broken"))
    assert [each["weights"] for each in again] == [each["weights"] for each in whole]
    assert whole[0]["weights"] != whole[1]["weights"]  # sites differ between exchanges
    assert again[0]["perplexity"] == whole[0]["perplexity"]


def test_others_go_on_when_a_site_is_lost(recipe, text, monkeypatch):
    step_of = recipe.make_step

    def lost(model, optimizers, task, step, options, rank):
        if rank.number == 1 and step == 7:
            raise ConnectionError("this site has lost its power")
        step_of(model, optimizers, task, step, options, rank)

    monkeypatch.setattr(recipe, "make_step", lost)
    train = recipe.train

    def site(options, rank):
        try:
            return train(options, rank)
        except ConnectionError:
            return None

    monkeypatch.setattr(recipe, "train", site)
    first, second, third = trained(recipe, text, "--steps", "40", "--elastic", size=3)
    assert second is None
    assert first["steps"] == third["steps"] == 40
    assert first["perplexity"] == third["perplexity"]


def test_elastic_runs_and_checkpoints_are_two_ways(recipe, capsys):
    with pytest.raises(SystemExit):
        recipe.parsed(["--elastic", "--save", "folder"])
    assert "brings lost ranks back itself" in capsys.readouterr().err


def test_mistakes_of_the_page_are_refused_in_its_words(recipe, text, tmp_path):
    page = " ".join(_PAGE.read_text().split())

    def said(*arguments):
        with pytest.raises(ValueError, match=r"\w") as found:
            trained(recipe, text, *arguments)
        return str(found.value)

    for words in (
        said("--optimizer", "AdamW", "--plan", "muloco"),
        said("--optimizer", "AdamW", "--plan", "pier"),
    ):
        assert words in page
    other = tmp_path / "other"
    other.mkdir()
    for k in range(20):
        (other / f"{k}.txt").write_text("0123456789" * 100)

    def apart(place):
        given = [*_SMALL, "--text", str([text, other][place.rank])]
        recipe.train(recipe.parsed(given), recipe.Rank(place.rank, place.size, place.process_group))

    with pytest.raises(ValueError, match="the model of ranks 1 differs from that of rank 0") as found:
        pliant.run_world(2, apart, timeout_s=60)
    assert str(found.value).split(" (")[0] in page


def test_commands_of_the_page_and_of_the_recipe_are_ones_that_it_takes(recipe):
    told = re.sub(r"\\\n\s*", "", _PAGE.read_text() + recipe.__doc__)
    commands = re.findall(r"(?:examples/gpt_internet\.py)(.*)$", told, re.MULTILINE)
    commands = [each.split("`")[0] for each in commands if each.strip().startswith("--")]
    assert len(commands) >= 6
    for command in commands:
        recipe.parsed(shlex.split(command, comments=True))
    assert "pliant emulate --topology four-continents" in told


@pytest.mark.processes
@pytest.mark.extended
def test_a_site_of_two_ranks_divides_the_model(text, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(_SCRIPT)]
    command += [*_SMALL, "--text", str(text), "--steps", "40", "--shards", "2", "--optimizer", "AdamW"]
    command += ["--save", str(tmp_path / "saved"), "--save-every", "11"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    results = []
    for more in ([], ["--save", str(tmp_path / "broken"), "--stop", "13"], ["--save", str(tmp_path / "broken")]):
        full = [*command, *more, "--json", str(tmp_path / "result.json")]
        done = subprocess.run(full, env=env, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads((tmp_path / "result.json").read_text()))
    whole, broken, again = results
    assert broken["steps"] == 13
    assert (again["weights"], again["perplexity"]) == (whole["weights"], whole["perplexity"])
