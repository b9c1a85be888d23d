"""What a search has found is the start of the next run: used where it holds, refused with a line where it does not."""

import json
import math
from dataclasses import replace

import pytest
import torch

import pliant
from autotune.made_up_runs import FAST, SLOW, WORKLOAD, Sky, clock, few
from pliant.autotune.experience_store import ExperienceStore, setup_of
from pliant.autotune.recall import recall
from pliant.netmodel import Overheads
from pliant.network.rank_places import ranks_of_hosts
from pliant.planner import BASELINES, OWN_EXCHANGE, Trial, challenge
from pliant.planner.experience import Experience, load_experience
from pliant.spec import save

__all__ = ["clock", "few"]

pytestmark = pytest.mark.usefixtures("few")

KEPT = BASELINES["ddp-bf16"]


def setup(numel=4, **changed):
    made = setup_of(torch.nn.Linear(numel, 2), "SGD", 1.1, ["a", "b"], [1, 1])
    return replace(made, **changed)


def experience(of=None, kept=KEPT, kept_s=0.2, topology=SLOW):
    return Experience(
        setup=of or setup(),
        workload=WORKLOAD,
        topology=topology,
        overheads=Overheads(),
        coefficients=tuple(Overheads().coefficients().tolist()),
        trials=(Trial(genes=kept, steps_s=(kept_s,)), Trial(genes=BASELINES["onebit"], status="failed", reason="NaN")),
        predicted_s=(0.25, 0.1),
        ratios=(1.0, 1.5),
        kept=kept,
        kept_s=kept_s,
    )


def test_an_experience_is_read_as_it_was_written_and_says_what_was_predicted_and_seen(tmp_path):
    path = tmp_path / "a" / "b.json"
    save(experience(), path)
    assert load_experience(path, setup()) == experience()
    text = experience().plans_text
    assert "250 ms, 200 ms" in text
    assert "failed: NaN" in text


def path_text(path, kept=KEPT):
    save(experience(kept=kept), path)
    return path.read_text()


def with_times(path, steps_s):
    body = json.loads(path_text(path))
    body["trials"][0]["steps_s"] = steps_s
    return json.dumps(body)


