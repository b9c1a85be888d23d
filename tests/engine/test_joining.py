"""Ranks with unequal numbers of batches, in DDP's join(): as DDP."""

import pytest
import torch
from torch import nn

import pliant
from models import Net, new_ddp, train, weights
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled


@pytest.fixture(autouse=True)
def _ranks_of_threads(monkeypatch):
    """Join asks torch's default world for a rank; here ranks are threads, and their group knows."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: group.rank())


REFUSED = [
    *BETWEEN_STEPS,
    "sharded_optimizer",
    "owner-qsgd",
    "acco",
    "topk-dynamic",
    "tasc-dynamic",
    "tasc-curved",
    "late-onebit",
]
"""Those where a rank that makes no steps would be missed for more than its gradients."""

JOINED = [name for name in ALGORITHMS if name not in REFUSED]


class NoBuffers(Net):
    """Without running means, of which those that train have seen more."""

    def __init__(self):
        super().__init__()
        self.norm = nn.Identity()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("by_all", [True, False])
def test_uneven_batches_are_as_in_ddp(size, by_all):
    """To the bit; the mean over those that still train, which DDP divides by before adding up, to rounding.

    In the first epoch buckets are those of a state that was loaded.
    """

    def body(place):
        ends = []
        for what in (None, "allreduce"):
            ddp = new_ddp(place, find_unused_parameters=size == 3)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
            run = pliant.relax(ddp, optimizer, what, agreement_every=1, timeout_s=20) if what else None
            for epoch in range(2):
                train(ddp, optimizer, place.rank, [30 + epoch])
                if run is not None and not epoch:
                    run.load_state_dict(run.state_dict())
                with ddp.join(divide_by_initial_world_size=by_all):
                    train(ddp, optimizer, place.rank, range(10 * epoch, 10 * epoch + 2 + 2 * place.rank))
            train(ddp, optimizer, place.rank, range(2))
            if run is not None:
                assert run.steps == 2 * (2 * size + 1) + 2
                run.close()
            ends.append(weights(ddp))
        return ends

    for plain, relaxed in pliant.run_world(size, body, timeout_s=60):
        if by_all:
            assert torch.equal(plain, relaxed)
        else:
            torch.testing.assert_close(plain, relaxed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sampled(JOINED))
def test_every_exchange_of_gradients_can_be_joined(name):
    """Ranks are equal afterwards, optimizer state and all, and go on together."""

    def body(place):
        ddp = new_ddp(place, model=NoBuffers)
        optimizer = optimizer_for(name, ddp.parameters())
        if name != "onebit_adam":
            optimizer = torch.optim.SGD(
                ddp.parameters(), lr=0.05, momentum=0.0 if getattr(ALGORITHMS[name].core, "momentum", 0) else 0.9
            )
        with pliant.relax(ddp, optimizer, ALGORITHMS[name], hosts=[[0], [1]], agreement_every=1, timeout_s=20) as run:
            with ddp.join():
                train(ddp, optimizer, place.rank, range(3 + 2 * place.rank))
            together = torch.cat([weights(ddp), torch.tensor([float(run.steps)])])
            train(ddp, optimizer, place.rank, range(3))
            run.state_dict()  # once all checks have ended
            assert run.stats()["last_agreement_step"] == run.steps == 8
        return together, weights(ddp)

    one, other = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_joined_is_refused_before_the_first_batch(name):
    def body(place):
        ddp = new_ddp(place)
        optimizer = optimizer_for(name, ddp.parameters())
        algorithm = {**ALGORITHMS, **BETWEEN_STEPS}[name]
        with pliant.relax(ddp, optimizer, algorithm, hosts=[[0], [1]], timeout_s=20) as run:
            with pytest.raises(ValueError, match=r"in join\(\) a rank without batches .* switch\(\)"):
                ddp.join()
            with ddp.join(enable=False):
                train(ddp, optimizer, place.rank, range(2))
            run.switch("allreduce")
            with ddp.join():
                train(ddp, optimizer, place.rank, range(1 + place.rank))
        return weights(ddp)

    one, other = pliant.run_world(2, body, timeout_s=60)
    assert torch.equal(one, other)
