"""Lines from rank 0 to the process that started it: one JSON object each, on standard output."""

import json
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from pliant_bench.harness.setup import MARK

__all__ = ["emit"]


def emit(kind: str, fields: Mapping[str, Any]) -> None:
    """Print a record, on rank 0 only."""
    if dist.get_rank() == 0:
        print(MARK + json.dumps({"kind": kind, **fields}), flush=True)
