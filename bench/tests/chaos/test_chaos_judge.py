"""What is made of the words of ranks that were attacked: made-up lines, each with its verdict."""

from dataclasses import replace

import pytest
from chaos.judge import judge, named_in
from chaos.trials import Trial

KILL = Trial(
    seed=1,
    number=0,
    attack="kill",
    algorithm="onebit",
    elastic=False,
    ranks=3,
    where="loopback",
    rank_hosts_store=False,
    victims=(1,),
    moment=5,
    part=0.5,
)
LOSS = replace(KILL, attack="packet_loss", where="hosts", victims=(), share=0.01)
ELASTIC = replace(KILL, elastic=True, algorithm="gossip")
NAMES = "rank 0 of 3: all_reduce failed after 0.1s (timeout 4s): rank 1 is gone (no sign of life). Cause: x"


def step(at_s, number=1):
    return {"kind": "step", "at_s": at_s, "step": number}


def failed(text, at_s=14.0, error="CommError"):
    return {"kind": "failed", "at_s": at_s, "error": error, "text": text}


def ended(weights="aa", members=(0, 1, 2), *, finite=True):
    return {"kind": "ended", "at_s": 12.5, "step": 80, "members": list(members), "finite": finite, "hash": weights}


def regrouped(text):
    return {"kind": "regrouped", "at_s": 11.0, "text": text}


def verdict(trial, *last, exits=None, struck_s=10.0, **more):
    """Judge a trial in which rank i said a step before and one after the attack, and then its last words."""
    said = {rank: [step(9.9), step(10.5), *words] for rank, words in enumerate(last)}
    if exits is None:
        survivors = [r for r in range(trial.ranks) if r not in trial.victims or trial.lasting_s]
        exits = {r: int(said[r][-1]["kind"] == "failed") for r in survivors}
    return judge(trial, {"said": said, "exits": exits, "struck_s": struck_s, "stacks": {}, **more})


def test_survivors_that_name_the_victim_ended_right_after_the_last_of_them():
    line = verdict(KILL, [failed(NAMES, 13.25)], [], [failed(NAMES, 14.5)])
    assert (line["outcome"], line["answer_s"]) == ("ended right", 4.5)
    assert line["sentences"] == {"0": f"CommError: {NAMES}", "2": f"CommError: {NAMES}"}


def test_who_goes_on_says_how_long_it_stood_still():
    line = verdict(LOSS, *([[step(12.0), ended()]] * 3))
    assert (line["outcome"], line["answer_s"]) == ("went on right", 1.5)


@pytest.mark.parametrize(
    ("trial", "last", "exits", "outcome"),
    [
        (KILL, [[failed(NAMES)], [], []], {0: 1, 2: None}, "hang"),
        (KILL, [[failed(NAMES)], [], [failed(NAMES.replace("rank 1 is", "rank 0 is"))]], None, "wrong name"),
        (KILL, [[failed(NAMES)], [], [failed(NAMES.replace("rank 1 is", "rank 1, 0 is"))]], None, "wrong name"),
        (KILL, [[failed(NAMES)], [], [failed("all ranks still show signs of life")]], None, "no name"),
        (KILL, [[failed(NAMES)], [], [failed("bad", error="TypeError")]], None, "error"),
        (KILL, [[failed(NAMES)], [], []], {0: 1, 2: -6}, "error"),
        (KILL, [[failed(NAMES)], [], [ended()]], None, "error"),
        (KILL, [[ended()], [], [ended()]], None, "silent difference"),
        (LOSS, [[ended()], [ended("bb")], [ended()]], None, "silent difference"),
        (LOSS, [[ended(finite=False)]] * 3, None, "silent difference"),
        (LOSS, [[failed("a timeout")]] * 3, None, "error"),
        (LOSS, [[failed(NAMES)]] * 3, None, "wrong name"),
        (ELASTIC, [[ended(members=(0, 2))], [], [ended(members=(0, 2))]], None, "went on right"),
        (ELASTIC, [[ended(members=(0,))], [], [ended(members=(2,))]], None, "silent difference"),
        (ELASTIC, [[ended(members=(0, 2))], [], [ended(members=(2,))]], None, "went on right"),
        (ELASTIC, [[ended(members=(0, 2))], [], [ended("bb", members=(2,))]], None, "silent difference"),
        (ELASTIC, [[failed(NAMES)], [], [failed(NAMES)]], None, "error"),
    ],
)
def test_verdicts(trial, last, exits, outcome):
    assert verdict(trial, *last, exits=exits)["outcome"] == outcome


