"""A plan may ask for buckets of another size than DDP was made with."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import pliant
from models import new_ddp, train, weights
from pliant.algorithms import plan_of
from pliant.spec import SyncPlan


def plan(what, bucket_bytes) -> SyncPlan:
    given = plan_of(what)
    return SyncPlan(rules=given.rules, bucket_bytes=bucket_bytes, name=given.name)


def sizes_of(run) -> list[int]:
    """Parameters in each bucket, as the engine has them laid out."""
    return [len(names) for names in run._gradients.layout.values()]


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_buckets_are_no_larger_and_the_result_is_that_of_ddp_with_such_buckets(options):
    def body(place):
        out = []
        for bucket_bytes, given_mb, asked in ((4 << 10, 25, 4 << 10), (0, 0.004, 0), (1 << 20, 0.004, 1 << 20)):
            exact = new_ddp(place, bucket_cap_mb=given_mb if not asked else asked / 2**20, **options)
            relaxed = new_ddp(place, bucket_cap_mb=given_mb, **options)
            a, b = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (exact, relaxed))
            with pliant.relax(relaxed, b, plan(pliant.allreduce(), bucket_bytes), timeout_s=20) as run:
                train(exact, a, place.rank, range(5))
                train(relaxed, b, place.rank, range(5))
                out.append((weights(exact), weights(relaxed), sizes_of(run)))
        return out

    for small, default, large in pliant.run_world(3, body):
        for exact, relaxed, _ in (small, default, large):
            assert torch.equal(exact, relaxed)
        assert len(small[2]) == len(default[2]) > len(large[2]) == 1
        assert sum(small[2]) == sum(large[2])


def test_a_switch_changes_buckets_in_the_middle_and_back_again_and_keeps_what_is_owed():
    plans = [plan(pliant.onebit(), 0), plan(pliant.onebit(), 1 << 10), plan(pliant.onebit(), 1 << 20)]

    def body(place):
        ddp = new_ddp(place, bucket_cap_mb=0.01)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        counts = []
        with pliant.relax(ddp, optimizer, plans[0], timeout_s=20) as run:
            for turn, each in enumerate([*plans, plans[0]]):
                owed = run.stats()["residual_norm"]
                run.switch(each)
                assert run.stats()["residual_norm"] == pytest.approx(owed)
                train(ddp, optimizer, place.rank, range(4 * turn, 4 * turn + 4))
                counts.append(len(sizes_of(run)))
        return counts, weights(ddp)

    results = pliant.run_world(2, body)
    (counts, first), (_, second) = results
    assert torch.equal(first, second)
    assert counts[1] > counts[0] > counts[2] == 1
    assert counts[3] == counts[0]


def test_gradients_that_were_accumulated_before_a_switch_are_not_lost():
    def body(place):
        out = []
        for switches in (False, True):
            ddp = new_ddp(place)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            with pliant.relax(ddp, optimizer, "allreduce", timeout_s=20) as run:
                train(ddp, optimizer, place.rank, range(2))
                optimizer.zero_grad()
                with ddp.no_sync():
                    ddp(torch.ones(2, 1, 4, 4)).sum().backward()
                if switches:
                    run.switch(plan(pliant.allreduce(), 1 << 20))
                ddp(torch.ones(2, 1, 4, 4)).sum().backward()
                optimizer.step()
            out.append(weights(ddp))
        return out

    for kept, switched in pliant.run_world(2, body):
        assert torch.allclose(kept, switched, rtol=0, atol=1e-6)


def test_a_bucket_holds_something():
    with pytest.raises(ValueError, match="holds nothing"):
        SyncPlan(bucket_bytes=-1)
    assert SyncPlan(bucket_bytes=1).hash != SyncPlan().hash
    assert "buckets of 2 MiB" in str(SyncPlan(bucket_bytes=2 << 20))


def test_after_close_ddp_works_by_itself_with_the_new_buckets():
    def body(place):
        ddp = new_ddp(place)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        pliant.relax(ddp, optimizer, plan(pliant.bytegrad(), 1 << 20), timeout_s=20).close()
        train(ddp, optimizer, place.rank, range(3))
        assert isinstance(ddp, DistributedDataParallel)
        return weights(ddp)

    first, second = pliant.run_world(2, body)
    assert torch.equal(first, second)


def test_a_size_that_is_ddp_s_own_is_that_of_all_buckets_and_no_size_is_what_the_model_came_with():
    """DDP makes its first bucket smaller, unless it is told a size: what a plan leaves must not be the next one's."""
    plans = [plan(pliant.allreduce(), size) for size in (0, 25 << 20, 0, 4 << 20, 0)]

    def body(place):
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))
        ddp = DistributedDataParallel(model, process_group=place.process_group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-6)
        found = []
        with pliant.relax(ddp, optimizer, plans[0], timeout_s=20) as run:
            for each in plans:
                run.switch(each)
                for _ in range(2):
                    optimizer.zero_grad()
                    ddp(torch.ones(1, 512)).sum().backward()
                    optimizer.step()
                found.append(sizes_of(run))
        return found

    for own, one, again, other, last in pliant.run_world(2, body):
        assert len(own) == 2
        assert own == again == last
        assert one == other == [6]
