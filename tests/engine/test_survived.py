"""What DDP survives, Pliant survives: a batch whose gradient is not finite is caught, and training goes on."""

import pytest
import torch
from torch import nn

import pliant
from models import Net, batch, new_ddp, weights
from tables import ALGORITHMS, BETWEEN_STEPS, optimizer_for, sampled

EVERY_ALGORITHM = {**ALGORITHMS, **BETWEEN_STEPS}
POISONED = 3


def one_batch(ddp, optimizer, rank, step, *, poisoned=False):
    x, y = batch(rank, step)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(x), y)
    (loss * torch.nan if poisoned else loss).backward()
    optimizer.step()


@pytest.mark.parametrize("name", sampled([*ALGORITHMS, "local_sgd", "post_local_sgd", "between-hosts"]))
def test_training_goes_on_after_a_caught_nan(name):
    """All ranks raise out of the same backward pass, no weight has changed, nothing that is kept is NaN, and it trains.

    Late gradients, and those that are gathered, are exchanged in a later step, and all ranks raise there.
    """
    node = EVERY_ALGORITHM[name]
    stays = node.exchanges_weights or node.steps_beside

    def body(place):
        ddp = new_ddp(place)
        optimizer = optimizer_for(name, ddp.parameters())
        run = pliant.relax(ddp, optimizer, EVERY_ALGORITHM[name], hosts=[[0], [1]], agreement_every=2, timeout_s=20)
        raised, says = [], []
        with run:
            for step in range(10):
                # Where gradients stay with their rank, so does the error: there, all ranks meet one.
                poisoned = step == POISONED and (place.rank == 1 or stays)
                before = weights(ddp)
                try:
                    one_batch(ddp, optimizer, place.rank, step, poisoned=poisoned)
                except pliant.NonFiniteGradientError as error:
                    raised.append(step)
                    says.append(str(error))
                    assert torch.equal(before, weights(ddp))
                    assert run.steps == step - len(raised) + 1
            (kept,) = run.state_dict().values()
            assert all(t.isfinite().all() for own in kept["slots"].values() for t in own.values())
        assert f"rank {place.rank if stays else 1}: bucket" in says[0]
        return raised, weights(ddp)

    results = pliant.run_world(2, body, timeout_s=60)
    assert all(len(raised) == 1 and raised == results[0][0] for raised, _ in results)
    period = 1 if node.exchanges_weights else node.timing.period
    assert POISONED <= results[0][0][0] <= POISONED + period - 1 + node.timing.delay_steps
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][1].isfinite().all()


def test_a_dropped_batch_leaves_the_exact_plan_as_it_was():
    """Against DDP, which has never seen that batch, to the bit; with accumulation and unused parameters as well."""

    def body(place):
        ends = []
        for what in (None, "allreduce"):
            ddp = new_ddp(place, model=Net, find_unused_parameters=True)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
            run = pliant.relax(ddp, optimizer, what, timeout_s=20) if what else None
            ddp.eval()  # a forward pass changes nothing but gradients
            for step in range(6):
                if step == 2 and run is None:
                    continue
                optimizer.zero_grad()
                x, y = batch(place.rank, step)
                with ddp.no_sync():
                    nn.functional.cross_entropy(ddp(x), y).backward()
                loss = nn.functional.cross_entropy(ddp(x[:4]), y[:4])
                try:
                    (loss * torch.inf if step == 2 and place.rank == 0 else loss).backward()
                except pliant.NonFiniteGradientError:
                    continue
                optimizer.step()
            if run is not None:
                run.close()
            ends.append(weights(ddp))
        return ends

    for plain, relaxed in pliant.run_world(2, body, timeout_s=60):
        assert torch.equal(plain, relaxed)
