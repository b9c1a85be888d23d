"""Every Triton kernel compiles ahead of time, without a GPU, and uses it well."""
# ruff: noqa: E402  without Triton there is nothing to import

import importlib
import importlib.util
import pkgutil
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended
if importlib.util.find_spec("triton") is None:
    reason = "Triton is not here: pip install --no-deps --target FOLDER triton, and put FOLDER on PYTHONPATH"
    pytest.skip(reason, allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pliant.codecs.kernels import triton as package
from pliant.codecs.kernels.triton import blocks, lowrank, select
from pliant.codecs.kernels.triton.floats import CASTS, FP8, NATURAL
from pliant.codecs.kernels.triton.launch import Tiles
from pliant.codecs.kernels.triton.levels import LEVELS
from pliant.codecs.kernels.triton.minmax8 import MINMAX8
from pliant.codecs.kernels.triton.sigma import SIGMA
from pliant.codecs.kernels.triton.sign import SIGN

POINTERS = dict.fromkeys(
    ["x", "residual", "owed", "gate", "header", "headers", "scales", "acc", "values", "base", "p", "q"], "*fp32"
)
POINTERS |= dict.fromkeys(["codes", "payloads", "bits"], "*u8") | {"table": "*i64"}
POINTERS |= dict.fromkeys(["state", "counts", "above", "ties", "indices"], "*i32")
NUMBERS = {"size": "fp32"}  # others are int32
ALIGNED = "n", "m", "k"


@dataclass(frozen=True)
class Compiled:
    """A kernel, its constants, and which of its accesses must be wide: loads and stores of neighbours."""

    label: str
    kernel: object
    constants: dict
    num_warps: int = 4
    types: dict = field(default_factory=dict)
    loads: bool = True
    stores: bool = True


def _of_blocks() -> list[Compiled]:
    formats = {"minmax8": (MINMAX8, 2048), "natural": (NATURAL, 2048), "fp8": (FP8, 1024), "sign": (SIGN, 1024)}
    formats |= {"sigma": (SIGMA, 1024), "sigma, long blocks": (SIGMA, 4096)}
    formats |= {f"levels {key}": (format_, 64 if key[0] == 4 else 512) for key, format_ in LEVELS.items()}
    formats |= {str(dtype): (format_, 1024) for dtype, format_ in CASTS.items()}
    formats |= {"natural, short blocks": (NATURAL, 7), "sign, long blocks": (SIGN, 4096)}
    narrow = "natural, short blocks"
    found = []
    for label, (format_, block) in formats.items():
        constants = format_._constants(Tiles.of(block))
        num_warps, types = constants.pop("num_warps"), dict.fromkeys(("codes", "payloads"), "*i16")
        there, back = {"QUANTIZE": format_.quantize}, {"DEQUANTIZE": format_.dequantize}
        found += [
            Compiled(
                f"{label}: {kernel.fn.__name__}",
                kernel,
                more | constants,
                num_warps,
                types if format_.bits == 16 else {},
                loads=label != narrow,
                stores=label != narrow,
            )
            for kernel, more in (
                (blocks.encode_kernel, there),
                (blocks.decode_kernel, back | {"ADD": True}),
                (blocks.mean_kernel, there | back | {"FEEDBACK": True, "PAYLOADS": 3}),
            )
        ]
    return found


def _of_selection() -> list[Compiled]:
    tile, small = {"TILE": select._TILE}, {"TILE": 1024}
    found = []
    for shift, bins in select._PASSES:
        of_pass = {"SHIFT": shift, "BINS": bins}
        found += [
            Compiled(f"histogram {shift}", select.histogram_kernel, tile | of_pass | {"stride": 1}, stores=False),
            Compiled(f"bin {shift}", select.bin_kernel, of_pass),
        ]
    return [
        *found,
        Compiled("count", select.count_kernel, tile, stores=False),
        Compiled("compact, ties", select.compact_kernel, tile | {"TIES": True}, stores=False),
        Compiled("compact, first", select.compact_kernel, tile | {"TIES": False}, stores=False),
        Compiled("lost", select.lost_kernel, {}, loads=False, stores=False),
        Compiled("add_at", select.add_at_kernel, small, stores=False),
        Compiled("poison", select.poison_kernel, small, stores=False),
        Compiled("clear_at", select.clear_at_kernel, small, stores=False),
    ]


def _of_others() -> list[Compiled]:
    factors = {"RANK": 4, "PADDED": 4, "ALIGNED": True, "CHUNK": lowrank._CHUNK}
    return [
        Compiled("orthogonalize", lowrank.orthogonalize_kernel, factors),
        Compiled("split", lowrank.split_kernel, {"RANK": 4, "TILE": lowrank._TILE}),
    ]


TABLE = _of_blocks() + _of_selection() + _of_others()


def compiled(row: Compiled, arch: int):
    """Compile for aligned pointers and sizes: Triton finds out by itself at run time whether they are."""
    names = row.kernel.arg_names
    types = {a: row.types.get(a) or POINTERS.get(a) or NUMBERS.get(a, "i32") for a in names}
    signature = {a: "constexpr" if a in row.constants else types[a] for a in names}
    aligned = [
        k for k, a in enumerate(names) if signature[a].startswith("*") or (a in ALIGNED and a not in row.constants)
    ]
    attributes = {(k,): [["tt.divisibility", 16]] for k in aligned}
    source = ASTSource(fn=row.kernel, signature=signature, constexprs=row.constants, attrs=attributes)
    options = {"num_warps": row.num_warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def usage(cubin: bytes, folder: Path) -> dict[str, int]:
    """Return what a kernel uses, by the wheel's own tool: registers, stack, local memory."""
    (dumper,) = Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump")
    (folder / "kernel.cubin").write_bytes(cubin)
    command = [dumper, "-res-usage", folder / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.label)
def test_kernels_compile_without_spills_and_with_wide_accesses(row, arch, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    built = compiled(row, arch)
    used, ptx = usage(built.asm["cubin"], tmp_path), built.asm["ptx"]
    assert used["STACK"] == used["LOCAL"] == 0, used
    assert bool(re.search(r"ld\.global[.\w:]*\.v[24]", ptx)) >= row.loads
    assert bool(re.search(r"st\.global[.\w:]*\.v[24]", ptx)) >= row.stores
    assert not re.search(r"fma\.rn|\.ftz|div\.(full|approx)", ptx)  # rounded as in C, denormals too


def test_no_kernel_is_left_out():
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    kernels = {id(f): name for m in modules for name, f in vars(m).items() if name.endswith("_kernel")}
    assert kernels
    assert set(kernels) == {id(row.kernel) for row in TABLE}
