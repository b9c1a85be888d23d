"""`pliant report`: figures of timelines whose answers are known, one page, and sentences for what does not fit."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import pliant
from pliant.algorithms.plans import plan_of
from pliant.cli.main import main
from pliant.cli.report.command import _all_ranks
from pliant.cli.report.comparison import measured_of
from pliant.cli.report.steps import buckets_of, clip_event, events_in, median_step, merge_timelines, steps_of
from pliant.simulator import Overheads, simulate
from pliant.spec import Event, Host, SyncPlan, TensorSpec, Timeline, Topology, Workload, save

PLAN = plan_of(pliant.bytegrad())
TENSORS = tuple(
    TensorSpec(name=f"t{k}", shape=(1000, 300), dtype="float32", layer="Linear", ready_s=0.05 * (k + 1))
    for k in range(4)
)
WORK = Workload(name="even", tensors=TENSORS, forward_s=0.1, backward_s=0.2, step_s=0.01)


def topology(num_hosts=2, rate=12.5e6) -> Topology:
    return Topology(
        hosts=tuple(Host(name=f"h{k}", send_bytes_per_s=rate, receive_bytes_per_s=rate) for k in range(num_hosts))
    )


def event(kind, name, start, end, *, step=0, rank=0, sent=0) -> Event:
    return Event(rank=rank, step=step, kind=kind, name=name, start_s=start, end_s=end, sent_bytes=sent)


def by_hand(rank=0, plan=PLAN.hash, steps=2, began=100.0) -> Timeline:
    """Steps of 10 s: 1 forward from 1 on, 4 backward, 3 waiting, 1 optimizer; an exchange of 5 s half hidden."""
    events = []
    for k in range(steps):
        at = 10.0 * k
        events += [
            event("forward", "forward", at + 1, at + 2, step=k, rank=rank),
            event("encode", "bucket 0", at + 4, at + 5, step=k, rank=rank),
            event("backward", "backward", at + 2, at + 6, step=k, rank=rank),
            event("communicate", "bucket 0", at + 5, at + 8, step=k, rank=rank, sent=1000 * (k + 1)),
            event("decode", "bucket 0", at + 8, at + 9, step=k, rank=rank),
            event("exchange", "bucket 0", at + 4, at + 9, step=k, rank=rank),
            event("wait", "wait", at + 6, at + 9, step=k, rank=rank),
            event("optimize", "optimize", at + 9, at + 10, step=k, rank=rank),
        ]
    return Timeline(events=tuple(events), plan=plan, num_ranks=2, began_unix_s=began, provenance="by hand")


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["pliant", "report", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), " ".join(err.split())


def test_steps_are_what_a_hand_counts():
    first, second = steps_of(by_hand(), 0)
    assert (first.start_s, first.end_s, second.start_s, second.end_s) == (0, 10, 10, 20)
    assert (first.seconds, first.compute_s, first.exposed_s, first.exchange_s, first.codec_s) == (10, 7, 3, 5, 2)
    assert (first.sent_bytes, second.sent_bytes) == (1000, 2000)
    (bucket,) = buckets_of(by_hand(), [first, second])
    assert (bucket.name, bucket.exchange_s, bucket.codec_s, bucket.exposed_s, bucket.sent_bytes) == (
        "bucket 0", 5, 2, 3, 1500,
    )  # fmt: skip


class Read:
    """An event that counts what is read of it, and of all its kind."""

    reads = 0

    def __init__(self, event):
        self._event = event

    def __getattr__(self, name):
        Read.reads += 1
        return getattr(self._event, name)


def test_a_step_costs_as_much_however_many_there_are():
    def reads(steps):
        Read.reads = 0
        line = SimpleNamespace(events=[Read(each) for each in by_hand(steps=steps).events])
        buckets_of(line, steps_of(line, 0))
        return Read.reads

    assert reads(80) == pytest.approx(4 * reads(20), rel=0.05)


def test_an_exchange_is_exposed_as_long_as_it_lies_within_waits_of_any_length():
    spans = [(0, 1), (2, 9), (3, 4), (5, 6), (8, 12), (20, 21)]
    waits = [event("wait", "wait", *span) for span in spans]
    for start in range(22):
        for end in range(start, 23):
            exchange = event("exchange", "bucket 0", start, end)
            line = replace(by_hand(), events=(*waits, exchange, event("optimize", "optimize", 22, 23)))
            (bucket,) = buckets_of(line, steps_of(line, 0))
            assert bucket.exposed_s == sum(max(0, min(end, b) - max(start, a)) for a, b in spans), (start, end)


def test_means_are_over_whole_periods_and_bytes_are_the_busiest_ranks():
    busy = by_hand(rank=1)
    busy = replace(busy, events=tuple(replace(e, sent_bytes=2 * e.sent_bytes) for e in busy.events))
    measured = measured_of([by_hand(steps=3), replace(busy, events=busy.events[:])], 2)
    assert [[step.step for step in steps] for steps in measured.steps] == [[1, 2], [0, 1]]
    assert measured.means() == {
        "step_s": 10, "compute_s": 7, "exposed_s": 3, "exchange_s": 5, "codec_s": 2, "sent_bytes": 3000,
    }  # fmt: skip
    with pytest.raises(ValueError, match="have 2 steps, but the plan repeats after 4"):
        measured_of([by_hand()], 4)


def test_the_step_that_is_shown_exchanges():
    quiet = tuple(e for e in by_hand(steps=4).events if e.step == 3 or e.kind in ("forward", "backward", "optimize"))
    assert median_step(steps_of(replace(by_hand(), events=quiet), 0)).step == 3
    none = tuple(e for e in by_hand().events if e.kind in ("forward", "optimize"))
    assert median_step(steps_of(replace(by_hand(), events=none), 0)).step in (0, 1)


def test_what_lasts_over_the_edge_of_a_step_is_cut():
    late = event("exchange", "bucket 0", 8, 13)
    assert (clip_event(late, 10, 20).start_s, clip_event(late, 10, 20).end_s) == (0, 3)
    assert (clip_event(late, 0, 10).start_s, clip_event(late, 0, 10).end_s) == (8, 10)
    line = replace(by_hand(), events=(*by_hand().events, late))
    assert len(events_in(line, [0], 10, 20)) == 9
    assert events_in(line, [1], 10, 20) == []


def test_ranks_are_merged_by_their_machines_clocks():
    both = merge_timelines([by_hand(began=100.5), by_hand(rank=1, began=100.0)])
    starts = {e.rank: e.start_s for e in both.events if e.kind == "forward" and e.step == 0}
    assert starts == {0: 1.5, 1: 1.0}
    assert both.began_unix_s == 100.0


def test_the_same_moments_of_ranks_are_found_by_their_machines_clocks():
    panels = dict(_all_ranks(measured_of([by_hand(began=100.5), by_hand(rank=1, began=100.0)], 1)))
    starts = {name: [e.start_s for e in events if e.kind == "forward"] for name, events in panels.items()}
    assert starts == {"rank 0": [1.0], "rank 1": [1.5 - 1.0]}
    assert min(e.start_s for e in panels["rank 1"]) == 0.5


def test_a_simulated_timeline_says_what_its_simulation_says():
    """The same figures, counted from the events, as the simulator counts by itself."""
    found = simulate(PLAN, WORK, topology())
    (step,) = steps_of(found.timeline, 0)
    assert step.seconds == pytest.approx(found.step_s)
    assert step.exposed_s == pytest.approx(found.exposed_s)
    assert step.sent_bytes == found.sent_bytes[0]
    assert sum(bucket.sent_bytes for bucket in buckets_of(found.timeline, [step])) == found.sent_bytes[0]


@pytest.fixture
def folder(tmp_path):
    """A predicted timeline, as if two ranks had recorded it, and what it was predicted from."""
    found = simulate(PLAN, WORK, topology())
    for rank in (0, 1):
        own = tuple(e for e in found.timeline.events if e.rank == rank)
        line = Timeline(events=own, plan=PLAN.hash, num_ranks=2, began_unix_s=5.0, provenance="made up")
        save(line, tmp_path / f"rank{rank}.json")
    save(PLAN, tmp_path / "plan.json")
    save(WORK, tmp_path / "work.json")
    save(topology(), tmp_path / "links.json")
    return tmp_path


def predicting(folder):
    return "--plan", folder / "plan.json", "--workload", folder / "work.json", "--topology", folder / "links.json"


def body_of(text):
    return text.partition("</script></head><body>")[2]


def test_a_page_of_what_was_measured_alone(monkeypatch, capsys, folder):
    page, figures = folder / "page.html", folder / "figures.json"
    code, out, err = run(monkeypatch, capsys, folder, "--html", page, "--json", figures)
    assert (code, err) == (0, "")
    assert "step" in out
    assert "predicted" not in out
    text = page.read_text()
    assert "made up" in text
    assert "predicted" not in body_of(text)
    assert set(json.loads(figures.read_text())) == {"measured"}


def test_what_was_predicted_stands_beside_it_and_the_page_needs_no_network(monkeypatch, capsys, folder):
    page, figures, trace = folder / "page.html", folder / "figures.json", folder / "trace.json"
    code, _, err = run(
        monkeypatch, capsys, folder, *predicting(folder), "--html", page, "--json", figures, "--trace", trace
    )
    assert (code, err) == (0, "")
    text = page.read_text()
    assert "measured above, predicted below" in text
    assert "The same moments on all ranks" in text
    assert re.findall(r'(?:src|href)="', body_of(text)) == []
    both = json.loads(figures.read_text())
    for key in ("step_s", "exposed_s", "sent_bytes"):
        assert both["measured"][key] == pytest.approx(both["predicted"][key], rel=1e-6), key
    longer = both["measured"]["exchange_s"] / both["predicted"]["exchange_s"]
    assert 1 <= longer < Overheads().exchange_overlap  # events last as long as computing beside them lets them
    assert {e["pid"] for e in json.loads(trace.read_text())["traceEvents"]} == {0, 1}


def test_one_file_and_a_plan_by_name(monkeypatch, capsys, folder):
    arguments = ("--plan", "bytegrad", "--workload", folder / "work.json", "--hosts", 2, "--rate", "100mbit")
    code, out, _ = run(monkeypatch, capsys, folder / "rank1.json", *arguments, "--html", folder / "page.html")
    assert code == 0
    assert "error" in out


def test_mistakes_are_sentences(monkeypatch, capsys, folder):
    def said(*arguments):
        code, _, err = run(monkeypatch, capsys, *arguments, "--html", folder / "page.html")
        assert code == 2
        assert not (folder / "page.html").exists()
        return err

    assert "there is no file" in said(folder / "gone.json")
    (folder / "empty").mkdir()
    assert "no rank*.json in the folder" in said(folder / "empty")
    assert "'SyncPlan', but a 'Timeline' was asked for" in said(folder / "plan.json")
    (folder / "trace.json").write_text('{"traceEvents": []}')
    assert "a 'Timeline' was asked for" in said(folder / "trace.json")
    save(Timeline(events=()), folder / "none.json")
    assert "holds no step" in said(folder / "none.json")
    assert "are both of rank 0" in said(folder / "rank0.json", folder / "rank0.json")
    save(by_hand(rank=1, plan="0" * 16), folder / "other.json")
    assert "give the files of one recording" in said(folder / "rank0.json", folder / "other.json")
    save(merge_timelines([by_hand(), by_hand(rank=1)]), folder / "both.json")
    assert "holds events of 2 ranks" in said(folder / "both.json")
    assert "a prediction needs all three" in said(folder, "--workload", folder / "work.json")
    assert "a prediction needs all three" in said(folder, "--hosts", 2)
    for alone in (
        ("--rate", "1mbit"),
        ("--ranks", 2),
        ("--compute", "1ms"),
        ("--machine", "h100"),
        ("--bucket", "1MB"),
    ):
        assert "a prediction needs all three" in said(folder, *alone)
    assert "say who there is, once" in said(folder, "--plan", "bytegrad", "--workload", folder / "work.json")
    save(SyncPlan(), folder / "plan.json")
    assert f"was recorded under the plan {PLAN.hash}, but the one to predict" in said(folder, *predicting(folder))
    save(PLAN, folder / "plan.json")
    save(topology(3), folder / "links.json")
    assert "by one of 2 ranks, but the topology to predict on has 3" in said(folder, *predicting(folder))


def test_it_needs_no_torch(folder):
    import subprocess

    code = (
        "import sys; from pliant.cli.report.command import report; from pathlib import Path; "
        f"report([Path({str(folder)!r})], html=Path({str(folder / 'page.html')!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    assert done.stdout.splitlines()[-1] == "False"
