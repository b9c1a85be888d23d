"""The module: embedding tables of any layout, looked up, pooled, trained."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pliant.comm.base import Comm
from pliant.recsys.embedding.autograd import lookup_outputs, uncompiled
from pliant.recsys.embedding.bags import BagBatch, Inputs, read_batch
from pliant.recsys.embedding.channel import LookupGroups
from pliant.recsys.embedding.hot import agree_hot_ids
from pliant.recsys.embedding.initial import Source, source_of
from pliant.recsys.embedding.local_tables import build_local_tables
from pliant.recsys.embedding.modules import require_tables
from pliant.recsys.embedding.optimizers import RowRule
from pliant.recsys.embedding.prefetch import Prefetcher
from pliant.recsys.embedding.round_trip import GradientReturn, LookupRoundTrip, exchange_requests
from pliant.recsys.embedding.state import checked_parts, gather_rows, read_rows, saved_hot, saved_state
from pliant.recsys.embedding.stats import LookupStats, stats_of
from pliant.recsys.embedding.step_check import StepCheck
from pliant.spec.embedding import EmbeddingPlan

__all__ = ["ShardedEmbeddingBag"]


class ShardedEmbeddingBag(nn.Module):
    """Embedding tables over ranks, as a plan lays them out; in the place of a list of `torch.nn.EmbeddingBag`.

    `forward` looks up and pools, `backward` sends gradients to the owners of rows, `step` applies them, to each row
    once. All are collective: every rank calls them in the same order, also with empty batches.

    Args:
        plan: Tables, layouts, optimizer; the same on every rank.
        comm: As many ranks as the plan has; a group of its own is split off.
        lr: Learning rate; may be changed at any time, on all ranks alike.
        weights: First values: a tensor (num_rows, dim) for each table, or a function of a table's index and ids of
            rows; None: drawn with `seed`, equal for every plan.
        hot: Ids of rows that are on all ranks, by name of table, at most the layout's `num_hot`; see `set_hot`.
        hosts: Ranks of each host, for a plan that is hierarchical.
        seed: Of first values, and of the random rounding of 8-bit gradients.
        eps: Of the optimizer; None: 1e-10 for the two Adagrads, 1e-8 for Adam.
        betas: Of Adam.
        average: Whether sums of gradients over ranks are divided by their number, as DDP does.
        device: Where tables live.

    Raises:
        ValueError: The plan is for another number of ranks, or ranks have different plans or hot rows.

    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        comm: Comm,
        *,
        lr: float,
        weights: Sequence[Tensor] | Source | None = None,
        hot: Mapping[str, Tensor | Sequence[int]] | None = None,
        hosts: Sequence[Sequence[int]] | None = None,
        seed: int = 0,
        eps: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        average: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.plan, self.lr = plan, lr
        self.device = torch.device(device)
        self._seed = seed
        self._rule = RowRule(kind=plan.optimizer, eps=eps, betas=betas)
        self._divisor = comm.size if average else 1
        self._ranks = LookupGroups(plan, comm, hosts, self.device)
        self._local = build_local_tables(plan, comm.rank, source_of(plan.tables, weights, seed), self.device)
        self._anchor = torch.zeros(0, dtype=torch.float32, device=self.device, requires_grad=True)
        self._open: list[LookupRoundTrip] = []  # since the last step
        self._returning: list[GradientReturn] = []
        self._prefetcher = Prefetcher(self._local, self._ranks.another)
        self._generator = torch.Generator(self.device)
        self._step_check = StepCheck()
        self.num_steps = 0
        self.age = 0
        """Steps since gradients of rows on all ranks were last used: at most the plan's `every` - 1 after a step."""
        self.hot: dict[str, Tensor] = {}
        """Ids of the hot rows by name of table, int64, ascending."""
        self._last_offsets: Sequence[bool] | None = None
        self._counts = torch.zeros(3, dtype=torch.int64)  # ids, vectors, found in replicas
        self._reseed()
        self.set_hot(hot or {})

    @classmethod
    def from_modules(
        cls,
        bags: Sequence[nn.EmbeddingBag],
        plan: EmbeddingPlan,
        comm: Comm,
        *,
        lr: float,
        hot: Mapping[str, Tensor | Sequence[int]] | None = None,
        hosts: Sequence[Sequence[int]] | None = None,
    ) -> "ShardedEmbeddingBag":
        """Return the module that stands in for these, with their values and their way to give offsets.

        Raises:
            ValueError: A module differs from its table in the plan, or does what tables cannot do.

        """
        require_tables(bags, plan.tables)
        made = cls(plan, comm, lr=lr, weights=[bag.weight for bag in bags], hot=hot, hosts=hosts)
        made._last_offsets = [bag.include_last_offset for bag in bags]
        return made

    def _reseed(self) -> None:
        """Random rounding in a step depends on the step and the rank, and on nothing before."""
        self._generator.manual_seed(((self._seed * 1_000_003 + self.num_steps) * 4096 + self._ranks.comm.rank) % 2**63)

    @uncompiled
    def forward(self, inputs: Inputs) -> list[Tensor]:
        """Look up and pool.

        Args:
            inputs: (ids, offsets) for each feature, or one of the other forms of `bags.Inputs`.

        Returns:
            For each feature, in that order of the plan, float32 (bags, dim).

        Raises:
            IndexError, ValueError, TypeError: Some rank's inputs are bad; on all ranks, if any table is sharded.
            CommError: A rank is gone.

        """
        if self._prefetcher.busy:
            trip = self._prefetcher.take(inputs)
        else:
            with torch.no_grad():
                trip = exchange_requests(self._local, lambda: self._read(inputs), self._ranks.channel)
        if torch.is_grad_enabled():
            self._step_check.look(waiting=bool(self._returning))
            self._open.append(trip)
        self._counts += trip.counts()
        return lookup_outputs(self._anchor, trip, self._ranks.channel, self._send_back, len(self.plan.tables))

    @uncompiled
    def prefetch(self, inputs: Inputs) -> None:
        """Look up the batch of the next `forward` beside whatever happens until then. Every rank calls it, or none.

        After the forward passes of a step, before its `step`. Sizes and requests travel at once; so do the rows that no
        rank looks up in this step, since nothing can change them. The others follow after `step`: what `forward`
        returns is the same as without.

        Args:
            inputs: The very object that `forward` will be given.

        """
        self._prefetcher.begin(inputs, lambda: self._read(inputs), self._open)

    def _read(self, inputs: Inputs) -> BagBatch:
        return read_batch(self.plan.tables, inputs, self.device, last_offsets=self._last_offsets)

    def _send_back(self, trip: LookupRoundTrip, gradients: Sequence[Tensor]) -> None:
        """Send gradients of what `forward` returned to the owners of rows. Called by autograd."""
        if trip not in self._open:
            if self._prefetcher.busy:
                raise ValueError("backward() goes through a forward() of an earlier step, but prefetch() came between.")
            self._open.append(trip)  # the next step changes its rows
        self._returning.append(trip.back(self._ranks.channel, gradients, self._generator))

    @uncompiled
    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients that backward passes have sent since the last step, to each row once.

        No optimizer of torch does: the tables are no parameters. Rows on all ranks are updated every `plan.every`
        steps, with the sum of their gradients since.
        """
        self._step_check.refuse_scale()
        returning, self._returning, self._open = self._returning, [], []
        for one in returning:
            one.land()
        self._local.apply(self._rule, self.lr, self._divisor)
        self.num_steps += 1
        self.age += 1
        if self.age >= self.plan.every:
            self._synchronize()
        self._reseed()

    def _synchronize(self) -> None:
        if self.age:
            self._local.synchronize(self._ranks.sum_over, self._rule, self.lr, self._divisor)
        self.age = 0

    @torch.no_grad()
    def set_hot(self, hot: Mapping[str, Tensor | Sequence[int]]) -> None:
        """Choose anew which rows are on all ranks; no value changes. Between `step` and the next `forward`.

        Gradients that wait are applied first. Rows that cool go back to their owners without communication; rows that
        become hot are sent by their owners, a bounded part at a time.

        Args:
            hot: Ids by name of table; a table that is not named has none.

        Raises:
            ValueError: Ranks name different rows, more than the layout has room for, or a step is open.
            IndexError: A table has no such row.

        """
        self._require_no_gradients("set_hot()")
        ids = agree_hot_ids(self.plan, hot, self._ranks.comm, self.device)
        self._prefetcher.drop()
        self._synchronize()
        self._local.change_hot(ids, self._ranks.channel)
        self.hot = {self.plan.tables[t].name: its for t, its in ids.items()}

    @torch.no_grad()
    def full_weights(self, table: str | None = None) -> list[Tensor]:
        """Return one table, or all, float32 (num_rows, dim), on every rank: for small ones. Collective."""
        self._require_no_gradients("full_weights()")
        self._local.refresh_owners()
        return gather_rows(self._local, self._ranks.comm, self.plan.tables, table)

    @torch.no_grad()
    def state_dict(self, *_: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Return {'rank<i>': {...}} of tensors: the rows of this rank and what their optimizer keeps. Collective.

        Gradients that wait on replicas are applied first. Tensors are live, but for those of replicated tables. The
        state loads under any plan with the same tables and optimizer, and at any number of ranks. A module that
        this one is part of leaves it out of its own state, which is that of one rank.
        """
        del prefix, keep_vars
        if destination is not None:  # that of a module that this one is part of, which any rank may ask for by itself
            return destination
        self._require_no_gradients("state_dict()")
        self._synchronize()
        self._local.refresh_owners()
        return saved_state(self._local, self.plan.tables, self._ranks.comm, self.num_steps, self.hot)

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on from a state. Hot rows are its own where the layout has room for all of a table. Collective.

        Args:
            state_dict: The parts of all ranks that saved it, 'rank0' and so on, merged.
            strict: Without effect: all must fit.
            assign: Without effect.

        Raises:
            ValueError: Tables or optimizers differ, or parts are missing; on all ranks, before anything changes.

        """
        del strict, assign
        self._require_no_gradients("load_state_dict()")
        self._prefetcher.drop()
        parts = checked_parts(state_dict, self._local, self.plan, self._ranks.comm)
        self.num_steps = int(parts[0]["counters"][0])
        hot = self.hot | saved_hot(parts, self.plan)
        self.set_hot({})
        read_rows(self._local, self.plan.tables, parts)
        self.age = 0
        self._reseed()
        self.set_hot(hot)

    def _require_no_gradients(self, what: str) -> None:
        if self._returning:
            raise ValueError(f"gradients have been sent but not applied; call step() before {what}.")

    def stats(self) -> LookupStats:
        """Return what lookups have cost this rank so far."""
        channels = self._ranks.channel, *self._prefetcher.channels
        return stats_of(channels, self._ranks.sums, self._counts, self.num_steps, self.age)

    def nbytes(self) -> dict[str, int]:
        """Return the bytes of what this rank holds, by part."""
        return self._local.nbytes()

    def close(self) -> None:
        """Free the groups of ranks. The module cannot be used afterwards."""
        self._prefetcher.close()
        self._ranks.close()
