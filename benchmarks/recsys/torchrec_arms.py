"""TorchRec's shardings of the same tables, as arms; needs the environment that benchmarks/recsys/install makes.

On CPU TorchRec offers row-wise sharding of pooled tables to nobody, though it works there: `_Sharder` allows it. Its
planner gets what Pliant's gets: the network's rate, the memory of a rank, batch size and pooling.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.optim import SGD, Adagrad, Adam, RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter

from pliant_bench.clicks.batch import ClickBatch

KINDS = {
    "row_wise": ("row_wise",),
    "table_wise": ("table_wise",),
    "column_wise": ("column_wise",),
    "planner": ("data_parallel", "table_wise", "column_wise", "table_column_wise"),
    "all": ("data_parallel", "table_wise", "column_wise", "table_column_wise", "row_wise"),
}
"""What may become of a table, by arm; 'planner' is what TorchRec offers on CPU by itself."""

EPS = 1e-8
_CPU_BYTES = 1 << 40
_OPTIMIZERS: dict[str, tuple[type[Any], type[optim.Optimizer], dict[str, float]]] = {
    "sgd": (SGD, optim.SGD, {}),
    "adagrad": (Adagrad, optim.Adagrad, {"eps": EPS}),
    "rowwise_adagrad": (RowWiseAdagrad, RowWiseAdagrad, {"eps": EPS}),
    "adam": (Adam, optim.Adam, {"eps": EPS}),
}
"""By name: for shards, whose backward updates them; for replicas, which DDP averages; settings."""

for _name in (None, "torchrec"):  # advice on how to name a topology, on tables without shards
    logging.getLogger(_name).setLevel(logging.ERROR)


class _Sharder(EmbeddingBagCollectionSharder):
    def __init__(self, kinds: Sequence[str], optimizer: str, bits: int) -> None:
        registry = None
        if bits == 16:
            precision = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.FP16)
            registry = get_qcomm_codecs_registry(precision, device=torch.device("cpu"))
        super().__init__(qcomm_codecs_registry=registry)
        self._kinds = list(kinds)

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return self._kinds


class TorchRecBags:
    """Tables sharded by TorchRec, whose rows are updated in backward.

    Args:
        num_rows: Of each table.
        dim: Of all tables.
        kinds: What may become of a table.
        weights: Table and first and last column -> its rows, (num_rows, columns).
        optimizer: Name of the row optimizer.
        lr: Its learning rate.
        pooling: Ids of each bag.
        batch: Samples of a rank in a step.
        bytes_per_s: Of the links between ranks.
        memory_bytes: That a rank may use for rows; 0: any number.
        bits: Of a number between ranks; 32 or 16.
        ahead: Whether ids of the next batch travel beside the dense part of this one, as in TorchRec's sparse pipeline.

    """

    def __init__(
        self,
        num_rows: Sequence[int],
        dim: int,
        kinds: Sequence[str],
        weights: Callable[[int, int, int], Tensor],
        *,
        optimizer: str,
        lr: float,
        pooling: int,
        batch: int,
        bytes_per_s: float,
        memory_bytes: float = 0.0,
        bits: int = 32,
        ahead: bool = False,
    ) -> None:
        names = [f"t{t}" for t in range(len(num_rows))]
        self.names = names
        configs = [
            EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=[name])
            for name, rows in zip(names, num_rows, strict=True)
        ]
        tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        made, of_replicas, settings = _OPTIMIZERS[optimizer]
        apply_optimizer_in_backward(made, tables.parameters(), {"lr": lr, **settings})
        size = dist.get_world_size()
        topology = Topology(
            world_size=size,
            compute_device="cpu",
            local_world_size=1,
            ddr_cap=int(memory_bytes or _CPU_BYTES),
            inter_host_bw=bytes_per_s,
        )
        constraint = {
            name: ParameterConstraints(pooling_factors=[float(pooling)], min_partition=max(4, dim // size))
            for name in names
        }
        sharder = _Sharder(kinds, optimizer, bits)
        planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=batch,
            constraints=constraint,
            storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        )
        model = nn.ModuleDict({"tables": tables})
        self.plan = planner.plan(model, [sharder])  # on each rank alike, so that all hear of an error
        self.module = DistributedModelParallel(model, device=torch.device("cpu"), plan=self.plan, sharders=[sharder])
        self.tables: ShardedEmbeddingBagCollection = self.module.module["tables"]
        self._fill(weights)
        # Replicas are torch's parameters, which backward does not update.
        replicas = [p for _, p in in_backward_optimizer_filter(self.module.named_parameters())]
        self._of_replicas = of_replicas(replicas, lr=lr, **settings) if replicas else None
        self._ahead = ahead
        self._coming: tuple[Any, Any, Any] | None = None

    def kinds(self) -> dict[str, int]:
        """Return how many tables are sharded how."""
        found: dict[str, int] = {}
        for sharding in self.plan.plan["tables"].values():
            found[sharding.sharding_type] = found.get(sharding.sharding_type, 0) + 1
        return found

    def input_of(self, batch: ClickBatch) -> KeyedJaggedTensor:
        """Return ids as TorchRec takes them."""
        lengths = [
            torch.diff(o, append=o.new_tensor([i.numel()])) for i, o in zip(batch.ids, batch.offsets, strict=True)
        ]
        return KeyedJaggedTensor(keys=self.names, values=torch.cat(batch.ids), lengths=torch.cat(lengths).int())

    def __call__(self, ids: KeyedJaggedTensor, following: KeyedJaggedTensor | None) -> list[Tensor]:
        """Return a (batch, dim) for each table; those of `following` are asked for where ids travel ahead."""
        if not self._ahead:
            found: KeyedTensor = self.tables(ids)
        else:
            context, awaited = (
                self._start(ids) if self._coming is None or self._coming[0] is not ids else self._coming[1:]
            )
            spread = awaited.wait().wait()
            self._coming = None if following is None else (following, *self._start(following))
            found = self.tables.compute_and_output_dist(context, spread).wait()
        columns = found.to_dict()
        return [columns[name] for name in self.names]

    def step(self) -> None:
        """Update replicas; shards have been updated in backward."""
        if self._of_replicas is not None:
            self._of_replicas.step()
            self._of_replicas.zero_grad()

    def _start(self, ids: KeyedJaggedTensor) -> tuple[Any, Any]:
        context = self.tables.create_context()
        return context, self.tables.input_dist(context, ids)

    @torch.no_grad()
    def _fill(self, weights: Callable[[int, int, int], Tensor]) -> None:
        for name, held in self.tables.state_dict().items():
            t = int(name.split(".")[-2].removeprefix("t"))
            if not hasattr(held, "local_shards"):
                held.copy_(weights(t, 0, held.shape[1]))
                continue
            for shard in held.local_shards():
                first_row, first = shard.metadata.shard_offsets
                rows, columns = shard.metadata.shard_sizes
                shard.tensor.copy_(weights(t, first, first + columns)[first_row : first_row + rows])
