"""Kernels built for another CPU give the same bits there: for 64-bit ARM, under an emulator."""

import ctypes
import importlib.util
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pliant.codecs.kernels.library import _SIGNATURES, library

KERNELS = Path(__file__).parents[2] / "src" / "pliant" / "codecs" / "kernels"
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
NOT_NAN = ["-ffinite-math-only", "-fno-signed-zeros"]  # minmax8.c alone, as in CMakeLists.txt
WITHOUT_RESULT = {name for name, (result, *_) in _SIGNATURES.items() if result is None}
EMULATOR = shutil.which("qemu-aarch64-static")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        EMULATOR is None or importlib.util.find_spec("ziglang") is None,
        reason="needs zig's C compiler and qemu, which scripts/test --all installs",
    ),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Build the kernels and the driver for 64-bit ARM; return the program."""
    folder = tmp_path_factory.mktemp("aarch64")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", *FLAGS]
    sources = [*KERNELS.glob("*.c"), Path(__file__).with_name("driver.c")]
    objects = [folder / f"{source.stem}.o" for source in sources]
    for source, made in zip(sources, objects, strict=True):
        extra = NOT_NAN if source.stem == "minmax8" else []
        subprocess.run([*compiler, *extra, "-c", str(source), "-o", str(made)], check=True, timeout=300)
    program = folder / "driver"
    subprocess.run([*compiler, "-static", *map(str, objects), "-lm", "-o", str(program)], check=True, timeout=300)
    return program


def here(name, arguments):
    """Call a kernel of this machine; return its result and its buffers, as the driver writes them."""
    buffers = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    pointers = [b.ctypes.data if isinstance(b, np.ndarray) else b for b in buffers]
    result = getattr(library(), name)(*pointers)
    of_call = b"" if name in WITHOUT_RESULT else struct.pack("<Q", int(result) & (2**64 - 1))
    return of_call + b"".join(b.tobytes() for b in buffers if isinstance(b, np.ndarray))


def there(driver, name, arguments):
    """Call a kernel in the emulator; return the same."""
    said = name.encode() + b"\0" + struct.pack("<q", len(arguments))
    for kind, argument in zip(_SIGNATURES[name][1:], arguments, strict=True):
        if isinstance(argument, np.ndarray):
            said += b"p" + struct.pack("<q", argument.nbytes) + argument.tobytes()
        elif kind is ctypes.c_float:
            said += b"f" + struct.pack("<f", argument)
        else:
            said += b"n" + struct.pack("<q", argument or 0)
    out = subprocess.run([EMULATOR, str(driver)], input=said, capture_output=True, check=True, timeout=300).stdout
    return out[8:] if name in WITHOUT_RESULT else out


def cases(numel):
    """Yield calls of every kernel of codecs on vectors of a length: normal, with zeros, huge and tiny numbers."""
    draw = np.random.default_rng(numel)
    x = (draw.standard_normal(numel) * 10.0 ** draw.integers(-30, 30, numel)).astype(np.float32)
    x[::7] = 0.0
    residual, acc = (draw.standard_normal(numel).astype(np.float32) for _ in range(2))
    payload = np.zeros(16 * (numel // 16 + 2) + 8 * numel, dtype=np.uint8)
    coded = draw.integers(0, 255, len(payload), dtype=np.uint8)
    for feedback in (None, residual):
        yield "levels_encode", (x, feedback, payload, numel, 64, 4, 0, 5)
        yield "levels_encode", (x, feedback, payload, numel, 64, 2, 1, 5)
        yield "sigma_encode", (x, feedback, payload, numel, 64)
        yield "natural_encode", (x, feedback, payload, numel, 64, 9)
        yield "fp8_encode", (x, feedback, payload, numel, 64)
    for name in ("minmax8", "sign"):
        yield f"{name}_encode", (x, payload, numel, 64)
        yield f"{name}_encode_feedback", (x, residual, payload, numel, 64)
    blocks = -(-numel // 64)
    coded[: 12 * blocks] = np.tile(np.array([0.5, 2.0, 1.0], np.float32), blocks).view(np.uint8)
    for add in (0, 1):
        yield "minmax8_decode", (coded, acc, numel, 64, add)
        yield "sign_decode", (coded, acc, numel, 64, add)
        yield "levels_decode", (coded, acc, numel, 64, 4, add)
        yield "sigma_decode", (coded, acc, numel, 64, add)
        yield "natural_decode", (coded, acc, numel, 64, add)
        yield "fp8_decode", (coded, acc, numel, 64, add)
    k = max(1, numel // 10)
    places, values = np.sort(draw.permutation(numel)[:k]).astype(np.int32), draw.standard_normal(k).astype(np.float32)
    yield "topk_encode", (x, np.zeros(k, np.int32), np.zeros(k, np.float32), numel, k, 1)
    share = np.zeros(numel // 64 * 4 + min(numel % 64, 4), np.int32)
    yield "chunks_encode", (x, share, np.zeros(len(share), np.float32), numel, len(share), 64, 4)
    yield "add_at", (acc, numel, places, values, k)
    yield "clear_at", (acc, numel, places, k)
    yield "block_rms", (residual, np.zeros(blocks, np.float32), numel, 64)
    for name in ("randomk_gather", "randomk_add"):
        yield name, (acc, values, numel, k, 3)
    yield "randomk_clear", (acc, numel, k, 3)
    yield "all_finite", (x, numel)
    yield "scale", (residual, numel, 0.3)
    yield "hash_bytes", (x, x.nbytes)
    rows, rank = max(1, numel // 16), 2
    matrix, rest = (draw.standard_normal((rows, 16)).astype(np.float32) for _ in range(2))
    p, q = (draw.standard_normal((rank, n)).astype(np.float32) for n in (rows, 16))
    yield "low_rank_left", (matrix, rest, q, p, rows, 16, rank)
    yield "low_rank_right", (matrix, p, q, rows, 16, rank)
    yield "low_rank_split", (matrix, rest, p, q, rows, 16, rank)


@pytest.mark.parametrize("numel", [1, 63, 64, 1000, 4099])
def test_the_same_bits_on_another_cpu(driver, numel):
    called = set()
    for name, arguments in cases(numel):
        called.add(name)
        assert here(name, arguments) == there(driver, name, arguments), (name, numel)
    of_codecs = {n for n in _SIGNATURES if not n.startswith(("blocks_", "add_rows", "subtract_", "add_squares"))}
    assert of_codecs - {"by_owner", "number_keys"} <= called
