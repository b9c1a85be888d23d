"""A plain training loop, as torchrun starts it, in two processes."""

import pytest

from integrations.framework_script import PLANS, trains

pytestmark = [pytest.mark.processes, pytest.mark.extended]

BODY = """
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")


def train(name, plan, checkpoint, dies=False):
    model = module = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    save_at, folder = SAVE_AT, f"{FOLDER}/{name}" + ("-killed" if dies else "")

    def batches_of():
        given = data(2 * STEPS, seed=RANK)
        for k in range(SAVE_AT if checkpoint else 0, STEPS):
            if dies and k > SAVE_AT + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield {key: torch.stack([given[2 * k][key], given[2 * k + 1][key]]) for key in "xy"}

    batches = batches_of()
    exec(BLOCK.replace('"onebit"', "plan"), {**globals(), **locals()})
    assert torch.equal(*of_all(flat(module))), "ranks differ at the end"
    return flat(module, buffers=True)


import pliant
plans = {name: eval(plan) for name, plan in PLANS.items()}
for name, plan in plans.items():
    if PHASE == "first":
        keep(name, train(name, plan, None))
    else:
        same(name, train(name, plan, f"{FOLDER}/{name}"))
if PHASE == "first":
    train(name, plan, None, dies=True)
else:
    same(name, train(name, plan, f"{FOLDER}/{name}-killed"))
dist.destroy_process_group()
"""


def test_a_plain_loop_is_killed_and_goes_on_to_the_bit(tmp_path):
    trains("torchrun", BODY, PLANS, tmp_path, imports="import torch")
