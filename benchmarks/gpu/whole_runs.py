"""What a user's script does beside a step: loss scaling, checkpoints, compiled models, `auto`; two ranks over Gloo."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from checks import Check, say_error
from pair import of_both, run_pair
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training import EVERY, Weighted, default_group

import pliant
from algorithms import say_distance

__all__ = ["of_pair", "run"]


def run(device: str) -> None:
    _say_equal("exact plan and plain DDP, compiled", lambda: _compiled(device))
    run_pair("whole_runs", device, 80)


def of_pair(device: str) -> None:
    for name in ("bytegrad", "onebit", "powersgd"):
        say_distance(f"{name}, scaled loss", lambda n=name: of_both(_scaled(device, n)), of_both(_scaled("cpu", name)))
    for name in ("onebit", "powersgd", "local_sgd", "streaming_diloco"):
        _say_equal(f"{name}, resumed", lambda n=name: of_both(_resumed(device, n)).view(2, 2, -1).transpose(0, 1))
    _say_equal("auto, both ranks", lambda: of_both(_tuned(device, "auto")))


def _say_equal(name: str, call: Callable[[], Tensor]) -> None:
    """Say whether two rows of weights are equal."""
    try:
        one, other = call()
    except Exception as error:  # noqa: BLE001  whatever it is, it is said
        say_error(name, error)
        return
    held = torch.equal(one, other) and bool(one.isfinite().all())
    figure = "equal" if held else f"{float((one - other).abs().max()):.1e} apart"
    Check(name=name, figure=figure, bound="to the bit", passed=held).say()


def _flat(module: nn.Module) -> Tensor:
    return torch.cat([w.detach().flatten() for w in module.parameters()])


def _data(rank: int, step: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2 * step + rank)
    return [torch.randn(shape, generator=generator).to(device) for shape in Weighted.SHAPES]


def _scaled(device: str, name: str) -> Tensor:
    """Return the weights after steps under a GradScaler, whose scale grows, and falls when a loss overflows."""
    module = Weighted().to(device)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    settings = {"hosts": [[0], [1]], "nonfinite": "propagate", "timeout_s": 30}
    with pliant.relax(model, optimizer, EVERY[name], **settings):
        for step in range(8):
            optimizer.zero_grad()
            loss = model(*_data(dist.get_rank(), step, device))
            scaler.scale(loss * (torch.inf if step == 3 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    return _flat(module)


def _resumed(device: str, name: str) -> Tensor:
    """Return the weights after all steps, and those of a second run that begins in the middle, one behind the other."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{dist.get_rank()}.pt"

        def trained(first: int, last: int) -> Tensor:
            module = Weighted().to(device)
            model = DistributedDataParallel(module)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
            with pliant.relax(model, optimizer, EVERY[name], hosts=[[0], [1]], timeout_s=30) as run_:
                if first:
                    saved = torch.load(file, weights_only=True)
                    module.load_state_dict(saved["model"])
                    optimizer.load_state_dict(saved["optimizer"])
                    run_.load_state_dict(saved["run"])
                for step in range(first, last):
                    optimizer.zero_grad()
                    model(*_data(dist.get_rank(), step, device)).backward()
                    optimizer.step()
                    if not first and step == last // 2 - 1:
                        states = {"model": module, "optimizer": optimizer, "run": run_}
                        torch.save({key: each.state_dict() for key, each in states.items()}, file)
            return _flat(module)

        return torch.stack([trained(0, 12), trained(6, 12)]).flatten()


def _layers(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).to(device)


def _compiled(device: str) -> Tensor:
    """Return the weights of one rank after steps of plain DDP, and of the exact plan, of a compiled model."""
    found = []
    for name in (None, "allreduce"):
        with default_group("nccl" if device == "cuda" else "gloo"):
            module = _layers(device)
            model = DistributedDataParallel(module)
            compiled = torch.compile(model, backend="inductor" if device == "cuda" else "aot_eager")
            optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
            run_ = pliant.relax(model, optimizer, name, timeout_s=30) if name else None
            for step in range(6):
                torch.manual_seed(step)
                optimizer.zero_grad()
                compiled(torch.randn(32, 64).to(device)).square().mean().backward()
                optimizer.step()
            if run_:
                run_.close()
            found.append(_flat(module))
    return torch.stack(found)


def _tuned(device: str, name: str) -> Tensor:
    """Return the weights after steps in which plans are tried."""
    module = _layers(device)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with pliant.relax(model, optimizer, name, timeout_s=30) as run_:
        for step in range(150):
            torch.manual_seed(step)
            optimizer.zero_grad()
            run_.model(torch.randn(32, 64).to(device)).square().mean().backward()
            optimizer.step()
        Check(name="auto", figure=str(run_)[:300]).say()
    return _flat(module)
