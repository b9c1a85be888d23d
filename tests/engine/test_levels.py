"""Plans between hosts whose ranks exchange a slice each: nothing is lost, a checkpoint goes on, no link has more."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant as p
from models import batch, new_ddp, train, weights

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


@pytest.mark.parametrize("name", NESTED)
def test_nothing_that_slices_keep_is_lost(name):
    """Also where DDP cuts its buckets anew, and with what a switch pays."""

    def body(place):
        ddp = new_ddp(place)
        total, applied = torch.zeros_like(weights(ddp)), torch.zeros_like(weights(ddp))
        with run_of(place, ddp, name, lr=0.0) as run:
            for step in range(7):
                if step == 6:
                    run.switch("allreduce")
                x, y = batch(place.rank, step)
                local = new_ddp(place, bucket_cap_mb=25)
                with local.no_sync():
                    nn.functional.cross_entropy(local(x), y).backward()
                total += torch.cat([each.grad.flatten() for each in local.parameters()])
                run.optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(x), y).backward()
                applied += torch.cat([each.grad.flatten() for each in ddp.parameters()])
                run.optimizer.step()
        place.comm.all_reduce(total).wait()
        return applied, total / place.size

    for applied, total in p.run_world(SIZE, body, timeout_s=60):
        torch.testing.assert_close(applied, total, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("name", ["hosts(exact)", "hosts(onebit)", "hosts(powersgd)", "hosts(randomk)"])
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


RACKS = {
    "equal": ([[0, 1], [2, 3], [4, 5], [6, 7]], "aabb"),
    "unequal hosts": ([[0], [1, 2, 3], [4, 5]], "aab"),
    "unequal racks": ([[0, 1], [2, 3], [4, 5, 6], [7]], "abab"),
    "one host in a rack": ([[0, 1], [2, 3, 4]], "ab"),
    "one rack": ([[0, 1], [2]], "aa"),
}
"""Name -> ranks of each host, and the name of its rack."""
THREE = {
    "hosts(racks)": lambda inner: p.between_hosts(p.between_racks(inner)),
    "racks": p.between_racks,
    "local(hosts(racks))": lambda inner: p.local_sgd(1, averaging=p.between_hosts(p.between_racks(inner))),
}


def in_racks(place, ddp, what, shape, lr=0.05):
    hosts, names = RACKS[shape]
    rack = next(name for ranks, name in zip(hosts, names, strict=True) if place.rank in ranks)
    return p.relax(ddp, torch.optim.SGD(ddp.parameters(), lr=lr), what, hosts=hosts, rack=rack, timeout_s=20)


def size_of(shape):
    return sum(map(len, RACKS[shape][0]))


@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize("shape", RACKS)
def test_three_levels_are_the_true_mean_over_ranks(shape, name):
    """In float64, of hosts and racks of any sizes."""

    def body(place):
        model = nn.Linear(7, 3).double()
        with torch.no_grad():
            [each.fill_(0.5) for each in model.parameters()]
        ddp = DistributedDataParallel(model, process_group=place.process_group)
        with in_racks(place, ddp, THREE[name](p.allreduce()), shape, lr=1.0) as run:
            x = torch.arange(14, dtype=torch.float64).view(2, 7) * (1 + place.rank)
            run.model(x).sum().backward()
            run.optimizer.step()
        return weights(ddp)

    def expected(rank):
        x = torch.arange(14, dtype=torch.float64).view(2, 7) * (1 + rank)
        return torch.cat([0.5 - x.sum(0).repeat(3), 0.5 - torch.full((3,), 2.0, dtype=torch.float64)])

    wanted = torch.stack([expected(rank) for rank in range(size_of(shape))]).mean(0)
    exact = not name.startswith("local")  # changes of weights travel in float32
    for found in p.run_world(size_of(shape), body, timeout_s=60):
        torch.testing.assert_close(found, wanted, rtol=1e-14 if exact else 1e-6, atol=0)


@pytest.mark.parametrize("shape", ["equal", "unequal racks"])
@pytest.mark.parametrize(
    "name", ["hosts(racks(onebit))", "hosts(racks(powersgd))", "every(hosts(racks))", "racks(onebit)"]
)
def test_nothing_is_lost_on_three_levels_and_a_checkpoint_goes_on(name, shape, tmp_path):
    """Sums of what was applied, with what the switch pays, are those of mean gradients; weights go on to the bit."""
    what = {
        "hosts(racks(onebit))": p.between_hosts(p.between_racks(p.onebit())),
        "hosts(racks(powersgd))": p.between_hosts(p.between_racks(p.powersgd(1))),
        "every(hosts(racks))": p.every(2, p.between_hosts(p.between_racks(p.onebit()))),
        "racks(onebit)": p.between_racks(p.onebit()),
    }[name]

    def body(place):
        ddp = new_ddp(place)
        total, applied = torch.zeros_like(weights(ddp)), torch.zeros_like(weights(ddp))
        with in_racks(place, ddp, what, shape, lr=0.0) as run:
            for step in range(5):
                if step == 4:
                    run.switch("allreduce")
                x, y = batch(place.rank, step)
                local = new_ddp(place, bucket_cap_mb=25)
                with local.no_sync():
                    nn.functional.cross_entropy(local(x), y).backward()
                total += torch.cat([each.grad.flatten() for each in local.parameters()])
                run.optimizer.zero_grad()
                nn.functional.cross_entropy(ddp(x), y).backward()
                applied += torch.cat([each.grad.flatten() for each in ddp.parameters()])
                run.optimizer.step()
        place.comm.all_reduce(total).wait()

        whole, first, again = (new_ddp(place) for _ in range(3))
        with in_racks(place, whole, what, shape) as run:
            train(whole, run.optimizer, place.rank, range(6))
        with in_racks(place, first, what, shape) as run:
            train(first, run.optimizer, place.rank, range(3))
            state = run.state_dict()
        with in_racks(place, again, what, shape) as run:
            again.load_state_dict(first.state_dict())
            run.load_state_dict(state)
            train(again, run.optimizer, place.rank, range(3, 6))
        return applied, total / place.size, weights(whole), weights(again)

    results = p.run_world(size_of(shape), body, timeout_s=120)
    for applied, total, whole, again in results:
        torch.testing.assert_close(applied, total, rtol=1e-4, atol=1e-5)
        assert torch.equal(whole, again)
        assert torch.equal(whole, results[0][2])


def test_between_racks_weights_are_exchanged_and_ranks_of_a_rack_stay_equal():
    hosts, names = RACKS["unequal racks"]

    def body(place):
        ddp = new_ddp(place)
        with in_racks(place, ddp, p.between_racks(p.local_sgd(4)), "unequal racks") as run:
            train(ddp, run.optimizer, place.rank, range(6))
            apart = weights(ddp).clone()
            train(ddp, run.optimizer, place.rank, range(6, 8))
            together = weights(ddp).clone()
            run.state_dict()
        return apart, together

    results = p.run_world(8, body, timeout_s=60)
    racks = {name: [r for ranks, its in zip(hosts, names, strict=True) if its == name for r in ranks] for name in "ab"}
    for ranks in racks.values():
        assert all(torch.equal(results[r][0], results[ranks[0]][0]) for r in ranks)
    assert not torch.equal(results[racks["a"][0]][0], results[racks["b"][0]][0])
    assert all(torch.equal(r[1], results[0][1]) for r in results)


@pytest.mark.parametrize(
    ("racks", "sentence"),
    [
        (["a", "", "b", ""], "level of racks, but ranks 1, 3 named none; pass rack= to relax"),
        (["a", "b", "c", "c"], "ranks 0, 1 are on one host, but named different racks"),
    ],
)
def test_racks_that_are_not_known_or_divide_a_host_are_refused_on_all_ranks(racks, sentence):
    def body(place):
        ddp = new_ddp(place)
        what, optimizer = p.between_hosts(p.between_racks(p.allreduce())), torch.optim.SGD(ddp.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=sentence):
            p.relax(ddp, optimizer, what, hosts=[[0, 1], [2, 3]], rack=racks[place.rank], timeout_s=20)

    p.run_world(4, body)


def test_a_ratio_between_racks_is_held():
    what = p.with_target(p.between_hosts(p.between_racks(p.topk(0.05))), bytes_per_step=2000)

    def body(place):
        ddp = new_ddp(place)
        with in_racks(place, ddp, what, "unequal racks") as run:
            train(ddp, run.optimizer, place.rank, range(9))
            run.state_dict()
            return run.stats()["ratio"]

    ratios = p.run_world(8, body, timeout_s=60)
    assert ratios[0] > 0
    assert set(ratios) == {ratios[0]}