def test_an_elastic_run_that_drops_a_rank_that_was_not_attacked_names_a_wrong_one():
    members = [ended(members=(0, 2))]
    good = [regrouped("rank 0: lost rank 1; ranks 0, 2 go on after step 7"), *members]
    line = verdict(ELASTIC, good, [], members)
    assert line["outcome"] == "went on right"
    assert list(line["regrouped"]) == ["0"]
    bad = [regrouped("rank 0: lost rank 1, 2; ranks 0 go on after step 7"), *members]
    assert verdict(ELASTIC, bad, [], members)["outcome"] == "wrong name"


def test_weights_are_held_against_those_of_a_training_without_the_attack():
    assert verdict(LOSS, *([[ended("aa")]] * 3), reference="aa")["outcome"] == "went on right"
    assert verdict(LOSS, *([[ended("aa")]] * 3), reference="bb")["outcome"] == "silent difference"


def test_what_was_never_struck_shows_nothing():
    assert verdict(KILL, [ended()], [ended()], [ended()], struck_s=None)["outcome"] == "not struck"


def test_the_two_halves_of_a_network_blame_each_other_and_only_one_is_asked():
    split = replace(KILL, attack="split", ranks=4, victims=(2, 3), where="hosts", rank_hosts_store=True)
    here = failed(NAMES.replace("rank 1 is", "rank 2, 3 is"))
    there = failed("rank 0 is gone (no sign of life)")
    exits = dict.fromkeys(range(4), 1)
    assert verdict(split, [here], [here], [there], [there], exits=exits)["outcome"] == "ended right"
    assert verdict(split, [here], [there], [there], [there], exits=exits)["outcome"] == "wrong name"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("rank 2 is gone (no sign of life)", {2}),
        ("rank 1, 3 is gone", {1, 3}),
        ("rank 1 no longer takes part in the exchange", {1}),
        ("rank 0: rank 2 has not come within 4s", {2}),
        ("after 5s ranks 1, 2 had not come (here: 0)", {1, 2}),
        ("rank 3 is alive, but 2 exchanges behind; it may be evaluating", {3}),
        ("rank 2 saw no sign of life from this rank and has given up", set()),
        ("rank 0 of 3: all_reduce failed: which rank is lost is not known", set()),
    ],
)
def test_names_are_read_from_sentences(text, ranks):
    assert named_in(text) == ranks


SAVE = replace(KILL, attack="kill_saving", how="dcp", moment=2)


def saved(number, weights, kind="saved"):
    return {"kind": kind, "at_s": 9.0, "number": number, "step": 6 * number, "hash": weights}


def saves(*weights):
    lines = [saved(n, w, kind) for n, w in enumerate(weights, 1) for kind in ("saving", "saved")]
    return lines[:-1]  # the last is being written


def loaded(step_number, weights):
    return [{"kind": "loaded", "at_s": 1.0, "number": 0, "step": step_number, "hash": weights}]


@pytest.mark.parametrize(
    ("found", "exits", "outcome"),
    [
        ((12, "b"), 0, "ended right"),  # the last that was complete
        ((18, "c"), 0, "ended right"),  # or the one that was being written, if it is whole
        ((6, "a"), 0, "lost or half-written checkpoint"),
        ((12, "c"), 0, "lost or half-written checkpoint"),
        ((12, "b"), 1, "lost or half-written checkpoint"),
    ],
)
def test_a_checkpoint_is_what_was_saved_and_none_is_lost(found, exits, outcome):
    words = [*saves("a", "b", "c"), failed("Connection closed", error="RuntimeError")]
    checkpoint = {"said": dict.fromkeys(range(3), loaded(*found)), "exits": dict.fromkeys(range(3), exits)}
    assert verdict(SAVE, words, saves("a", "b", "c"), words, checkpoint=checkpoint)["outcome"] == outcome


def test_who_was_ended_by_a_checkpoint_of_torchs_own_is_gone_too():
    torchs = [*saves("a", "b"), failed("Connection closed", error="RuntimeError")]
    named = [*saves("a", "b"), failed("rank 0, 1 is gone (no sign of life)")]
    said = {rank: loaded(12, "b") for rank in range(3)}
    checkpoint = {"said": said, "exits": dict.fromkeys(range(3), 0)}
    assert verdict(SAVE, torchs, saves("a", "b"), named, checkpoint=checkpoint)["outcome"] == "ended right"
    own = [*saves("a", "b"), failed("rank 1 is gone (no sign of life)")]
    assert verdict(SAVE, own, saves("a", "b"), named, checkpoint=checkpoint)["outcome"] == "wrong name"


def test_ranks_that_load_different_steps_have_half_a_checkpoint():
    words = [*saves("a", "b", "c"), failed("Connection closed", error="RuntimeError")]
    said = {0: loaded(12, "b"), 1: loaded(18, "c"), 2: loaded(12, "b")}
    line = verdict(SAVE, words, words, words, checkpoint={"said": said, "exits": dict.fromkeys(range(3), 0)})
    assert line["why"] == "ranks load different steps: [12, 18]"
