"""DLRM (arXiv:1906.00091) on click data, with one command: tables placed by Pliant, the dense part relaxed by it.

    torchrun --nproc-per-node 2 examples/dlrm.py
    pliant emulate --hosts 4 --rate 100mbit -- python examples/dlrm.py --algorithm bytegrad --memory 64MB

First all ranks count the rows of the first batches; from that, from the links (measured now, or --topology) and
from --memory follows where each table goes, and why is printed. Then it trains: embeddings by ShardedEmbeddingBag, the
next batch's exchange beside the dense part, whose gradients --algorithm exchanges. AUC is that of all ranks' test data
together. With --checkpoint FOLDER it saves as it goes, and goes on from there when the same command is given again.
"""

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from click_log import ClickBatch
from dlrm_data import Source, auc, options_of_data, source_of
from dlrm_state import restore, save
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

import pliant
from pliant.comm import Comm, new_comm
from pliant.network import probe
from pliant.recsys import (
    EmbeddingPlacement,
    FrequencyCounter,
    PlacementLimits,
    ShardedEmbeddingBag,
    merge_counters,
    place_tables,
)
from pliant.spec import Table, Topology, load
from pliant.spec.units import format_bytes, parse_bytes

TIMEOUT_S = 300.0


class DenseNet(nn.Module):
    """The part that is the same on all ranks: an MLP below, products of all pairs of vectors, an MLP on top."""

    def __init__(self, num_tables: int, dim: int, num_dense: int = 13, hidden: int = 64) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(num_dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        self.register_buffer("pairs", torch.tril_indices(num_tables + 1, num_tables + 1, offset=-1), persistent=False)
        num_pairs = num_tables * (num_tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + num_pairs, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense: Tensor, bags: Sequence[Tensor]) -> Tensor:
        """Return logits (samples,) of dense features (samples, num_dense) and (samples, dim) for each table."""
        x = self.bottom(dense)
        vectors = torch.stack([x, *bags], dim=1)  # (samples, tables + 1, dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, chosen], dim=1)).squeeze(1)


class Given:
    """A batch, and its ids as the tables take them: the same object when they are asked for early, and then."""

    def __init__(self, batch: ClickBatch) -> None:
        self.batch = batch
        self.ids = list(zip(batch.ids, batch.offsets, strict=True))


class Trainer:
    """Both parts of the model on this rank, and how many steps they have made."""

    def __init__(
        self, source: Source, placement: EmbeddingPlacement, hot: dict[str, Tensor], comm: Comm, o: argparse.Namespace
    ) -> None:
        torch.manual_seed(o.seed)
        self.bags = ShardedEmbeddingBag(
            placement.plan, comm, lr=o.embedding_lr, hot=hot, hosts=_hosts(placement.problem.topology), seed=o.seed
        )
        net = DenseNet(len(source.num_rows), o.dim, source.num_dense)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=o.lr, momentum=0.9)
        self.run = pliant.relax(net, self.optimizer, o.algorithm, timeout_s=TIMEOUT_S)
        self.net = net
        self.steps = 0

    def step(self, now: "Given", following: "Given | None") -> Tensor:
        """Train on a batch, and ask for the rows of the next; return the loss, ()."""
        vectors = self.bags(now.ids)
        if following is not None:
            self.bags.prefetch(following.ids)
        loss = binary_cross_entropy_with_logits(self.run.model(now.batch.dense, vectors), now.batch.label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.bags.step()
        self.steps += 1
        return loss.detach()

    @torch.no_grad()
    def auc(self, batches: Sequence[ClickBatch], comm: Comm) -> float:
        """Return the area under the ROC curve over the test data of all ranks, exactly. Collective."""
        weights = self.run.consolidate()  # one model, also where the algorithm lets ranks differ
        found = [functional_call(self.net, weights, (b.dense, self.bags(Given(b).ids))) for b in batches]
        mine = torch.stack([torch.cat(found), torch.cat([b.label for b in batches])], dim=1)  # (samples, 2)
        most = torch.tensor([len(mine)])
        comm.all_reduce(most, "max").wait()
        padded = torch.full((int(most), 2), torch.nan)  # ranks may have a sample more or less
        padded[: len(mine)] = mine
        everybody = torch.empty(comm.size * padded.numel())
        comm.all_gather(everybody, padded.view(-1)).wait()
        rows = everybody.view(-1, 2)
        scores, labels = rows[~rows[:, 1].isnan()].unbind(1)
        return auc(scores, labels)


def placed(source: Source, comm: Comm, o: argparse.Namespace) -> tuple[EmbeddingPlacement, dict[str, Tensor]]:
    """Choose, all ranks alike, where tables go; also the ids of rows that are on all ranks. Collective."""
    counter = FrequencyCounter(source.num_rows, names=source.names)
    for step in range(o.observe):
        batch = source.train(step, comm.rank, comm.size, o.batch)
        counter.add(batch.ids, batch.offsets)
    frequencies = merge_counters(counter, comm).result()
    topology = load(Topology, o.topology) if o.topology else probe(comm, budget_s=2.0)
    tables = [
        Table(name=name, num_rows=rows, dim=o.dim) for name, rows in zip(source.names, source.num_rows, strict=True)
    ]
    limits = PlacementLimits(memory_bytes=o.memory, max_staleness=o.max_staleness, bits=o.bits)
    found = place_tables(
        tables, frequencies, topology, limits, batch_sizes=[o.batch], optimizer=o.embedding_optimizer, overlap=True
    )
    hot = {
        table.name: torch.from_numpy(rows.head_ids[: layout.num_hot].copy())
        for table, layout, rows in zip(tables, found.plan.layouts, frequencies.tables, strict=True)
        if layout.num_hot
    }
    return found, hot


def train(trainer: Trainer, source: Source, comm: Comm, console: Console, o: argparse.Namespace) -> dict[str, float]:
    """Train to the last step, saving as asked for; return how fast, and what this rank has sent in a step."""

    def batch_of(step: int) -> Given:
        return Given(source.train(step, comm.rank, comm.size, o.batch))

    columns = (TextColumn("loss {task.fields[loss]:.4f}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    start_s, first = time.perf_counter(), trainer.steps
    coming = batch_of(first) if first < o.steps else None
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("training", total=o.steps, completed=first, loss=float("nan"))
        while coming is not None:
            now, last = coming, trainer.steps + 1 == o.steps
            coming = None if last else batch_of(trainer.steps + 1)
            due = bool(o.checkpoint) and ((trainer.steps + 1) % o.save_every == 0 or last)
            loss = trainer.step(now, None if due else coming)  # nothing is on its way while state is saved
            progress.update(task, completed=trainer.steps, loss=float(loss))
            if not console.is_terminal and trainer.steps % o.report_every == 0:
                console.print(f"step {trainer.steps}: loss {float(loss):.4f}")
            if due:
                save(trainer, Path(o.checkpoint), comm)
    made, took_s = max(1, trainer.steps - first), time.perf_counter() - start_s
    return {
        "samples_per_s": (trainer.steps - first) * o.batch * comm.size / took_s,
        "rows_sent_bytes": sum(trainer.bags.stats().sent_bytes.values()) / made,
        "dense_sent_bytes": trainer.run.stats()["sent_bytes"] / made,
    }


def main() -> None:
    """Place, train, test."""
    o = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    comm = new_comm(dist.group.WORLD, TIMEOUT_S)
    console = Console(quiet=comm.rank != 0)
    for rank in range(comm.size):  # in turn, since the first may have to fetch what the others then find
        if rank == comm.rank:
            source = source_of(o)
        comm.barrier()
    placement, hot = placed(source, comm, o)
    console.print(placement.explain(), markup=False, highlight=False, soft_wrap=True)
    trainer = Trainer(source, placement, hot, comm, o)
    with closing(comm), closing(trainer.bags), trainer.run:  # an error on one rank breaks the run off for all
        if o.checkpoint:
            console.print(restore(trainer, Path(o.checkpoint), comm))
        speed = train(trainer, source, comm, console, o)
        tests = list(source.test(comm.rank, comm.size, o.batch, o.test_batches))
        found = trainer.auc(tests, comm)
    of = "" if source.best_auc is None else f"; no model can do better than {source.best_auc:.4f}"
    console.print(f"AUC {found:.4f} after {trainer.steps} steps{of}")
    sent = [format_bytes(speed[key]) for key in ("rows_sent_bytes", "dense_sent_bytes")]
    console.print(
        f"{speed['samples_per_s']:,.0f} samples/s; rank 0 sends {sent[0]} for rows a step, {sent[1]} for the rest"
    )
    if o.json and comm.rank == 0:
        result = {"steps": trainer.steps, "auc": found, "best_auc": source.best_auc, **speed}
        Path(o.json).write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options_of_data(parser)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=512, help="samples of a rank in a step")
    parser.add_argument("--test-batches", type=int, default=16, help="of each rank")
    parser.add_argument("--dim", type=int, default=16, help="of a row")
    parser.add_argument("--algorithm", default="allreduce", help="for the dense part: any of Pliant's")
    parser.add_argument("--lr", type=float, default=0.05, help="of the dense part")
    parser.add_argument("--embedding-lr", type=float, default=0.1)
    parser.add_argument("--embedding-optimizer", default="rowwise_adagrad")
    parser.add_argument("--memory", type=parse_bytes, default=parse_bytes("1GB"), help="of a rank, for embeddings")
    parser.add_argument("--max-staleness", type=int, default=0, help="steps that gradients of hot rows may wait")
    parser.add_argument("--bits", default="32", help="of numbers on the wire that may be chosen, as in 32,16,8")
    parser.add_argument("--topology", default="", help="file with the links; measured, if it is not given")
    parser.add_argument("--observe", type=int, default=8, help="batches of each rank whose rows are counted")
    parser.add_argument("--checkpoint", default="", help="folder to save to, and to go on from")
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--report-every", type=int, default=100, help="steps, where there is no terminal")
    parser.add_argument("--json", default="", help="file for the result")
    o = parser.parse_args()
    o.bits = tuple(int(bits) for bits in o.bits.split(","))
    return o


def _hosts(topology: Topology) -> list[list[int]]:
    return [list(topology.ranks_of(k)) for k in range(len(topology.hosts))]


if __name__ == "__main__":
    main()
