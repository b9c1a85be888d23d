"""The wide residual network with 20 layers, CIFAR-10 from its archive, and parameters that stay on the CPU."""

import tarfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from pliant_bench.data.fetch import DataMissingError
from pliant_bench.data.images import Images, load_images

_ARCHIVE = "cifar-10-python.tar.gz"
_MEMBERS = (*(f"cifar-10-batches-py/data_batch_{k}" for k in range(1, 6)), "cifar-10-batches-py/test_batch")
_BLOCKS = 3
_PADDING = 4


class Block(nn.Module):
    """Norm, ReLU, convolution, twice; a 1 x 1 convolution beside them where the width or the size changes."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width_in), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = None if width_in == width else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm1(x))
        beside = x if self.shortcut is None else self.shortcut(h)
        return beside + self.conv2(torch.relu(self.norm2(self.conv1(h))))


class WideResNet(nn.Module):
    """Zagoruyko and Komodakis (arXiv:1605.07146): three stages of three blocks, 16 w, 32 w and 64 w channels.

    20 weighted layers: the first convolution, 18 in blocks, the last linear one; shortcuts do not count.
    """

    def __init__(self, widen: int, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        width_in = 16
        for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for k in range(_BLOCKS):
                layers.append(Block(width_in, width, 2 if stage and not k else 1))
                width_in = width
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(width_in), nn.ReLU())
        self.head = nn.Linear(width_in, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of images, (batch, 3, size, size)."""
        return self.head(self.features(x).mean((2, 3)))


class ComputedOn(nn.Module):
    """A module whose parameters and buffers stay where they are, and which computes on another device.

    So workers that share a GPU can exchange by Gloo on the CPU: gradients come back through the copies.
    """

    def __init__(self, inner: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.inner = inner
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        """Return the inner module's output, on its device."""
        parameters = {name: p.to(self.device) for name, p in self.inner.named_parameters()}
        buffers = {name: b.to(self.device, copy=True) for name, b in self.inner.named_buffers()}
        out = functional_call(self.inner, {**parameters, **buffers}, (x.to(self.device),))
        with torch.no_grad():
            for name, b in self.inner.named_buffers():
                b.copy_(buffers[name])
        return out


def load_cifar10(folder: Path) -> Images:
    """Load CIFAR-10 from a folder with the official python archive, or with what is in it.

    Raises:
        DataMissingError: There is neither, or it is damaged or holds anything else than arrays and plain values.

    """
    archive = folder / _ARCHIVE
    if archive.exists() and not (folder / _MEMBERS[-1]).exists():
        with tarfile.open(archive) as tar:
            held = set(tar.getnames())
            if missing := [name for name in _MEMBERS if name not in held]:
                raise DataMissingError(f"{archive} lacks {', '.join(missing)}; fetch it anew.")
            for name in _MEMBERS:  # the last is what says that all are there
                tar.extract(name, folder, filter="data")
    images = load_images(folder)
    if images.train_x.shape[1:] != (3, 32, 32):
        raise DataMissingError(f"{folder} holds other images than CIFAR-10's; give the folder with {_ARCHIVE}.")
    return images


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return random crops of images, (num, channels, size, size), padded by 4 zeros, half of them mirrored."""
    num, channels, size = x.shape[0], x.shape[1], x.shape[2]
    top, left = torch.randint(0, 2 * _PADDING + 1, (2, num, 1), generator=generator)
    mirrored = torch.rand(num, 1, generator=generator) < 0.5
    along = torch.arange(size)
    columns = left + torch.where(mirrored, size - 1 - along, along)  # (num, size)
    rows = top + along  # (num, size)
    wide = pad(x, (_PADDING,) * 4)
    at_image = torch.arange(num)[:, None, None, None]
    at_channel = torch.arange(channels)[None, :, None, None]
    return wide[at_image, at_channel, rows[:, None, :, None], columns[:, None, None, :]]
