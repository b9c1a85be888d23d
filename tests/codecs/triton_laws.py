"""Laws of the Triton kernels. test_triton.py runs this file in Triton's interpreter, in a process of its own."""

import importlib
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton_cases import (
    KINDS,
    ODD_ROWS,
    ROWS,
    encode_differs,
    factors_of,
    mean_differs,
    same,
    topk_differs,
    values,
)

from pliant import codecs as c
from pliant.codecs import cast, feedback as codec_feedback, kernels as chooser, templates
from pliant.codecs.kernels import native, reference, triton as kernels
from pliant.codecs.kernels.triton import lowrank
from pliant.collectives import CompressedAverage
from pliant.comm import run_world
from pliant.comm.wrapped import WrappedComm
from tables import vector

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what a device does in silence
SIZES = [1, 7, 33, 1000, 2049, 5000]
default_rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
all_rows = pytest.mark.parametrize("row", ROWS + ODD_ROWS, ids=lambda row: row.label)


@default_rows
def test_a_sample_of_each_codec_equals_the_c_kernel(row):
    for kind in ("normal", "bad"):
        assert not encode_differs(row, kernels, values(kind, 2049, 1), vector("normal", 2049, 2), "cpu")
    assert not mean_differs(row, kernels, vector("normal", 2049, 1), torch.zeros(2049), 2, "cpu", feedback=True)


@pytest.mark.extended
@all_rows
@pytest.mark.parametrize("kind", KINDS)
def test_codecs_equal_the_c_kernels(row, kind):
    for turn, feedback in enumerate((True, False)):
        for numel in SIZES[(KINDS.index(kind) + turn) % 2 :: 2]:
            residual = vector("normal", numel, 2) if feedback else None
            assert not encode_differs(row, kernels, values(kind, numel, 1), residual, "cpu"), numel


@pytest.mark.extended
@default_rows
def test_many_blocks_equal_the_c_kernels(row):
    x, residual = vector("normal", 20_000, 1), vector("normal", 20_000, 2)
    x[5000:7048] *= 2e38  # a sum that overflows beside sums that do not
    x[12_000] = torch.inf
    assert not encode_differs(row, kernels, x.clamp(max=3e38), residual, "cpu")


@pytest.mark.extended
@all_rows
@pytest.mark.parametrize("kind", ["normal", "huge", "denormal", "one bad"])
@pytest.mark.parametrize("feedback", [True, False])
def test_the_step_of_an_owner_is_that_of_its_parts(row, kind, feedback):
    for numel, num_peers in ((1, 1), (1000, 3), (2600, 2)):
        x, owed = values(kind, numel, 1), vector("normal", numel, 2)
        assert not mean_differs(row, kernels, x, owed, num_peers, "cpu", feedback=feedback), numel
    assert not mean_differs(row, kernels, x, None, 2, "cpu", feedback=feedback)


@default_rows
def test_a_gate_that_is_not_finite_keeps_the_residual(row):
    x, before = vector("normal", 300, 1), vector("normal", 300, 2)
    for gate in (0.0, 3e38, torch.inf, torch.nan):
        residual, payload = before.clone(), torch.zeros(row.nbytes(300), dtype=torch.uint8)
        row.encode(kernels, x, residual, payload, gate=torch.tensor(gate))
        assert torch.equal(residual, before) == (gate not in (0.0, 3e38))


@pytest.mark.parametrize("codec", [c.MinMax8(block=64), c.Sign(block=128), c.Bf16()])
@pytest.mark.parametrize("bad", [None, 0, 299])
def test_a_vector_that_is_not_finite_leaves_all_of_its_residual_alone(codec, bad, monkeypatch):
    for module in (templates, cast):
        monkeypatch.setattr(module, "kernels_for", lambda x: kernels)
    for numel in (0, 300):
        x, before = vector("normal", numel, 1), vector("normal", numel, 2)
        if bad is not None and numel:
            x[bad] = torch.nan
        residual, payload = before.clone(), torch.zeros(codec.nbytes(numel), dtype=torch.uint8)
        codec.encode_gated(x, residual, payload, 0)
        assert torch.equal(residual, before) == (bad is not None or not numel)


