"""Launches of the low-rank passes for each matrix, beside those of the references."""

import torch
from checks import Check
from torch.profiler import ProfilerActivity, profile
from triton_cases import factors_of

from pliant.codecs.kernels import kernels_for, reference

__all__ = ["run"]

_NUM = 100


def _launches(call, device: str) -> int:
    """Return the kernels that a call starts on the device, or, on the CPU, torch's operators."""
    call()
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA if device == "cuda" else torch.autograd.DeviceType.CPU
    return sum(1 for event in profiled.events() if event.device_type == kind)


def run(device: str) -> None:
    ps = factors_of([(4, 64)] * _NUM, device)
    x, residual = torch.randn(64, 48, device=device), torch.zeros(64, 48, device=device)
    q = torch.randn(4, 48, device=device)
    ours = kernels_for(x)
    for name, kernels, bound in (("Pliant", ours, 1.0), ("references", reference, None)):
        of_all = _launches(lambda kernels=kernels: kernels.orthogonalize(ps), device) / _NUM
        of_split = _launches(lambda kernels=kernels: kernels.low_rank_split(x, residual, ps[0], q), device)
        held = None if bound is None or device != "cuda" else of_all <= bound and of_split == 1
        figure = f"{of_all:.2f} to make orthogonal, {of_split} to split"
        Check(
            name=f"launches for each matrix, {name}", figure=figure, bound="1 and 1" if bound else "", passed=held
        ).say()
