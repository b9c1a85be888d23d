import json
import subprocess
import sys

import pytest
import torch
import typer
from typer.testing import CliRunner

import pliant
from pliant.spec import load, save
from pliant_bench.harness import curve
from pliant_bench.harness.arms import POWERSGD_RANK, plan_of_arm
from pliant_bench.harness.command import bench
from pliant_bench.harness.metric import METRICS
from pliant_bench.harness.names import ARMS, PLIANT_ARMS, split_arms
from pliant_bench.harness.progress import Progress
from pliant_bench.harness.setup import MARK, MODELS, Setup, check
from pliant_bench.harness.wire import _powersgd_numel
from pliant_bench.models import TASKS


def _bench(*arguments):
    app = typer.Typer(add_completion=False)
    app.command()(bench)
    return CliRunner().invoke(app, arguments)


@pytest.mark.processes
def test_two_local_ranks_are_timed_and_reported(tmp_path):
    done = _bench(
        *("--algorithms", "compute,ddp,ddp-bf16,ddp-powersgd,bytegrad", "--hosts", "2", "--local", "--steps", "3"),
        *("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")),
    )
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "r.json").read_text())
    found = {r["arm"]: r for r in result["records"]}
    numel = sum(p.numel() for p in TASKS["cnn"].model().parameters())
    assert list(found) == ["compute", "ddp", "ddp-bf16", "ddp-powersgd", "bytegrad"]
    assert all(len(r["step_s"]) == 3 and min(r["step_s"]) > 0 for r in found.values())
    assert found["ddp"]["sent_bytes"] == 4 * numel  # a ring of two sends each element once
    assert found["ddp-bf16"]["sent_bytes"] == 2 * numel
    assert found["bytegrad"]["counted"]
    assert 1.0 <= found["bytegrad"]["sent_bytes"] / numel < 1.1  # one byte an element, and scales
    assert 0 < found["ddp-powersgd"]["sent_bytes"] < 0.05 * numel
    assert "Step times" in (tmp_path / "r.html").read_text()
    assert "made-up data" in done.output


def _write_task(folder):
    """Images of two classes, told apart by which half is bright."""
    g = torch.Generator().manual_seed(0)
    for part, num in (("train", 256), ("t10k", 64)):
        labels = torch.randint(0, 2, (num,), generator=g, dtype=torch.uint8)
        images = torch.randint(0, 100, (num, 8, 8), generator=g, dtype=torch.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 4 * int(label) : 4 * int(label) + 4] += 150
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, array.dim()]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + bytes(array.flatten().tolist()))


@pytest.mark.extended
@pytest.mark.processes
def test_two_local_ranks_train_to_an_accuracy(tmp_path):
    _write_task(tmp_path)
    done = _bench(
        *("--algorithms", "ddp-bf16,onebit_adam", "--target-accuracy", "0.9", "--seeds", "2", "--steps", "30"),
        *("--batch", "16", "--hosts", "2", "--local", "--data", str(tmp_path), "--json", str(tmp_path / "r.json")),
    )
    assert done.exit_code == 0, done.output
    records = json.loads((tmp_path / "r.json").read_text())["records"]
    runs = [r for r in records if r["kind"] == "train"]
    assert [(r["arm"], r["seed"]) for r in runs] == [(a, s) for s in (0, 1) for a in ("ddp-bf16", "onebit_adam")]
    assert all(r["final_accuracy"] >= 0.9 and r["time_to_target_s"] > 0 and not r["capped"] for r in runs)
    assert all([p["step"] for p in r["curve"]] == [25, 30] for r in runs)
    assert [r["kind"] for r in records].count("alone") == 1
    assert "time to 90%" in done.output


@pytest.mark.processes
@pytest.mark.extended
def test_ranks_that_differ_are_judged_by_what_they_come_to_together(tmp_path):
    _write_task(tmp_path)
    done = _bench(
        *("--train", "--algorithms", "ddp-bf16,local_sgd,ddp-postlocal,async_average,gossip,bounded_staleness"),
        *("--batch", "16", "--hosts", "2", "--local", "--data", str(tmp_path), "--json", str(tmp_path / "r.json")),
        *("--steps", "40", "--evaluate-every", "20", "--slow-host", "0.5"),
    )
    assert done.exit_code == 0, done.output
    records = json.loads((tmp_path / "r.json").read_text())["records"]
    found = {r["arm"]: r for r in records if r["kind"] == "train"}
    assert all(r["final_accuracy"] >= 0.9 and [p["step"] for p in r["curve"]] == [20, 40] for r in found.values())
    whole = found["ddp-bf16"]["sent_bytes"] * 2
    assert found["local_sgd"]["sent_bytes"] == pytest.approx(whole / 8, rel=0.01)  # without what evaluations send
    assert found["ddp-postlocal"]["sent_bytes"] == pytest.approx(whole * (0.2 + 0.8 / 8))


