"""The Trainer of Hugging Face's transformers, as it is, in two processes."""

from importlib.util import find_spec

import pytest

from integrations.framework_script import PLANS, SAMPLED, trains

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        find_spec("transformers") is None, reason="needs transformers: pip install transformers accelerate"
    ),
]

IMPORTS = "import accelerate, transformers.trainer"
BODY = '''
import pliant
from transformers import Trainer, TrainerCallback, TrainingArguments


class Watches(TrainerCallback):
    """Looks at the model when it was evaluated, and ends the process where one is to be killed."""

    def __init__(self, dies):
        self.dies, self.equal, self.apart = dies, [], []

    def on_evaluate(self, args, state, control, model, **_):
        self.equal.append(torch.equal(*of_all(flat(model))))

    def on_step_begin(self, args, state, control, model, **_):
        self.apart.append(not torch.equal(*of_all(flat(model))))
        if self.dies and state.global_step == 5:
            die()


def train(name, plan, checkpoint, dies=False, **more):
    model, train_data, eval_data = Net(), data(64), data(16, seed=8)
    folder = f"{FOLDER}/{name}" + ("-killed" if dies else "")
    args = TrainingArguments(
        **{"eval_steps": 3, **more}, output_dir=folder, use_cpu=True, ddp_backend="gloo", max_steps=STEPS,
        save_steps=SAVE_AT, eval_strategy="steps", per_device_train_batch_size=2, gradient_accumulation_steps=2,
        max_grad_norm=0.5, learning_rate=0.01, logging_steps=2, report_to=[], label_names=["y"], disable_tqdm=True,
        seed=3, bf16=<bf16>, torch_compile=<compiled>, torch_compile_backend="eager" if <compiled> else None,
        dataloader_pin_memory=False,
    )
    watches = Watches(dies)
    given = {**globals(), **locals()}
    exec(BLOCK.replace('"onebit"', "plan").replace("(model=model", "(callbacks=[watches], model=model"), given)
    trainer = given["trainer"]
    weights_differ = "diloco" in name
    assert all(watches.equal) and watches.equal, "each rank was evaluated by itself"
    assert any(watches.apart) == weights_differ, watches.apart
    assert torch.equal(*of_all(flat(model))), "ranks differ at the end"
    rows = [row for row in trainer.state.log_history if "pliant/step_s" in row]
    assert len(rows) == STEPS // 2, trainer.state.log_history
    assert all(row["pliant/sent_bytes"] >= 0 and row["pliant/exposed_s"] >= 0 for row in rows)
    if trainer.state.best_model_checkpoint is not None:
        best = load_file(trainer.state.best_model_checkpoint + "/model.safetensors")
        assert all(torch.equal(best[name], value) for name, value in model.named_parameters()), "not the best model"
    last = trainer.evaluate()["eval_loss"]
    return torch.cat([flat(model, buffers=True), torch.tensor([last]).double()])


plans = {name: eval(plan) for name, plan in PLANS.items()}
for name, plan in plans.items():
    if PHASE == "first":
        keep(name, train(name, plan, None))
    else:
        same(name, train(name, plan, f"{FOLDER}/{name}/checkpoint-{SAVE_AT}"))
if PHASE == "first":
    train(name, plan, None, dies=True)
else:
    same(name, train(name + "-killed", plan, True))
    from safetensors.torch import load_file
    train("diloco-best", pliant.diloco(3), None, load_best_model_at_end=True, eval_steps=SAVE_AT)
dist.destroy_process_group()
'''


@SAMPLED
def test_a_trainer_is_killed_and_goes_on_to_the_bit(plans, tmp_path):
    """Under each kind of plan; evaluated is one model, logged is what steps cost, and both end with that model."""
    trains("Hugging Face Trainer", BODY, plans, tmp_path, imports=IMPORTS, bf16=False, compiled=False)


@pytest.mark.extended
@pytest.mark.parametrize(("bf16", "compiled"), [(True, False), (False, True)])
def test_so_does_one_that_is_compiled_or_of_16_bits(bf16, compiled, tmp_path):
    trains("Hugging Face Trainer", BODY, PLANS, tmp_path, imports=IMPORTS, bf16=bf16, compiled=compiled)
