"""The list of trials, the table of their lines, and the command that goes on where it was."""

import json
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from chaos.command import main
from chaos.judge import judge
from chaos.table import markdown
from chaos.trials import (
    ATTACKS,
    NETWORK,
    draw_trials,
    plans_to_switch,
    read_trials,
    survives,
    switches_of,
)

from pliant_bench.faults.points import ELASTIC_ARMS
from pliant_bench.harness.names import LISTED_ARMS

TRIALS = draw_trials(1)
COMMITTED = Path(__file__).parents[3] / "benchmarks" / "chaos" / "trials_seed1.jsonl"


def test_the_committed_trials_are_those_of_the_seed():
    assert read_trials(COMMITTED) == TRIALS
    assert len(TRIALS) == 400
    assert draw_trials(2) != TRIALS


def test_every_attack_and_every_algorithm_has_its_share():
    assert Counter(trial.attack for trial in TRIALS) == ATTACKS
    plain = Counter(trial.algorithm for trial in TRIALS if not trial.elastic and trial.attack != "switch")
    elastic = Counter(trial.algorithm for trial in TRIALS if trial.elastic)
    assert set(plain) == set(LISTED_ARMS)
    assert set(elastic) == set(ELASTIC_ARMS) & set(LISTED_ARMS)
    assert max(plain.values()) - min(plain.values()) <= 1
    assert max(elastic.values()) - min(elastic.values()) <= 1
    assert {trial.ranks for trial in TRIALS} == {2, 3, 4}
    assert {trial.where for trial in TRIALS} == {"hosts", "loopback"}


def test_every_trial_can_be_carried_out():
    for trial in TRIALS:
        assert set(trial.victims) <= set(range(trial.ranks)), trial
        assert len(set(trial.victims)) < trial.ranks or trial.attack == "cut_link", trial
        assert trial.where == "hosts" or trial.attack not in NETWORK, trial
        assert bool(trial.share) == (trial.attack in ("packet_loss", "disk_full")), trial
        assert bool(trial.how) == (trial.attack in ("kill_saving", "disk_full")), trial
        if trial.elastic and trial.attack == "cut_link":
            assert trial.lasting_s, trial  # both ends live and see the store: without a repair nobody could go on
        if trial.elastic and trial.rank_hosts_store:
            assert survives(trial) == "end", trial


def test_all_pairs_of_plans_are_switched_between():
    names = [arm for arm in LISTED_ARMS if arm != "onebit_adam"]
    pairs = plans_to_switch(1)
    assert sorted(pairs) == sorted((a, b) for a in names for b in names if a != b)
    done = [pair for trial in TRIALS if trial.attack == "switch" for pair in pairwise(switches_of(trial))]
    assert sorted(done) == sorted(pairs)


def test_the_table_counts_and_shows_what_went_wrong():
    trials = {trial.attack: trial for trial in TRIALS}
    hang = judge(
        trials["kill"],
        {"said": {r: [] for r in range(4)}, "exits": {0: None}, "struck_s": 1.0, "stacks": {"0": "here"}},
    )
    right = [
        {**hang, "attack": "kill", "outcome": "ended right", "why": "", "answer_s": seconds} for seconds in (3.0, 5.0)
    ]
    text = markdown([hang, *right, {**right[0], "attack": "flap", "outcome": "went on right"}])
    assert "| kill | 3 | 0 | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 4.0 (5.0) |" in text
    assert "| flap | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 3.0 (3.0) |" in text
    assert "| all | 4 | 1 | 2 | 1 |" in text
    assert f"| {hang['number']}: kill of" in text
    assert "Not as it should be" not in markdown(right)


def test_a_run_leaves_out_what_has_a_line(tmp_path, monkeypatch, capsys):
    trials, results = tmp_path / "trials.jsonl", tmp_path / "results.jsonl"
    main(["list", "--seed", "3", "--num", "6", "--trials", str(trials)])
    carried = []

    def pretend(left, journal, slack):
        for trial in left:
            carried.append(trial.number)
            journal.add({**asdict(trial), "outcome": "ended right", "why": "", "answer_s": 1.0 * slack})

    monkeypatch.setattr("chaos.command._carry_out_all", pretend)
    run = ["run", "--trials", str(trials), "--results", str(results)]
    main([*run, "--limit", "2"])
    with results.open("a") as file:
        file.write('{"seed": 3, "numb')  # the last words of a process that was killed
    main([*run, "--only", f"0,1,2,{read_trials(trials)[4].attack}", "--from", "1", "--limit", "1"])
    main(run)
    assert sorted(carried) == list(range(6))
    lines = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("}")]
    assert [line["number"] for line in lines] == carried
    main(["table", "--results", str(results)])
    assert "| all | 6 | 0 | 6 | 0 |" in capsys.readouterr().out


def test_a_list_is_never_drawn_anew_in_the_place_of_another(tmp_path):
    path = tmp_path / "trials.jsonl"
    main(["list", "--seed", "3", "--num", "6", "--trials", str(path)])
    with pytest.raises(SystemExit, match="other trials than seed 4"):
        main(["list", "--seed", "4", "--num", "6", "--trials", str(path)])
