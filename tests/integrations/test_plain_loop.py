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
    batches = batches_of(checkpoint, dies)
    run_block({**globals(), **locals()})
    return flat(module, buffers=True)


train_all(train)
dist.destroy_process_group()
"""


def test_a_plain_loop_is_killed_and_goes_on_to_the_bit(tmp_path):
    trains("torchrun", BODY, PLANS, tmp_path, imports="import torch")
