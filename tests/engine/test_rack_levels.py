"""Plans of three levels: the true mean for hosts and racks of any sizes, nothing lost, a checkpoint that goes on."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pliant as p
from models import batch, new_ddp, train, weights

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


def in_racks(place, ddp, what, shape, lr=0.05, nonfinite="raise"):
    hosts, names = RACKS[shape]
    rack = next(name for ranks, name in zip(hosts, names, strict=True) if place.rank in ranks)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    return p.relax(ddp, optimizer, what, hosts=hosts, rack=rack, nonfinite=nonfinite, timeout_s=20)


def size_of(shape):
    return sum(map(len, RACKS[shape][0]))


@pytest.mark.parametrize("shape", [pytest.param("equal", marks=pytest.mark.extended), "unequal racks"])
def test_nothing_is_lost_when_steps_are_skipped_while_slices_move(shape):
    """DDP cuts its buckets anew in the second pass, in which slices change owners and an overflow undoes that."""

    def body(place):
        ddp, alone = (new_ddp(place) for _ in range(2))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        applied = torch.zeros_like(weights(ddp))
        what = p.between_hosts(p.between_racks(p.onebit()))
        with in_racks(place, ddp, what, shape, lr=1e-30, nonfinite="propagate") as run:
            for step in range(6):
                x, y = batch(place.rank, step)
                overflows = step in (1, 2, 4)
                if not overflows:
                    with alone.no_sync():
                        nn.functional.cross_entropy(alone(x), y).backward()
                if step == 5:
                    slots = run.state_dict()[f"rank{place.rank}"]["slots"]
                    kept = sum(int(x.count_nonzero()) for own in slots.values() for x in own.values())
                    run.switch("allreduce")
                run.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(ddp(x), y)
                scaler.scale(loss * (torch.inf if overflows and place.rank == 1 else 1.0)).backward()
                scaler.unscale_(run.optimizer)
                if not overflows:
                    applied += torch.cat([each.grad.flatten() for each in ddp.parameters()])
                scaler.step(run.optimizer)
                scaler.update()
        total = torch.cat([each.grad.flatten() for each in alone.parameters()])
        place.comm.all_reduce(total).wait()
        return applied, total / place.size, kept

    results = p.run_world(size_of(shape), body, timeout_s=60)
    for applied, total, _ in results:
        torch.testing.assert_close(applied, total, rtol=1e-4, atol=1e-5)
    num_racks = len(set(RACKS[shape][1]))
    assert 0 < sum(kept for *_, kept in results) <= num_racks * len(results[0][0])  # of each element one rank a rack


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


@pytest.mark.parametrize("shape", [pytest.param("equal", marks=pytest.mark.extended), "unequal racks"])
@pytest.mark.parametrize(
    "name",
    [
        "every(hosts(racks))",
        *(
            pytest.param(name, marks=pytest.mark.extended)
            for name in ("hosts(racks(onebit))", "hosts(racks(powersgd))", "racks(onebit)")
        ),
    ],
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
