"""Real images as tensors: idx files (MNIST's format) or CIFAR-10's python batches."""

import gzip
import io
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pliant.recsys.fetch import DataMissingError
from pliant.spec.reading import read_bytes, shorten
from pliant_bench.harness.metric import METRICS, Metric
from pliant_bench.harness.tasks import sample_batch, steps_per_epoch
from pliant_bench.models import Cnn

__all__ = ["Images", "load_images"]

_MOST_BYTES = 1 << 30
"""Of an unpacked file."""
_CIFAR_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))


@dataclass(frozen=True, kw_only=True)
class Images:
    """Training and test images, normalized per channel by the training set, with labels."""

    metric: ClassVar[Metric] = METRICS["images"]
    lr: ClassVar[float] = 0.015
    """With error feedback a gradient arrives late, so a rate that only just suits exact averaging is too high."""
    adam: ClassVar[bool] = False
    probe: ClassVar[int] = 2500

    train_x: Tensor
    """float32 (num, channels, size, size)"""
    train_y: Tensor
    """int64 (num,)"""
    test_x: Tensor
    test_y: Tensor

    @property
    def num_held_out(self) -> int:
        """Number of images held out."""
        return self.test_y.numel()

    def model(self) -> nn.Module:
        """Return a convolutional network that fits the images."""
        channels, side = self.train_x.shape[1], self.train_x.shape[2]
        return Cnn(channels=channels, classes=int(self.train_y.max()) + 1, size=side)

    def tally(self, model: nn.Module, first: int, last: int) -> tuple[float, float]:
        """Return how many test images of a range are right, and how many there are."""
        right = model(self.test_x[first:last]).argmax(1) == self.test_y[first:last]
        return float(right.sum()), float(last - first)

    def batch(self, step: int, rank: int, size: int, num: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return a rank's batch of a step; over an epoch each image goes to at most one rank and step."""
        items = sample_batch(self.train_y.numel(), step, rank, size, num, seed)
        return self.train_x[items], self.train_y[items]

    def steps_per_epoch(self, size: int, num: int) -> int:
        """Return the number of steps in which all ranks have whole batches."""
        return steps_per_epoch(self.train_y.numel(), size, num)


def load_images(folder: Path) -> Images:
    """Load what a folder holds.

    Raises:
        DataMissingError: It holds neither of the two formats, or something damaged.

    """
    for place in (folder, folder / "cifar-10-batches-py"):
        if (place / _CIFAR_BATCHES[0]).exists():
            return _cifar(place)
    train_x, test_x = (_idx(folder, f"{part}-images-idx3-ubyte") for part in ("train", "t10k"))
    train_y, test_y = (_idx(folder, f"{part}-labels-idx1-ubyte") for part in ("train", "t10k"))
    return _normalize(train_x[:, None], train_y, test_x[:, None], test_y)


def _normalize(train_x: Any, train_y: Any, test_x: Any, test_y: Any) -> Images:
    """Take uint8 (num, channels, size, size) and labels (num,)."""
    mean = train_x.mean(axis=(0, 2, 3), keepdims=True)
    deviation = train_x.std(axis=(0, 2, 3), keepdims=True)
    return Images(
        train_x=torch.from_numpy(((train_x - mean) / deviation).astype(np.float32)),
        train_y=torch.from_numpy(train_y.astype(np.int64)),
        test_x=torch.from_numpy(((test_x - mean) / deviation).astype(np.float32)),
        test_y=torch.from_numpy(test_y.astype(np.int64)),
    )


def _idx(folder: Path, name: str) -> Any:
    """Read one idx file: two zero bytes, the type (8: uint8), the number of dimensions, each as a big-endian int32."""
    packed, plain = folder / f"{name}.gz", folder / name
    if not packed.exists() and not plain.exists():
        raise DataMissingError(
            f"{folder} has neither {name} nor {name}.gz, nor CIFAR-10's {_CIFAR_BATCHES[0]}; "
            "give a folder with all four idx files, or CIFAR-10's python batches, with --data."
        )
    path = packed if packed.exists() else plain
    try:
        raw = read_bytes(path)
        if path == packed:
            with gzip.open(io.BytesIO(raw)) as file:
                raw = file.read(_MOST_BYTES)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataMissingError(f"{path} cannot be read ({shorten(str(error))}); fetch it anew.") from None
    num_dimensions = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    shape = np.frombuffer(raw[4 : 4 + 4 * num_dimensions], ">i4")
    start = 4 + 4 * num_dimensions
    if not num_dimensions or len(raw) - start != int(np.prod(shape)):
        raise DataMissingError(f"{path} is not an idx file of bytes, or is cut off; fetch it anew.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


class _PlainUnpickler(pickle.Unpickler):
    """Reads CIFAR's batches, which are dicts of bytes and NumPy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]  # the same function, wherever this NumPy keeps it
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")):
            return super().find_class(module, name)
        raise DataMissingError(f"a CIFAR batch may not hold {module}.{name}; this file is not what it says it is.")


def _cifar(folder: Path) -> Images:
    def read(name: str) -> tuple[Any, Any]:
        try:
            body = _PlainUnpickler(io.BytesIO(read_bytes(folder / name)), encoding="bytes").load()
            return body[b"data"].reshape(-1, 3, 32, 32), np.array(body[b"labels"])
        except DataMissingError:
            raise
        except Exception as error:  # noqa: BLE001  whatever a pickle makes of bytes
            raise DataMissingError(
                f"{folder / name} is no batch of CIFAR-10 ({type(error).__name__}: {shorten(str(error))}); "
                "unpack the archive anew."
            ) from None

    if not (folder / "test_batch").exists():
        raise DataMissingError(
            f"{folder} has CIFAR-10's {_CIFAR_BATCHES[0]} but no test_batch; unpack the archive anew."
        )
    batches = [read(name) for name in _CIFAR_BATCHES if (folder / name).exists()]
    train_x, train_y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _normalize(train_x, train_y, *read("test_batch"))