@pytest.mark.parametrize("row", ROWS[:-2], ids=lambda row: row.label)
def test_only_blocks_that_are_not_finite_are_poisoned_and_keep_their_residual(row):
    block = row.settings[0]
    x, before = vector("normal", 4 * block, 1), vector("normal", 4 * block, 2)
    x[block + 3] = before[block + 3] = 3e38  # their sum is not finite
    residual, payload = before.clone(), torch.zeros(row.nbytes(4 * block), dtype=torch.uint8)
    row.encode(kernels, x, residual, payload)
    decoded = torch.zeros_like(x)
    row.decode(kernels, payload, decoded, add=True)
    blocks = (residual == before).view(4, block), decoded.isfinite().view(4, block)
    assert blocks[0].all(1).tolist() == [False, True, False, False]
    assert blocks[1].all(1).tolist() == [True, False, True, True]


def test_payloads_that_lie_askew_are_refused():
    x, payloads = torch.zeros(5), torch.zeros(2, 17, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"17 bytes a row lie askew.*multiple of 16"):
        kernels.minmax8_mean(x, None, payloads, payloads[0], 64, feedback=False)


@pytest.mark.parametrize("stride", [1, 61])
def test_a_sample_of_selections_equals_the_c_kernel(stride):
    x = (4 * vector("normal", 5000, 4)).round()  # many ties at the threshold
    x[-1], x[70] = torch.inf, torch.nan
    for k in (1, 400):
        assert not topk_differs(kernels, x, k, stride, "cpu")


@pytest.mark.extended
@pytest.mark.parametrize("stride", [1, 61])
@pytest.mark.parametrize("kind", KINDS)
def test_selections_equal_the_c_kernel(kind, stride):
    for numel in (1, 1000, 9000):
        for share in (0.001, 0.1, 1.0):
            k = max(1, int(share * numel))
            assert not topk_differs(kernels, values(kind, numel, 4), k, stride, "cpu"), (numel, k)


def test_what_was_selected_is_added_and_cleared_and_strays_poison():
    indices, chosen = torch.tensor([-1, 3, 1200, 2999], dtype=torch.int32), torch.tensor([9.0, 1.0, 2.0, 3.0])
    mine, theirs = vector("normal", 3000, 5), vector("normal", 3000, 5)
    kernels.add_at(mine, indices, chosen)
    native.add_at(theirs, indices, chosen)
    assert torch.equal(mine, theirs)
    kernels.clear_at(mine, indices)
    native.clear_at(theirs, indices)
    assert torch.equal(mine, theirs)
    for stray in (-2, 3000):
        acc = torch.zeros(3000)
        kernels.add_at(acc, torch.tensor([5, stray], dtype=torch.int32), chosen[:2])
        assert acc.isnan().nonzero().tolist() == [[0]]
        assert acc[5] == 9.0


def test_factors_of_all_matrices_become_orthonormal():
    shapes = [(4, 64), (4, 3000), (2, 50), (3, 7), (1, 5), (4, 100)]
    ps = factors_of(shapes, "cpu")
    ps[3][1, 2] = torch.nan
    wanted = [p.double() for p in ps]
    kernels.orthogonalize(ps)
    reference.orthogonalize(wanted)
    for p, w in zip(ps, wanted, strict=True):
        torch.testing.assert_close(p.double(), w, rtol=0, atol=1e-5, equal_nan=True)  # sums in another order
    assert not ps[0][-1].any()
    assert ps[3].isnan().any()
    again = factors_of(shapes, "cpu")
    kernels.orthogonalize(again)
    assert torch.equal(again[1], ps[1])


def test_a_table_is_copied_once_for_each_of_many_buckets():
    layouts, before = [((16 * k, 10),) for k in range(1000)], lowrank._table.cache_info().misses
    for places in (*layouts, *layouts):
        lowrank._table(places, torch.device("cpu"))
    assert lowrank._table.cache_info().misses - before == len(layouts)


@pytest.mark.parametrize(("n", "m", "r"), [(40, 1100, 1), (17, 512, 4), (5, 3, 3)])
def test_the_split_equals_the_c_kernel(n, m, r):
    p, q = vector("normal", r * n, 2).view(r, n), vector("normal", r * m, 3).view(r, m)
    results = []
    for module in (kernels, native):
        x, residual = vector("normal", n * m, 1).view(n, m), torch.full((n, m), torch.nan)
        module.low_rank_split(x, residual, p, q)
        results.append((x, residual))
    assert all(same(a, b) for a, b in zip(*results, strict=True))


