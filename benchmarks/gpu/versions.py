"""Versions, the device, and a copy on it: the yardstick of all bandwidths."""

import importlib.metadata
import platform

import torch
from checks import Check
from timing import copy_gb_s, numel_of

__all__ = ["run"]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def run(device: str) -> None:
    Check(name="Python", figure=platform.python_version()).say()
    for package in ("torch", "triton", "numpy", "lazy-loader"):
        Check(name=package, figure=_version(package)).say()
    if device == "cuda":
        Check(name="device", figure=torch.cuda.get_device_name(), note=f"CUDA {torch.version.cuda}").say()
        Check(name="NCCL", figure=str(torch.cuda.nccl.version())).say()
    size = f"a copy of {numel_of(device) * 4 >> 10} KiB on the device"
    Check(name=size, figure=f"{copy_gb_s(device):.1f} GB/s", note="read and written").say()
