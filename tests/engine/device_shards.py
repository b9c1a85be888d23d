"""Steps of a sharded model on the device that is not there: FSDP2, which knows real devices alone, is played.

What FSDP2 would call is called in its order: gathers in forward and again in backward, reduce-scatters, the hook of the
reduced gradients, the end of the backward pass.
"""

import threading
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from device import DEVICE, to_device, to_host
from engine.device_steps import CPU
from pliant.comm import RecordedComm, StagedComm
from pliant.engine import sharded_source
from pliant.engine.algorithm_state import AlgorithmState
from pliant.engine.bucket_dispatcher import BucketDispatcher
from pliant.engine.comm_thread import CommThread
from pliant.engine.comms import Comms
from pliant.engine.gradient_exchange import GradientExchange
from pliant.engine.shard_exchanges import ShardExchanges
from pliant.engine.sharded_source import ShardedSource
from pliant.engine.tracer import Tracer
from pliant.engine.trial import PlanOnTrial
from pliant.spec import Rule, SyncPlan

__all__ = ["GROUPS", "ShardStepRun", "use_shards"]

GROUPS = {"one": {"c": (64, 16), "d": (1301,)}, "two": {"a": (41, 30), "b": (7,)}}


class _Pass(threading.local):
    """Functions that are to be called at the end of the backward pass of this thread."""

    def __init__(self):
        self.at_end = []


_pass = _Pass()


def use_shards(monkeypatch):
    """Let the end of a backward pass be that of `ShardStepRun.backward`."""
    monkeypatch.setattr(sharded_source, "after_backward", lambda call: _pass.at_end.append(call))


