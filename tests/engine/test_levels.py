"""Plans between hosts whose ranks exchange a slice each: nothing is lost, a checkpoint goes on, no link has more."""

import pytest
import torch

import pliant as p
from models import applied_and_given, new_ddp, train, weights

HOSTS = [[0, 1], [2, 3, 4]]
SIZE = 5
FLAGS_BYTES = 64
"""Of a step: whether gradients are finite."""
NESTED = {
    "hosts(exact)": p.between_hosts(p.allreduce()),
    "hosts(onebit)": p.between_hosts(p.onebit()),
    "hosts(randomk)": p.between_hosts(p.randomk(0.1)),
    "every(hosts)": p.every(2, p.between_hosts(p.onebit())),
    "after(hosts)": p.after(3, p.between_hosts(p.int4()), then=p.between_hosts(p.onebit())),
    "hosts(powersgd)": p.between_hosts(p.powersgd(1)),
}


def run_of(place, ddp, name, lr=0.05):
    return p.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=lr), NESTED[name], hosts=HOSTS, timeout_s=20)


SAMPLE = {"hosts(onebit)", "every(hosts)", "after(hosts)"}
"""Names that the first tier trains with."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.extended) for name in NESTED]
)
def test_nothing_that_slices_keep_is_lost(name):
    """Also where DDP cuts its buckets anew, and with what a switch pays."""

    def body(place):
        ddp = new_ddp(place)
        with run_of(place, ddp, name, lr=0.0) as run:
            return applied_and_given(place, ddp, run, 7)

    for applied, given in p.run_world(SIZE, body, timeout_s=60):
        torch.testing.assert_close(applied, given, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["hosts(onebit)", "after(hosts)"])
def test_a_checkpoint_of_slices_goes_on_to_the_bit(name, tmp_path):
    def body(place):
        whole = new_ddp(place)
        with run_of(place, whole, name) as run:
            train(whole, run.optimizer, place.rank, range(8))
        first = new_ddp(place)
        with run_of(place, first, name) as run:
            train(first, run.optimizer, place.rank, range(4))
            run.save(tmp_path)
        again = new_ddp(place)
        optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
        with p.load_run(tmp_path, again, optimizer, hosts=HOSTS, timeout_s=20):
            train(again, optimizer, place.rank, range(4, 8))
        return weights(whole), weights(again)

    results = p.run_world(SIZE, body, timeout_s=60)
    for whole, again in results:
        assert torch.equal(whole, again)
        assert torch.equal(whole, results[0][0])


def test_a_checkpoint_of_other_slices_is_refused():
    def body(place):
        ddp = new_ddp(place)
        with run_of(place, ddp, "hosts(onebit)") as run:
            train(ddp, run.optimizer, place.rank, range(1))
            state = run.state_dict()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        others = [[0, 1, 2], [3, 4]]
        run = p.relax(ddp, optimizer, NESTED["hosts(onebit)"], hosts=others, timeout_s=20)
        with run, pytest.raises(ValueError, match="slots"):
            run.load_state_dict(state)
        return state

    states = p.run_world(SIZE, body, timeout_s=60)
    with pytest.raises(ValueError, match="each exchanges another slice with other hosts, or none"):
        p.resize(states, 3)


@pytest.mark.parametrize(
    "name",
    [
        *("hosts(exact)", "hosts(powersgd)"),
        *(pytest.param(name, marks=pytest.mark.extended) for name in ("hosts(onebit)", "hosts(randomk)")),
    ],
)
def test_no_rank_moves_more_than_twice_the_model_in_a_step_inside_a_host(name):
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with p.relax(ddp, optimizer, NESTED[name], hosts=[[*range(SIZE)]], agreement_every=0, timeout_s=20) as run:
            train(ddp, optimizer, place.rank, range(2))  # DDP cuts other buckets after the first step
            before = run.stats()
            train(ddp, optimizer, place.rank, range(2, 3))
            after = run.stats()
        moved = [after[each] - before[each] for each in ("sent_bytes", "received_bytes")]
        return moved, 4 * sum(each.numel() for each in ddp.parameters())

    for moved, model_bytes in p.run_world(SIZE, body, timeout_s=60):
        assert 0 < max(moved) <= 2 * model_bytes + FLAGS_BYTES