class NoLookFromTheHost(TorchDispatchMode):
    """Refuse what would make the host wait for a device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waits = "_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique"
        assert not any(name in str(function) for name in waits), function
        return function(*args, **(kwargs or {}))


def test_no_wrapper_looks_at_the_device():
    x, gate = vector("normal", 300, 1), torch.zeros(())
    indices, chosen = torch.zeros(30, dtype=torch.int32), torch.zeros(30)
    ps = factors_of([(2, 10), (2, 20)], "cpu")
    with NoLookFromTheHost():
        for row in ROWS:
            payloads = torch.zeros(2, (row.nbytes(300) + 15) // 16 * 16, dtype=torch.uint8)
            payload = payloads[0, : row.nbytes(300)]
            row.encode(kernels, x, torch.zeros(300), payload, gate=gate)
            row.decode(kernels, payload, torch.zeros(300), add=True)
            row.mean(kernels, x.clone(), torch.zeros(300), payloads, payload, feedback=True)
        for stride in (1, 61):
            kernels.topk_encode(x, indices, chosen, stride)
        kernels.add_at(x, indices, chosen)
        kernels.clear_at(x, indices)
        kernels.orthogonalize(ps)
        kernels.low_rank_split(x.view(10, 30), torch.zeros(10, 30), ps[0], torch.zeros(2, 30))


def test_no_kernel_of_the_cpu_is_missing():
    assert set(native.__all__) <= set(kernels.__all__)
    assert all(callable(getattr(kernels, name)) for name in kernels.__all__)


def test_triton_is_chosen_where_it_compiles_for_the_device(monkeypatch):
    x = torch.empty(3, device="meta")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("meta"))
    driver = importlib.import_module("triton.runtime.driver")
    for active, chosen in (("meta", kernels), ("cuda", reference)):
        device = torch.device(active)
        backend = SimpleNamespace(active=SimpleNamespace(get_active_torch_device=lambda device=device: device))
        monkeypatch.setattr(driver, "driver", backend)
        chooser._on_accelerator.cache_clear()
        assert chooser.kernels_for(x) is chosen
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "triton.runtime.driver", driver)
    chooser._on_accelerator.cache_clear()
    assert chooser.kernels_for(x) is reference  # which is no accelerator at all
    chooser._on_accelerator.cache_clear()


class OneAtATime:
    """The Triton kernels for ranks that are threads: the interpreter changes Triton itself while a kernel runs."""

    def __init__(self):
        self._lock = threading.Lock()

    def __getattr__(self, name):
        function = getattr(kernels, name)

        def call(*arguments, **settings):
            with self._lock:
                return function(*arguments, **settings)

        return call


class Symmetric(WrappedComm):
    """A comm as over NCCL, which prefers one collective to messages."""

    prefers_collectives = True


def averaged(place, codec, *, feedback, symmetric):
    numel, comm = 3000, place.comm
    if symmetric:
        comm = Symmetric(comm)
    average = CompressedAverage(
        codec, numel, comm, chunk_bytes=1 << 12, owner_feedback=feedback, device=torch.device("cpu")
    )
    residual, found = torch.zeros(numel), []
    for step in range(2):
        x = vector("normal", numel, 10 * step + place.rank)
        average(x, step, residual)
        found += [x, residual.clone()]
    return torch.stack(found)


@pytest.mark.parametrize(
    "codec", [c.MinMax8(block=64), c.Int4(), c.Qsgd(bits=4, block=64), c.Sign(block=128), c.Sigma2(block=128), c.Bf16()]
)
@pytest.mark.parametrize("feedback", [True, False])
def test_an_average_by_fused_kernels_is_that_of_the_cpu(codec, feedback, monkeypatch):
    """Encode with feedback and an owner's step, in one launch each, over messages of pairs and over collectives."""
    wanted = run_world(3, lambda place: averaged(place, codec, feedback=feedback, symmetric=False), timeout_s=60)
    launches, one_at_a_time = [], OneAtATime()
    monkeypatch.setattr(templates, "kernels_for", lambda x: launches.append(1) or one_at_a_time)
    monkeypatch.setattr(cast, "kernels_for", lambda x: launches.append(1) or one_at_a_time)
    monkeypatch.setattr(codec_feedback, "is_accelerator", lambda device: True)
    for symmetric in (False, True):
        found = run_world(
            3, lambda place, way=symmetric: averaged(place, codec, feedback=feedback, symmetric=way), timeout_s=60
        )
        assert all(map(torch.equal, found, wanted))
    assert launches
