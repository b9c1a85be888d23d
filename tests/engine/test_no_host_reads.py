"""Whole steps of every algorithm on a device: the host looks at nothing there, and what comes out is the CPU's."""

import gc
import weakref
from itertools import chain

import pytest
import torch

from device import DEVICE, HostReadError, to_device
from engine.device_steps import CPU, StepRun, on_device, use_device
from pliant import between_hosts, onebit, run_world
from pliant.algorithms import node_of
from pliant.buckets import spans_of
from pliant.comm import StagedComm
from pliant.engine import NonFiniteGradientError
from pliant.engine.bucket_layout import BucketLayout
from pliant.engine.device_findings import DeviceFindings
from pliant.spec import BlockSparse, VisibleChanges
from tables import ROWS, sampled

STEPS = 4
MAY_READ = {
    BlockSparse: "as many blocks are sent as the data says, and masks are packed on the host",
    VisibleChanges: "as many elements are sent as are visible, and ranks tell each other how many",
}
"""Nodes in whose exchange the host may look at the device, and why."""
ROUNDED = {"powersgd", "powersgd2", "dion", "ef21-rank", "decoupled_momentum", "demo-mean"}
"""Algorithms with products of matrices, which are not the C kernel's to the bit."""


@pytest.fixture(autouse=True)
def device(monkeypatch):
    use_device(monkeypatch)


def may_read(node):
    return any(isinstance(inner, tuple(MAY_READ)) for inner in node.walk())


def trained(place, node, device, nonfinite="raise", spoil=lambda step, gradient, names: gradient):
    """Return all weights, and all kept tensors, after some steps."""
    with on_device(device):
        run = StepRun(place, node, device, nonfinite)
        for step in range(STEPS):
            run.step(step, run.backward(step, lambda gradient, names, step=step: spoil(step, gradient, names)))
        run.close()
    kept = [t if t.device == CPU else run.back(t) for own in run.store.tensors.values() for t in own.values()]
    return [*map(run.back, run.parameters.values()), *map(run.back, run.states), *kept]


def require_equal(name, found, wanted):
    for x, y in zip(chain(*found), chain(*wanted), strict=True):
        if name in ROUNDED:
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert torch.equal(x.nan_to_num(nan=7.0), y.nan_to_num(nan=7.0)), name


ON_DEVICE = [name for name, algorithm in ROWS.items() if not may_read(node_of(algorithm))]


@pytest.mark.parametrize("name", sampled(ON_DEVICE))
def test_no_step_reads_the_device_and_all_come_to_what_the_cpu_does(name):
    node = node_of(ROWS[name])
    found = run_world(2, lambda place: trained(place, node, DEVICE), timeout_s=60)
    if node.timing.pace != "free":  # then what comes out depends on who is faster
        require_equal(name, found, run_world(2, lambda place: trained(place, node, CPU), timeout_s=60))


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in ROWS if name not in ON_DEVICE][:1])
def test_what_may_read_the_device_does_so(name):
    """Else it is to be taken out of the list."""
    with pytest.raises(HostReadError):
        run_world(2, lambda place: trained(place, node_of(ROWS[name]), DEVICE), timeout_s=60)


