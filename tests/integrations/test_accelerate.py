"""An Accelerator, as it is, in two processes."""

from importlib.util import find_spec

import pytest

from integrations.framework_script import PLANS, SAMPLED, trains

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate: pip install accelerate"),
]

BODY = '''
import pliant
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process


class Kept(GeneralTracker):
    """A tracker in memory."""

    name, requires_logging_directory, main_process_only = "kept", False, True

    def __init__(self):
        super().__init__()
        self.rows = []

    tracker = property(lambda self: self.rows)

    @on_main_process
    def store_init_configuration(self, values): ...

    @on_main_process
    def log(self, values, step=None, **_):
        self.rows.append((step, values))


class Dies(list):
    """Samples; when one of a batch is taken that no process is to live for, all end together."""

    def __getitem__(self, k):
        if k >= self.until:
            die()
        return super().__getitem__(k)


def train(name, plan, checkpoint, dies=False):
    kept = Kept()
    accelerator = Accelerator(
        cpu=True, dynamo_backend="eager" if <compiled> else "no", gradient_accumulation_steps=2, log_with=kept,
        mixed_precision="bf16" if <bf16> else "no",
    )
    accelerator.init_trackers("tests")
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    batches = Dies(data(64)[8 * SAVE_AT if checkpoint else 0 :])
    batches.until = 48 if dies else 1000  # which each rank reaches in its 13th batch
    loader = torch.utils.data.DataLoader(batches, batch_size=2, generator=torch.Generator())
    folder, save_at, module, net_scheduler = f"{FOLDER}/{name}", 2 * SAVE_AT, model, scheduler
    if dies:
        folder += "-killed"
    run = run_block({**globals(), **locals()}, ", log_every=2")["run"]
    assert run.steps == STEPS and not run.is_open, run.steps
    if RANK == 0:
        assert len(kept.rows) == (STEPS - (SAVE_AT if checkpoint else 0)) // 2, kept.rows
        assert all({"pliant/step_s", "pliant/exposed_s", "pliant/sent_bytes"} <= set(values) for _, values in kept.rows)
    accelerator.free_memory()
    return flat(module, buffers=True)


end = dist.destroy_process_group
dist.destroy_process_group = lambda group=None: group and end(group)  # end_training() ends the world: here more follow
train_all(train)
if PHASE != "first":
    for name in PLANS:  # the model that Accelerate has saved is the mean of what the ranks have saved
        from safetensors.torch import load_file
        saved = load_file(f"{FOLDER}/{name}/model.safetensors")
        parts = [torch.load(f"{FOLDER}/{name}/pliant/rank{r}.pt")["state"][f"rank{r}"]["model"] for r in range(2)]
        for key, value in parts[0].items():
            if value.is_floating_point() and "diloco" in name:
                assert torch.equal(saved.get(key, saved.get(f"module.{key}")), (value + parts[1][key]) / 2), key
end()
'''


@SAMPLED
def test_a_loop_of_accelerate_is_killed_and_goes_on_to_the_bit(plans, tmp_path):
    """Under each kind of plan, with accumulation, clipping and a scheduler; trackers get what steps cost."""
    trains("Accelerate", BODY, plans, tmp_path, imports="import accelerate", bf16=False, compiled=False)


@pytest.mark.extended
@pytest.mark.parametrize(("bf16", "compiled"), [(True, False), (False, True)])
def test_so_does_a_loop_that_is_compiled_or_of_16_bits(bf16, compiled, tmp_path):
    trains("Accelerate", BODY, PLANS, tmp_path, imports="import accelerate", bf16=bf16, compiled=compiled)