class _Group:
    """What the engine asks a parameter group."""

    gathered_dtypes = frozenset({torch.float32})
    defers_replicas = False

    def __init__(self, name, process_group, size):
        self.name, self.shapes, self.size = name, GROUPS[name], size
        self.shard_group, self.torch_gather, self.module = process_group, None, self
        self.raw, self.parameters = SimpleNamespace(_orig_dtype=torch.float32), ()

    @property
    def padded_numels(self):
        return [-(-shape[0] // self.size) * torch.Size(shape[1:]).numel() for shape in self.shapes.values()]

    def valid_numels(self, rank):
        return [
            max(0, min(padded, torch.Size(shape).numel() - rank * padded))
            for padded, shape in zip(self.padded_numels, self.shapes.values(), strict=True)
        ]

    def install(self, gather, scatter, hook):
        self.gather, self.scatter, self.hook = gather, scatter, hook

    def prefetch(self, following): ...

    def reads_at_once(self, dtype):
        return False

    def reshard(self): ...


class _Model:
    """What the engine asks a sharded model."""

    def __init__(self, comm, bring, mesh):
        ranks, replicas = mesh
        self.shard_comm = comm.split(ranks)
        self.replica_comm = comm.split(replicas)
        self.num_shards, self.shard_rank = self.shard_comm.size, self.shard_comm.rank
        self.has_replicas = self.replica_comm.size > 1
        process_group = SimpleNamespace(size=lambda: self.num_shards)
        self.groups = [_Group(name, process_group, self.num_shards) for name in GROUPS]
        self.shards = {}
        generator = torch.Generator().manual_seed(7)
        for group in self.groups:
            for name, padded, valid in zip(
                group.shapes, group.padded_numels, group.valid_numels(self.shard_rank), strict=True
            ):
                whole = torch.randn(group.shapes[name], generator=generator).view(-1)
                self.shards[name] = bring(whole[self.shard_rank * padded :][:valid].clone())

    def names_of(self, group):
        return list(group.shapes)

    def close(self): ...


class ShardStepRun:
    """Carries out steps of one plan for shards.

    Args:
        place: Rank of a world of threads.
        node: Node of all parameters.
        device: Device of the model.
        nonfinite: Whether gradients that are not finite are an error.
        mesh: Ranks of each group of shards, and of each group of replicas.

    """

    def __init__(self, place, node, device, nonfinite="raise", mesh=None):
        self._bring = to_device if device == DEVICE else torch.clone
        self.back = to_host if device == DEVICE else torch.clone
        self._device, self.rank = device, place.rank
        comm = RecordedComm(StagedComm(place.comm) if device == DEVICE else place.comm)
        mesh = mesh or ([list(range(place.size))], [[rank] for rank in range(place.size)])
        self.model = _Model(comm, self._bring, mesh)
        tracer = Tracer(CPU, comm)
        self.thread = CommThread(device, "gradients", tracer)
        trial = PlanOnTrial()
        self.dispatcher = BucketDispatcher(self.thread, tracer, trial)
        nodes = dict.fromkeys(self.model.shards, node)
        comms = Comms(self.model.replica_comm)
        store = AlgorithmState(self.model.shards, nodes, comms)
        rates = SimpleNamespace(param_groups=[{"lr": 0.05}])
        self.dispatcher.put_in_force(GradientExchange(store, comms, nonfinite, rates, {}), as_ready=True)
        self.exchanges = ShardExchanges(self.model, nodes, tracer, checks=nonfinite == "raise")
        source = ShardedSource(self.model, nn.Module(), self.dispatcher, self.thread, tracer, self.begin, trial)
        self.dispatcher.source = self.source = source
        source.put_in_force(SyncPlan(rules=(Rule(exchange=node),)), nodes, differ=False, parts=(self.exchanges,))

    def begin(self): ...

    def gathered(self):
        """Return the weights of all ranks, (size, row_numel) for each group, as they are gathered."""
        found = []
        for group in self.model.groups:
            row = torch.cat([self._padded(name, padded) for name, padded in _padding(group)])
            rows = torch.zeros(self.model.num_shards, len(row), device=self._device)
            rows[self.model.shard_rank].copy_(row)
            if group.gather is not None:
                group.gather(rows.view(-1), row, group.shard_group, True).wait()
            found.append(rows)
        return found

    def backward(self, step, spoil=lambda gradient, name: gradient):
        """Reduce the gradients of a pass, and return this rank's part of their means."""
        found = {}
        for group in reversed(self.model.groups):
            rows = torch.cat([self._gradient(step, name, padded, spoil) for name, padded in _padding(group)], 1)
            output = torch.empty(rows.shape[1], device=self._device)
            if group.scatter is not None:
                group.scatter(output, self._bring(rows).view(-1), group.shard_group, dist.ReduceOp.AVG)
            else:
                output.copy_(self._bring(rows[self.model.shard_rank]))
            if group.hook is not None:
                group.hook(output)
            found[group.name] = output
        while _pass.at_end:
            _pass.at_end.pop()()
        return found

    def step(self, found):
        """Do what comes before an optimizer's step, the step, and what comes after it."""
        self.dispatcher.raise_late_error()
        self.source.before_step(None, self.dispatcher.step)
        for group in self.model.groups:
            at = 0
            for name, padded in _padding(group):
                shard = self.model.shards[name]
                shard.sub_(found[group.name][at : at + len(shard)] * 0.05)
                at += padded
        self.dispatcher.step += 1
        self.source.after_step(self.dispatcher.step)
        self.exchanges.after_step(self.dispatcher.step)

    def close(self):
        self.thread.drain()
        self.exchanges.settle(0)
        self.exchanges.close()
        self.thread.close()

    def _padded(self, name, padded):
        shard = self.model.shards[name]
        return torch.cat([shard, torch.zeros(padded - len(shard), device=self._device)])

    def _gradient(self, step, name, padded, spoil):
        shape = next(group[name] for group in GROUPS.values() if name in group)
        generator = torch.Generator().manual_seed(1000 * step + 10 * ord(name) + self.rank)
        whole = spoil(torch.randn(shape, generator=generator).view(-1), name)
        size = self.model.num_shards
        return torch.cat([whole, torch.zeros(size * padded - len(whole))]).view(size, padded)


def _padding(group):
    return list(zip(group.shapes, group.padded_numels, strict=True))
