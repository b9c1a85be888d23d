"""Races between streams: some steps of algorithms of each kind under torch's stream sanitizer, which raises."""

from checks import Check, say_error
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
            except Exception as error:  # noqa: BLE001  whatever it is, it is said
                say_error(f"{name} on {backend}", error)
            else:
                Check(name=f"{name} on {backend}", figure="no race", bound="no race", passed=True).say()