class _Free:
    """Arm at a free pace, of which each point is a number."""

    name, free = "gossip(free=1)", True

    def __init__(self, said):
        self.said, self.now = said, 0

    def copied_state(self):
        self.said.append(f"copy {self.now}")
        return {"weight": torch.tensor([float(self.now)])}

    def evaluated(self, state=None):
        self.said.append(f"judge {float(state['weight']) if state else self.now:g}")

    def sent_bytes(self):
        return 100.0 * sum(told.startswith("judge") for told in self.said)


class _Judges:
    metric = METRICS["images"]

    def judge(self, arm, losses, *, last, states):
        for state in states:
            arm.evaluated(state)
        return losses


@pytest.mark.parametrize(
    ("max_s", "others", "steps"), [(0.0, 4, [10, 20, 30, 40]), (25.0, 4, [10, 20, 30]), (0.0, 2, [10, 20])]
)
def test_at_a_free_pace_ranks_meet_only_when_the_training_is_over(monkeypatch, max_s, others, steps):
    said = []

    def busiest(values):
        said.append("meet")
        return [max(values[0], -others), *values[1:]] if len(values) == 1 else list(values)

    monkeypatch.setattr(curve, "busiest", busiest)
    monkeypatch.setattr(curve, "mean_states", lambda states: states)
    monkeypatch.setattr(curve, "emit", lambda kind, fields: None)
    arm = _Free(said)
    points = curve.Curve(arm, 0, _Judges(), 40, max_s)
    said.clear()
    for step in (10, 20, 30, 40):
        arm.now = step
        if points.reach(step, float(step), step / 100):
            break
    assert said == [f"copy {step}" for step in (10, 20, 30, 40)[: len(said)]]  # nobody has met anybody
    said.clear()
    points.end()
    judged = [told for told in said if told != "meet"]
    assert judged == [*(f"judge {step}" for step in steps[:-1]), f"judge {arm.now}"]  # the last: what it is at the end
    assert [(p["step"], p["time_s"], p["accuracy"]) for p in points.points] == [(s, s, s / 100) for s in steps]
    assert points.evaluation_sent == 200  # one to learn what it sends, and the last: copies are not sent by the run


@pytest.mark.processes
@pytest.mark.extended
def test_two_local_ranks_learn_characters(tmp_path):
    for k in range(10):
        (tmp_path / f"{k}.txt").write_text("the cat sat on the mat. " * 40)
    done = _bench(
        *("--task", "lm", "--target-perplexity", "4", "--algorithms", "ddp-bf16,diloco(period=10)", "--steps", "30"),
        *("--batch", "4", "--hosts", "2", "--local", "--data", str(tmp_path), "--json", str(tmp_path / "r.json")),
        *("--html", str(tmp_path / "r.html")),
    )
    assert done.exit_code == 0, done.output
    runs = [r for r in json.loads((tmp_path / "r.json").read_text())["records"] if r["kind"] == "train"]
    assert all(1 < r["final_perplexity"] < 8 for r in runs)  # of 14 characters; 1 is who knows the sentence
    assert "Perplexity over training time" in (tmp_path / "r.html").read_text()
    assert "time to 4" in done.output


@pytest.mark.extended
@pytest.mark.processes
def test_max_seconds_ends_an_arm_at_its_next_evaluation(tmp_path):
    _write_task(tmp_path)
    done = _bench(
        *("--train", "--algorithms", "ddp", "--max-seconds", "0.001", "--batch", "16", "--hosts", "2", "--local"),
        *("--data", str(tmp_path), "--json", str(tmp_path / "r.json")),
    )
    assert done.exit_code == 0, done.output
    (run,) = [r for r in json.loads((tmp_path / "r.json").read_text())["records"] if r["kind"] == "train"]
    assert run["capped"]
    assert [p["step"] for p in run["curve"]] == [25]


