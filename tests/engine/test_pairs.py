"""Combinators in each other, trained: both orders, what is owed, a checkpoint, hosts of unequal size."""

import itertools

import pytest
import torch

import pliant as p
from models import applied_and_given, new_ddp, train, weights

HOSTS = [[0], [1, 2]]
WRAPS = {
    "every": lambda inner: p.every(2, inner),
    "delayed": p.delayed,
    "after": lambda inner: p.after(3, p.int4(), then=inner),
    "hosts": p.between_hosts,
    "local": lambda inner: p.local_sgd(2, averaging=inner),
}
REFUSED = {("every", "local"), ("delayed", "local"), ("local", "every"), ("local", "delayed")}
PAIRS = {
    f"{outer}({inner})": WRAPS[outer](WRAPS[inner](p.onebit()))
    for outer, inner in itertools.permutations(WRAPS, 2)
    if (outer, inner) not in REFUSED
}
TRIPLES = {
    "every(late(hosts))": p.every(2, p.delayed(p.between_hosts(p.onebit()))),
    "late(hosts(every))": p.delayed(p.between_hosts(p.every(2, p.onebit()))),
    "hosts(after(late))": p.between_hosts(p.after(3, p.int4(), then=p.delayed(p.onebit()))),
    "after(hosts) to all": p.after(3, p.between_hosts(p.int4()), then=p.every(2, p.onebit())),
    "every(hosts(tasc))": p.every(2, p.with_target(p.tasc(0.1, block=16, agreement="host"), bytes_per_step=2000)),
}
NESTED = PAIRS | TRIPLES
GRADIENTS = [name for name, node in NESTED.items() if node.kind == "gradients"]
FIRST = {f"{outer}({inner})" for outer, inner in itertools.combinations(WRAPS, 2)} | {*TRIPLES}
"""Each two in one order; the other order of what these hold is left to the second tier."""


def in_one_order(names):
    return [name if name in FIRST else pytest.param(name, marks=pytest.mark.extended) for name in names]


def run_of(place, ddp, name, lr=0.05):
    return p.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=lr), NESTED[name], hosts=HOSTS, timeout_s=20)


@pytest.mark.parametrize("name", in_one_order(NESTED))
def test_it_trains_and_a_checkpoint_goes_on_to_the_bit(name, tmp_path):
    def body(place):
        whole = new_ddp(place)
        with run_of(place, whole, name) as run:
            train(whole, run.optimizer, place.rank, range(10))
            run.state_dict()  # what is under way ends
            whole = weights(whole)
        first = new_ddp(place)
        with run_of(place, first, name) as run:
            train(first, run.optimizer, place.rank, range(5))
            run.save(tmp_path)
        again = new_ddp(place)
        optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
        with p.load_run(tmp_path, again, optimizer, hosts=HOSTS, timeout_s=20) as run:
            train(again, optimizer, place.rank, range(5, 10))
            run.state_dict()
            return whole, weights(again)

    results = p.run_world(3, body, timeout_s=60)
    for whole, again in results:
        assert whole.isfinite().all()
        assert torch.equal(whole, again)
    if name in GRADIENTS:
        assert all(torch.equal(results[0][0], whole) for whole, _ in results)


@pytest.mark.parametrize("name", in_one_order(GRADIENTS))
def test_nothing_that_is_owed_is_lost(name):
    """Sum of what is applied, with what a switch pays, is the sum of the mean gradients."""

    def body(place):
        ddp = new_ddp(place)
        with run_of(place, ddp, name, lr=0.0) as run:
            return applied_and_given(place, ddp, run, 9)

    for applied, given in p.run_world(3, body, timeout_s=60):
        torch.testing.assert_close(applied, given, rtol=1e-4, atol=1e-5)
