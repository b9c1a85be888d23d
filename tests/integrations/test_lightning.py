"""Lightning's Trainer and Fabric, as they are, in two processes."""

from importlib.util import find_spec

import pytest

from integrations.framework_script import PLANS, trains

pytestmark = [
    pytest.mark.processes,
    pytest.mark.extended,
    pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning: pip install lightning"),
]

TRAINER = """
import csv, glob
import pliant
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(Net(), backend="eager") if <compiled> else Net()

    def training_step(self, batch, k):
        return self.net(**batch)["loss"]

    def validation_step(self, batch, k):
        self.log("val_loss", self.net(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]


class Watches(Callback):
    def __init__(self, dies):
        self.dies, self.equal, self.apart = dies, [], []

    def on_validation_batch_end(self, trainer, module, *_):
        self.equal.append(torch.equal(*of_all(flat(module))))

    def on_train_batch_start(self, trainer, module, *_):
        self.apart.append(not torch.equal(*of_all(flat(module))))
        if self.dies and trainer.global_step == 6:
            die()


def loader(size):
    return torch.utils.data.DataLoader(data(size), batch_size=2, generator=torch.Generator())


def train(name, plan, checkpoint, dies=False):
    module, train_loader, val_loader = Module(), loader(32), loader(8)
    folder = f"{FOLDER}/{name}" + ("-killed" if dies else "")
    watches = Watches(dies)
    saves = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1)
    options = dict(
        accelerator="cpu", max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5, num_sanity_val_steps=0,
        logger=CSVLogger(folder + "-log"), log_every_n_steps=2, callbacks=[watches, saves], enable_progress_bar=False,
        enable_model_summary=False, precision="bf16-mixed" if <bf16> else "32-true",
    )
    exec(BLOCK.replace('"onebit"', "plan"), {**globals(), **locals()})
    weights_differ = "diloco" in name
    assert watches.equal and all(watches.equal), "each rank was validated by itself"
    assert any(watches.apart) == weights_differ, watches.apart
    assert torch.equal(*of_all(flat(module))), "ranks differ at the end"
    if RANK == 0:
        rows = list(csv.DictReader(open(max(glob.glob(folder + "-log/**/metrics.csv", recursive=True)))))
        steps = [int(row["step"]) for row in rows if row["pliant/step_s"]]
        assert steps == list(range(6 if checkpoint else 2, 9, 2)), rows
    return flat(module, buffers=True)


train_all(train, f"{{folder}}/step={SAVE_AT}.ckpt")
if PHASE != "first":
    for name in PLANS:
        saved = torch.load(f"{FOLDER}/{name}/step={SAVE_AT}.ckpt", weights_only=False)["state_dict"]
        parts = [torch.load(f"{FOLDER}/{name}/step={SAVE_AT}.ckpt.pliant/rank{r}.pt")["state"] for r in range(2)]
        parts = [part[f"rank{r}"]["model"] for r, part in enumerate(parts)]
        saved = {key.replace("_orig_mod.", ""): value for key, value in saved.items()}
        for key, value in parts[0].items():
            if value.is_floating_point() and "diloco" in name:
                assert torch.equal(saved[key], (value + parts[1][key]) / 2), key
dist.destroy_process_group()
"""

FABRIC = """
import pliant
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger


class Kept(CSVLogger):
    rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))


def train(name, plan, checkpoint, dies=False):
    Kept.rows.clear()
    precision = "bf16-mixed" if <bf16> else "32-true"
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", loggers=[Kept(FOLDER)], precision=precision)
    fabric.launch()
    module = Net()
    model = torch.compile(module, backend="eager") if <compiled> else module
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    save_at, folder = SAVE_AT, f"{FOLDER}/{name}" + ("-killed" if dies else "")
    os.makedirs(folder, exist_ok=True)
    batches = batches_of(checkpoint, dies, per_step=2)
    given = run_block({**globals(), **locals()}, ", log_every=2")
    assert given["state"]["steps"] == given["run"].steps == STEPS
    if RANK == 0:
        assert [step for step, _ in Kept.rows] == list(range(SAVE_AT + 2 if checkpoint else 2, STEPS + 1, 2)), Kept.rows
    return flat(module, buffers=True)


train_all(train, "{folder}/training.ckpt")
dist.destroy_process_group()
"""

MODES = pytest.mark.parametrize(("bf16", "compiled"), [(False, False), (True, False), (False, True)])


@MODES
def test_lightning_is_killed_and_goes_on_to_the_bit(bf16, compiled, tmp_path):
    """With accumulation, clipping and a scheduler; validated is one model, and loggers get what steps cost."""
    imports = "import lightning.pytorch"
    trains("Lightning", TRAINER, PLANS, tmp_path, imports=imports, bf16=bf16, compiled=compiled)


@MODES
def test_fabric_is_killed_and_goes_on_to_the_bit(bf16, compiled, tmp_path):
    trains("Fabric", FABRIC, PLANS, tmp_path, imports="import lightning.fabric", bf16=bf16, compiled=compiled)