def spoiled(step, gradient, names):
    """Make one gradient in the second step infinite, on the rank whose thread this is."""
    if step == 1 and "c" in names:
        gradient = gradient.clone()
        gradient[len(gradient) // 2 + 300] = torch.inf
    return gradient


def of_rank_1(place):
    return spoiled if place.rank == 1 else lambda step, gradient, names: gradient


EXCHANGED = [name for name in ON_DEVICE if node_of(ROWS[name]).kind == "gradients" and "owner" not in name]


@pytest.mark.parametrize("name", sampled(EXCHANGED))
def test_what_overflowed_leaves_the_same_behind_as_on_the_cpu(name):
    """As under a GradScaler, which skips the step, and so after the exchange is undone."""
    node = node_of(ROWS[name])

    def body(place, device):
        return trained(place, node, device, "propagate", of_rank_1(place))

    found = run_world(2, lambda place: body(place, DEVICE), timeout_s=60)
    require_equal(name, found, run_world(2, lambda place: body(place, CPU), timeout_s=60))


@pytest.mark.parametrize("name", ["allreduce", "bytegrad", "onebit", "powersgd", "topk", "every", "late-onebit"])
def test_a_bad_gradient_is_named_before_a_weight_changes(name):
    """On all ranks, in the step in which it is exchanged, with the rank, the bucket and the parameter."""
    node = node_of(ROWS[name])

    def body(place, device):
        told, spoil = [], of_rank_1(place)
        with on_device(device):
            run = StepRun(place, node, device)
            for step in range(STEPS):
                before = [run.back(p) for p in run.parameters.values()]
                try:
                    run.step(step, run.backward(step, lambda g, names, step=step: spoil(step, g, names)))
                except NonFiniteGradientError as error:
                    told.append((step, str(error)))
                    assert all(map(torch.equal, before, [run.back(p) for p in run.parameters.values()]))
                    break
            run.thread.drain()
            run.close()
        return told

    found = run_world(2, lambda place: body(place, DEVICE), timeout_s=60)
    assert found == run_world(2, lambda place: body(place, CPU), timeout_s=60)
    ((_, said),) = found[0]
    assert "rank 1: bucket 0, parameter c" in said


def test_a_gradient_that_stays_here_is_named_on_its_rank():
    def body(place):
        spoil = of_rank_1(place)
        with on_device(DEVICE):
            run = StepRun(place, node_of(ROWS["local_sgd"]), DEVICE)
            buffers = run.backward(1, lambda g, names: spoil(1, g, names))
            said = ""
            try:
                run.dispatcher.raise_late_error()
            except NonFiniteGradientError as error:
                said = str(error)
            run.close()
        return len(buffers), said

    (_, first), (_, second) = run_world(2, body, timeout_s=60)
    assert first == ""
    assert "rank 1: bucket 0, parameter c" in second


def test_all_ranks_name_what_several_threads_have_found_in_one_order():
    """Exchanges of more stages end in another thread, earlier on one rank and later on another."""
    layouts = [
        BucketLayout(index=k, spans=spans_of([f"p{k}"], [(numel,)]), nodes=(), parts=(), prescaled=False)
        for k, numel in enumerate((5, 9))
    ]

    def body(place):
        with on_device(DEVICE):
            findings = DeviceFindings(StagedComm(place.comm), DEVICE, raises=True)
            for layout in layouts if place.rank else reversed(layouts):
                bad = layout.spans[0].numel - 1 if place.rank else -1
                findings.judge(layout, to_device(torch.full((1,), torch.nan)), to_device(torch.tensor(bad)))
            findings.end_pass()
            return str(findings.pop_late_error())

    assert all("(rank 1: bucket 0, parameter p0)" in said for said in run_world(2, body, timeout_s=20))


def test_weights_that_are_not_finite_are_not_sent():
    def body(place):
        with on_device(DEVICE):
            run = StepRun(place, node_of(ROWS["local_sgd"]), DEVICE)
            run.parameters["b"].fill_(torch.nan)
            for step in range(2):
                run.step(step, run.backward(step))
            with pytest.raises(NonFiniteGradientError, match="NaN or Inf in the weights of b, and has not sent"):
                run.step(2, run.backward(2))
            run.close()

    run_world(1, body)


def are_buckets_held(node, hosts):
    def body(place):
        with on_device(DEVICE):
            run = StepRun(place, node, DEVICE, hosts=hosts)
            buffers = run.backward(0)
            run.step(0, buffers)
            run.thread.drain()
            held = [weakref.ref(buffer) for buffer in buffers]
            del buffers
            gc.collect()
            alive = [ref() is not None for ref in held]
            run.close()
        return alive

    return any(chain(*run_world(sum(map(len, hosts)), body, timeout_s=60)))


@pytest.mark.parametrize("name", sampled(ON_DEVICE))
def test_ddp_may_free_its_buckets_between_passes(name):
    """It makes new ones after the first pass, beside which there is no room for those before."""
    assert not are_buckets_held(node_of(ROWS[name]), [[0], [1]])


def test_slices_between_hosts_hold_no_buckets():
    assert not are_buckets_held(between_hosts(onebit()), [[0, 1], [2, 3]])
