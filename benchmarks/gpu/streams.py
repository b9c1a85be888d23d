"""Races between streams: some steps of algorithms of each kind under torch's stream sanitizer, which raises."""

from checks import Check
from training import default_group, trained

__all__ = ["run"]

_NAMES = "allreduce", "bf16", "bytegrad", "int4", "onebit", "topk", "powersgd", "late-onebit", "local_sgd", "gossip"


def run(device: str) -> None:
    if device != "cuda":
        Check(name="stream sanitizer", figure="not looked at", note="torch's sanitizer needs CUDA").say()
        return
    for name in _NAMES:
        for backend in ("nccl", "gloo"):
            try:
                with default_group(backend) as group:
                    trained(name, device, group, 5)
                figure, passed = "no race", True
            except Exception as error:  # noqa: BLE001  whatever it is, it is said
                figure, passed = f"{type(error).__name__}: {str(error)[:200]}", False
            Check(name=f"{name} on {backend}", figure=figure, bound="no race", passed=passed).say()