@pytest.mark.processes
def test_a_rank_that_fails_is_named_with_its_last_words(tmp_path):
    done = _bench("--train", "--algorithms", "ddp", "--hosts", "2", "--local", "--data", str(tmp_path))
    assert isinstance(done.exception, RuntimeError)
    assert "failed with exit code 1" in str(done.exception)
    assert "has neither train-images-idx3-ubyte" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "resnet"], "there is no model 'resnet'; there are cnn"),
        (["--algorithms", "ddp,magic"], "there is no algorithm 'magic'"),
        (["--algorithms", ","], "name at least one algorithm"),
        (["--train", "--models", "vgg"], "--models is vgg; leave --models out"),
        (["--train", "--algorithms", "compute"], "compute alone does not train"),
        (["--target-accuracy", "85"], "--target-accuracy is 85.0, but it is a share"),
        (["--train", "--seeds", "0"], "--seeds is 0"),
        (["--steps", "-1"], "--steps is -1"),
        (["--train", "--batch", "0"], "--batch is 0"),
        (["--max-seconds", "-2"], "--max-seconds is -2.0"),
        (["--bucket-mb", "0"], "--bucket-mb is 0"),
        (["--rate", "fast"], "'fast' is not a rate"),
        (["--delay", "long"], "'long' is not a time"),
        (["--hosts", "0"], "--hosts is 0"),
        (["--train", "--data", "/nowhere/at/all"], "--data /nowhere/at/all is not a folder"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(arguments, sentence):
    done = _bench("--local", *arguments) if "--rate" not in arguments else _bench(*arguments)
    assert sentence in str(done.exception)


def test_a_setup_travels_to_the_workers_and_back(tmp_path):
    setup = Setup(mode="train", models=("cnn",), arms=("ddp", "onebit"), seeds=(0, 1), provenance={"network": "n"})
    check(setup)
    save(setup, tmp_path / "setup.json")
    assert load(Setup, tmp_path / "setup.json") == setup


def test_progress_keeps_records_apart_from_words(capsys):
    progress = Progress(watched=False)
    progress.take(0, MARK + json.dumps({"kind": "note", "text": "ready"}))
    progress.take(0, MARK + json.dumps({"kind": "train", "arm": "ddp"}))
    point = {"kind": "progress", "arm": "ddp", "seed": 0, "step": 15, "total": 30, "time_s": 2.0}
    progress.take(0, MARK + json.dumps({**point, "loss": 0.5, "score": "accuracy 80.0%"}))
    progress.take(1, '{"kind": "train"}')
    assert progress.records == [{"kind": "train", "arm": "ddp"}]
    assert progress.last_words(1) == '{"kind": "train"}'
    assert progress.last_words(0) == ""
    assert [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "ready",
        "ddp seed 0: step 15/30, 2 s, loss 0.500, accuracy 80.0%",
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_task_that_yields_a_gradient_for_each_parameter(name):
    task = TASKS[name]
    model = task.model()
    task.loss(model, task.batch(torch.Generator().manual_seed(0))).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    low, high = {
        "cnn": (0.4, 0.5),
        "chars": (0.4, 0.5),
        "wide": (12, 13),
        "vgg": (12, 15),
        "gpt": (11, 13),
        "lstm": (14, 18),
    }[name]
    assert low <= millions <= high


def test_every_algorithm_of_the_registry_is_an_arm():
    from pliant.algorithms.registry import ALGORITHMS, standard_text

    bare = {name for name, row in ALGORITHMS.items() if row.bare}
    assert bare - set(map(standard_text, ARMS)) <= {"fp16", "muloco"}
    assert set(map(standard_text, PLIANT_ARMS)) - bare == {"qsgd4", "topk_dgc", "post_local_sgd"}


def test_arms_are_names_or_algorithms_of_the_grammar():
    assert split_arms("ddp, topk(ratio=0.1,ramp_steps=5),every(2, late(int4)) ,auto(quality=1.1), qsgd4") == (
        "ddp",
        "topk(ratio=0.1,ramp_steps=5)",
        "every(2, late(int4))",
        "auto(quality=1.1)",
        "qsgd4",
    )
    for names, sentence in (
        ("topk(ratio", "cannot be read"),
        ("topk(ratio=1)x", "cannot be read"),
        ("topk(share=0.1)", "does not take these settings"),
        ("diloco(averaging=magic)", "no algorithm 'magic'"),
        ("gossip(graph=star)", "no graph 'star'"),
        ("choco(codec=zip)", "no codec 'zip'"),
        ("fastest", "no algorithm 'fastest'"),
        ("auto(1.1)", "cannot be read"),
        ("gtopk(ratio=os)", "cannot be read"),
        ("ddp-powersgd(rank=2)", "takes none here"),
        ("qsgd4(bits=2)", "takes none here"),
        ("topk_dgc(ratio=0.1)", "takes none here"),
        (" , ", "at least one"),
    ):
        with pytest.raises(ValueError, match=sentence):
            split_arms(names)
    check(Setup(mode="train", models=("cnn",), arms=("auto(quality=1.1)",)))
    with pytest.raises(ValueError, match="which only a whole training shows"):
        check(Setup(mode="time", models=("cnn",), arms=("auto",)))


def test_what_depends_on_the_length_of_a_training_is_known_by_its_name_alone():
    assert plan_of_arm("post_local_sgd", 100).rules[0].exchange == pliant.post_local_sgd(20)
    assert plan_of_arm("topk_dgc", 50).rules[-1].exchange == pliant.topk(momentum=0.9, ramp_steps=10)
    assert plan_of_arm("qsgd4").rules[0].exchange == pliant.qsgd(bits=4)
    assert plan_of_arm("qsgd4").name == "qsgd4"
    warm = plan_of_arm("after(50, bf16, then=onebit)")
    assert warm.rules[1].exchange == pliant.after(50, pliant.bf16(), then=pliant.onebit())
    adam = torch.optim.Adam(torch.nn.Linear(1, 1).parameters())
    assert plan_of_arm("tasc", 100, adam).rules[0].exchange == pliant.tasc(power=0)


def test_powersgd_sends_factors_only_where_torch_s_hook_does():
    assert POWERSGD_RANK == 1
    assert _powersgd_numel((768, 1568)) == 768 + 1568
    assert _powersgd_numel((768,)) == 768
    assert _powersgd_numel((3, 3)) == 9  # 2 (3 + 3) is not less than 9
    assert _powersgd_numel((16, 1, 3, 3)) == 16 + 9


def test_the_parent_does_not_import_torch():
    code = "import sys, pliant_bench.harness.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
