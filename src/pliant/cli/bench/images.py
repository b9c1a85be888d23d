"""Real images: Fashion-MNIST as Debian packages it, or a folder of the user's own."""

import gzip
import hashlib
import pickle
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["DataMissingError", "Images", "load_images"]

_PACKAGE = "dataset-fashion-mnist"
_SHA256 = "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0"
_SYSTEM = Path("/usr/share/datasets/fashion-mnist")
_CIFAR_FILES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")


class DataMissingError(RuntimeError):
    """The data cannot be had; the message says from where it was asked for."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Training and test images, normalized, with labels."""

    train_x: Tensor
    """float32 (num, channels, size, size)"""
    train_y: Tensor
    """int64 (num,)"""
    test_x: Tensor
    test_y: Tensor

    def batch(self, step: int, rank: int, size: int, num: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return a rank's batch of a step; over an epoch each image goes to exactly one rank and step."""
        per_epoch = self.train_y.numel() // (num * size)
        epoch, within = divmod(step, max(per_epoch, 1))
        order = torch.randperm(self.train_y.numel(), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
        at = (within * size + rank) * num
        chosen = order[at : at + num]
        return self.train_x[chosen], self.train_y[chosen]


def load_images(folder: str) -> Images:
    """Load idx files or a CIFAR-10 python archive from a folder; Fashion-MNIST if none is given.

    Raises:
        DataMissingError: There is no such data, and it could not be fetched.

    """
    where = Path(folder) if folder else _fashion_mnist()
    if (where / _CIFAR_FILES[0]).exists():
        return _cifar(where)
    try:
        parts = [
            _idx(where, f"{part}-{kind}-ubyte") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
        ]
    except FileNotFoundError as error:
        raise DataMissingError(
            f"{where} holds neither idx files (train-images-idx3-ubyte[.gz] and so on) nor CIFAR-10's python batches: "
            f"{error}."
        ) from None
    return _normalized(parts[0][:, None], parts[1], parts[2][:, None], parts[3])


def _normalized(train_x: Any, train_y: Any, test_x: Any, test_y: Any) -> Images:
    mean = train_x.mean(axis=(0, 2, 3), keepdims=True)
    deviation = train_x.std(axis=(0, 2, 3), keepdims=True)
    return Images(
        train_x=torch.from_numpy(((train_x - mean) / deviation).astype(np.float32)),
        train_y=torch.from_numpy(train_y.astype(np.int64)),
        test_x=torch.from_numpy(((test_x - mean) / deviation).astype(np.float32)),
        test_y=torch.from_numpy(test_y.astype(np.int64)),
    )


def _idx(where: Path, name: str) -> Any:
    packed = where / f"{name}.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (where / name).read_bytes()
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


class _PlainUnpickler(pickle.Unpickler):
    """Reads CIFAR's batches, which are dicts of bytes and NumPy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        raise DataMissingError(f"a CIFAR batch may not hold {module}.{name}; this file is not what it says it is.")


def _cifar(where: Path) -> Images:
    def read(name: str) -> tuple[Any, Any]:
        with (where / name).open("rb") as file:
            body = _PlainUnpickler(file, encoding="bytes").load()
        return body[b"data"].reshape(-1, 3, 32, 32), np.array(body[b"labels"])

    batches = [read(name) for name in _CIFAR_FILES if (where / name).exists()]
    train_x, train_y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return _normalized(train_x, train_y, *read("test_batch"))


def _fashion_mnist() -> Path:
    if _SYSTEM.exists():
        return _SYSTEM
    cache = Path.home() / ".cache" / "pliant" / "fashion-mnist"
    if cache.exists():
        return cache
    print(f"fetching the Debian package {_PACKAGE} (31 MB) into {cache} ...", flush=True)
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        try:
            subprocess.run(["apt-get", "download", _PACKAGE], cwd=scratch, check=True, capture_output=True, timeout=300)
            (archive,) = Path(scratch).glob("*.deb")
            if hashlib.sha256(archive.read_bytes()).hexdigest() != _SHA256:
                raise DataMissingError(f"the package {_PACKAGE} is not the one expected (sha256 differs); not used.")
            subprocess.run(["dpkg-deb", "-x", str(archive), scratch], check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise DataMissingError(
                f"Fashion-MNIST is not here and could not be fetched ({error}); install the Debian package {_PACKAGE}, "
                "or give a folder with --data."
            ) from error
        shutil.move(str(Path(scratch) / _SYSTEM.relative_to("/")), cache)
    return cache