REFUSED = {
    "damaged": (lambda path: path.write_text('{"pliant": "Exper'), "expected"),
    "another kind": (lambda path: save(WORKLOAD, path), "Experience"),
    "another format": (
        lambda path: path.write_text(json.dumps({"pliant": "Experience", "format": 9})),
        "format",
    ),
    "another model": (lambda path: save(experience(setup(5)), path), "12 elements in all, and this one"),
    "another optimizer": (lambda path: save(experience(setup(optimizer="AdamW")), path), "AdamW"),
    "stale": (lambda path: save(experience(setup(release="0.0.1")), path), "Pliant 0.0.1"),
    "strange settings": (
        lambda path: path.write_text(path_text(path).replace('"bits": 16', '"bits": 15')),
        "settings that no search tries",
    ),
    "settings of no node": (
        lambda path: path.write_text(path_text(path, BASELINES["bytegrad"]).replace('"bits": 8', '"bits": 3')),
        "quantized has no node with the settings {'bits': 3}",
    ),
    "settings of another type": (
        lambda path: path.write_text(path_text(path, BASELINES["topk"]).replace('"ratio": 0.01', '"ratio": "all"')),
        "experience",
    ),
    "a folder": (lambda path: path.mkdir(), "directory"),
    "a trial without a time": (lambda path: path.write_text(with_times(path, [])), "no step time above 0"),
    "a trial in no time": (lambda path: path.write_text(with_times(path, [0.2, 0.0])), "no step time above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_of_something_else_is_refused_with_a_line_and_not_replaced(tmp_path, caplog, case):
    make, why = REFUSED[case]
    path = tmp_path / "experience.json"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    store = ExperienceStore(path, setup())
    assert store.find() == (None, False)
    (note,) = store.notes
    assert str(path) in note
    assert why in note
    assert [record.message for record in caplog.records] == [f"auto: {note}"]
    store.write(experience())
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_place_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    store = ExperienceStore(tmp_path / "file" / "folder", setup())
    assert store.find() == (None, False)
    store.write(experience())
    store.write(experience())
    assert len(caplog.records) == len(store.notes) <= 2
    assert "not written" in caplog.records[-1].message


def test_a_name_that_no_disk_takes_is_said_and_raises_nothing(caplog):
    store = ExperienceStore("a" * 300, setup())
    assert store.find() == (None, False)
    store.write(experience())
    assert "not written" in caplog.records[-1].message


def test_what_was_kept_of_a_whole_model_is_a_start_only_where_it_is_divided(tmp_path):
    path = tmp_path / "experience.json"
    save(experience(), path)
    store = ExperienceStore(path, setup(num_shards=2))
    assert store.find() == (experience(), False)
    assert "of other ranks, machines, shards or quality, a start" in store.notes[0]


@pytest.mark.parametrize("equal_weights", [False, True])
def test_a_plan_that_this_run_may_not_take_is_not_put_in_force_at_once(tmp_path, equal_weights):
    auto = pliant.Auto(experience=tmp_path, equal_weights=equal_weights)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(place):
        names, _ = ranks_of_hosts(place.comm, None)
        of = setup_of(model, "SGD", auto.quality, names, [1])
        save(experience(of, BASELINES["zero-owner"]), tmp_path / of.file_name)
        return recall(model, optimizer, auto, place.comm).known is None

    assert pliant.run_world(1, body) == [equal_weights]


class Breaking(Sky):
    """A run in which no adopted plan can be put in force."""

    def adopt(self, plan):
        super().adopt(plan)
        self.trial.fail("ArithmeticError: broken")

    def fall_back(self, plan):
        self.switch(plan)


def test_a_plan_that_could_not_be_adopted_is_not_what_the_next_run_begins_with(clock, tmp_path):
    auto = pliant.Auto(max_trials=3, watch=False, experience=tmp_path)

    def body(place):
        sky = Breaking(clock, lambda _: SLOW)
        sky.fly(auto, place.comm, 120)
        return sky.plan.hash, sky.tuner.choice

    exact = OWN_EXCHANGE[False]
    for plan, choice in pliant.run_world(2, body):
        assert plan == choice.plan.hash == exact.plan("auto").hash
        assert not choice.adopted
    left = load_experience(next(tmp_path.iterdir()))
    assert (left.kept, left.kept_s) == (exact, 0.0)
    assert "broken" in left.refused[0]


def test_a_folder_has_a_file_for_each_setup_and_gives_the_same_model_elsewhere_as_a_start(tmp_path):
    elsewhere = setup(machines=("c", "d"))
    for of in (setup(), elsewhere, setup(5)):
        ExperienceStore(tmp_path, of).write(experience(of))
    assert len(list(tmp_path.iterdir())) == 3
    assert ExperienceStore(tmp_path, setup()).find() == (experience(), True)
    found, is_ours = ExperienceStore(tmp_path, setup(machines=("e", "f"))).find()
    assert found is not None
    assert found.setup.shapes == setup().shapes
    assert not is_ours
    assert ExperienceStore(None, setup()).find() == (None, False)


def flown(clock, network, where, num_steps=120, quality=1.0):
    """Fly one run on a network; return the plan, the experience left, the number of its trials, and its explanation."""
    auto = pliant.Auto(max_trials=8, quality=quality, watch=False, experience=where)

    def body(place):
        sky = Sky(clock, network if callable(network) else lambda _: network)
        sky.fly(auto, place.comm, num_steps)
        return sky.plan, [plan.hash for _, plan in sky.log], sky.tuner.explanation

    found = pliant.run_world(2, body)
    assert len({plan.hash for plan, _, _ in found}) == len({text for *_, text in found}) == 1
    files = sorted(where.glob("*.json")) if where is not None else []
    left = load_experience(files[0]) if files else None
    plan, log, text = found[0]
    return plan, left, log, text


@pytest.mark.parametrize("network", [SLOW, pytest.param(FAST, marks=pytest.mark.extended)])
def test_a_second_run_keeps_the_plan_of_the_first_after_few_trials_and_without_a_probe(clock, tmp_path, network):
    first, left, _, text = flown(clock, network, tmp_path)
    assert left.complete
    assert "Plans that were tried, predicted and seen:" in text
    probes = len(clock.probes)
    second, again, log, text = flown(clock, network, tmp_path)
    assert second.hash == first.hash
    assert len(clock.probes) == probes
    assert len(again.trials) <= 1 + 3  # and the watched steps
    if left.kept.base.settings["bits"] != 32:
        assert log[0] == left.kept.plan("auto").hash  # after the watched steps
    assert f"Experience from {tmp_path}" in text


@pytest.mark.parametrize(
    "wrong", ["time", "both", *(pytest.param(wrong, marks=pytest.mark.extended) for wrong in ("network", "plan"))]
)
def test_a_wrong_experience_ends_in_the_plan_that_none_would(clock, tmp_path, wrong):
    right, left, _, _ = flown(clock, SLOW, tmp_path)
    kept = BASELINES["per-tensor"] if wrong in ("plan", "both") else left.kept
    topology = FAST if wrong in ("network", "both") else SLOW
    kept_s = {"time": 10.0, "network": 0.1, "both": 0.1}.get(wrong, 0.0)
    (path,) = tmp_path.iterdir()
    save(replace(left, kept=kept, kept_s=kept_s, topology=topology), path)
    chosen, _, _, text = flown(clock, SLOW, tmp_path)
    assert chosen.hash == right.hash
    if kept_s:
        assert "all was measured anew" in text


def test_an_interrupted_search_keeps_what_it_knows(clock, tmp_path, monkeypatch):
    for name in ("_TIE", "SHARE"):  # so that a plan of another family is tried, from step 6 on
        monkeypatch.setattr(challenge, name, math.inf)
    _, left, log, _ = flown(clock, SLOW, tmp_path, num_steps=9)
    assert not left.complete
    assert log
    assert len(left.trials) == len(left.predicted_s) == 2
    assert flown(clock, SLOW, tmp_path)[1].complete


def test_nothing_is_kept_where_nobody_wants_it(clock, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flown(clock, SLOW, None)
    assert list(tmp_path.iterdir()) == []
