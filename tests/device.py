"""A device that is not there: its tensors have storage of their own, and a read by the host raises.

It shows what an accelerator would be asked for, on a CPU: that no host code looks into a device's tensor, that nothing
mixes tensors of both, that copies between them do not block, and that nobody looks at what a copy fills, or writes to
what it reads, before its event. It has one stream a thread, and shows no race between streams.
"""

import threading
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["DEVICE", "DeviceTensor", "HostReadError", "Stream", "device_at_hand", "to_device", "to_host"]

DEVICE = torch.device("maia", 0)
_aten = torch.ops.aten
_READS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
_SIZED_BY_VALUES = {_aten.nonzero.default, _aten.masked_select.default, _aten.unique_consecutive.default}
"""The host must read how many elements there are."""


def _bind_operators():
    """Let torch.ops have all operators before threads ask for them.

    torch makes one at its first use, without a lock, and its dispatcher keeps a pointer to what it was given. Where two
    threads are the first under a mode, each makes its own: the namespace keeps one, the pointer may be to the other.
    """
    for name in torch._C._dispatch_get_all_op_names():
        namespace, operator = name.split("::")
        if namespace in ("aten", "c10d"):
            packet, _, overload = operator.partition(".")
            getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default", None)


_bind_operators()


class HostReadError(AssertionError):
    """The host has read a tensor of the device, which would wait until the device is done."""


class DeviceTensor(Tensor):
    """A tensor whose values are known to the device alone."""

    @staticmethod
    def __new__(cls, held):
        return Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=0, dtype=held.dtype, device="meta"
        )

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    @property
    def device(self):
        return DEVICE  # to torch it is one without memory, since torch is not linked with any that has some

    def data_ptr(self):
        raise HostReadError("the host has asked for the address of a tensor of the device, as a C kernel would")

    def numpy(self, *, force=False):
        raise HostReadError("the host has read a tensor of the device through NumPy")

    def tolist(self):
        raise HostReadError("the host has read a tensor of the device as a list")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Give numbers to the device before torch makes tensors of them, which would have no value here."""
        if func is torch.where and len(args) == 3:
            args = (args[0], *(x if isinstance(x, Tensor) else DeviceTensor(torch.tensor(x)) for x in args[1:]))
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor):
            args = (*args[:2], DeviceTensor(torch.tensor(args[2], dtype=args[0].dtype)))
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if func in _READS or func in _SIZED_BY_VALUES:
        raise HostReadError(f"the host has read a tensor of the device by {func}")
    if func is _aten.index.Tensor and any(x is not None and x.dtype == torch.bool for x in args[1]):
        raise HostReadError("an index of booleans: the host must read how many are true")
    if func is _aten.copy_.default:
        return _copied(*args, **kwargs)
    on_host = func is _aten._to_copy.default and kwargs.get("device", DEVICE) != DEVICE
    if on_host:
        raise HostReadError("a tensor of the device was brought to the host by a copy that blocks")
    for x in given:
        if not isinstance(x, DeviceTensor) and x.dim():
            raise HostReadError(f"{func} was given tensors of both device and host")
    kwargs = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items()}
    out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    own = {id(x.held): x for x in given if isinstance(x, DeviceTensor)}

    def wrapped(x):
        if not isinstance(x, Tensor):
            return x
        return own[id(x)] if id(x) in own else DeviceTensor(x)

    return tree_map(wrapped, out)


def _held(x):
    return x.held if isinstance(x, DeviceTensor) else x


class _Copies(threading.local):
    """Copies between device and host that were launched by this thread and that it has not waited for."""

    def __init__(self):
        self.under_way = []


_copies = _Copies()


def _copied(into, source, non_blocking=False):
    to_device, from_device = isinstance(into, DeviceTensor), isinstance(source, DeviceTensor)
    if to_device == from_device:
        _held(into).copy_(_held(source))
    elif not non_blocking:
        if from_device:
            raise HostReadError("a tensor of the device was copied to the host, and the copy blocks")
        into.held.copy_(source)
    elif from_device:  # what the host sees until the copy has ended is anything
        value = source.held.clone()
        into.view(torch.uint8).fill_(0xA5)
        _copies.under_way.append(lambda: into.copy_(value))
    else:
        into.held.copy_(source)
        before = source.clone()
        _copies.under_way.append(lambda: _require_unchanged(source, before))
    return into


def _require_unchanged(buffer, before):
    if not torch.equal(buffer.view(torch.uint8), before.view(torch.uint8)):
        raise HostReadError("a host buffer was written to while the device copied from it")


class _Event:
    def __init__(self, copies):
        self._copies = copies

    def synchronize(self):
        """Let the copies that were launched before end."""
        while self._copies:
            self._copies.pop(0)()

    def query(self):
        """Say that the device has got there, since time has passed."""
        self.synchronize()
        return True


class Stream:
    """The stream that is current: its events end the copies of this thread that were launched before them."""

    def record_event(self):
        copies, _copies.under_way = _copies.under_way, []
        return _Event(copies)


class _AtHand(TorchDispatchMode):
    """Makes tensors on the device where code asks for them; those made on the host stay there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wanted = kwargs.get("device")
        if any(isinstance(x, DeviceTensor) for x in tree_leaves((args, kwargs))):
            return _run(func, args, kwargs)
        if wanted is not None and torch.device(wanted).type == DEVICE.type:
            made = func(*args, **{**kwargs, "device": torch.device("cpu")})
            return DeviceTensor(made)
        return func(*args, **kwargs)


class _Made(TorchFunctionMode):
    """Brings lists of numbers to the device, which torch would do where no mode sees it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            return DeviceTensor(func(*args, **{**kwargs, "device": "cpu"}))
        if func is Tensor.to and DEVICE in args and not isinstance(args[0], DeviceTensor):
            return DeviceTensor(args[0].clone())
        return func(*args, **kwargs)


@contextmanager
def device_at_hand():
    """Let code in this thread make tensors on the device."""
    with _Made(), _AtHand():
        yield


def to_device(x):
    return DeviceTensor(x.clone())


def to_host(x):
    """What the device holds, for a test to look at."""
    return x.held.clone()
