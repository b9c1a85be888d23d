"""The slow oracle: tables that nobody shards, with gradients added in the order of ranks."""

import torch
from torch.nn import functional as F  # noqa: N812

from pliant.spec import EmbeddingPlan, Table, TableLayout

TABLES = (
    Table(name="plain", num_rows=50, dim=8),
    Table(name="mean", num_rows=7, dim=8, pooling="mean", features=("now", "then", "ever")),
    Table(name="weighted", num_rows=30, dim=8, weighted=True, features=("seen", "liked")),
    Table(name="padded", num_rows=11, dim=5, padding_id=4),
    Table(name="padded mean", num_rows=9, dim=5, pooling="mean", padding_id=0),
    Table(name="one row", num_rows=1, dim=8),
    Table(name="two rows", num_rows=2, dim=3, pooling="mean"),
)


def plan_of(layout, n, *, optimizer="sgd", tables=TABLES, **settings):
    """One layout for all tables, or a function of table and index."""
    make = layout if callable(layout) else lambda table, t: layout
    layouts = tuple(make(table, t) for t, table in enumerate(tables))
    return EmbeddingPlan(tables=tables, layouts=layouts, num_ranks=n, batch_size=8, optimizer=optimizer, **settings)


def inputs_of(tables, rank, step, *, one_hot=False, empty=False):
    """Random bags: unequal numbers of them on ranks, some empty, ids twice in a bag."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    num_bags = 0 if empty else 3 + rank
    found = []
    for table in [its for its in tables for _ in its.inputs]:
        lengths = torch.ones(num_bags, dtype=torch.int64)
        if not one_hot:
            lengths = torch.randint(0, 5, (num_bags,), generator=generator)
        ids = (torch.rand(int(lengths.sum()), generator=generator) ** 2 * table.num_rows).long()
        offsets = lengths.cumsum(0) - lengths
        weights = torch.rand(len(ids), generator=generator) if table.weighted else None
        found.append((ids, offsets, weights) if table.weighted else (ids, offsets))
    return found


class Whole:
    def __init__(self, plan: EmbeddingPlan, weights, *, lr, average=True):
        self.plan, self.lr, self.average = plan, lr, average
        self.weights = [w.clone() for w in weights]
        self.states = [None] * len(weights)

    def of_tables(self, of_features):
        """For each table a list of what is given for its features."""
        given = iter(of_features)
        return [[next(given) for _ in table.inputs] for table in self.plan.tables]

    def merged(self, inputs):
        """For each table the bags of all its features, one feature's after another's."""
        found = []
        for parts in self.of_tables(inputs):
            ids, offsets, *weights = zip(*parts, strict=True)
            firsts = [sum(len(i) for i in ids[:k]) for k in range(len(ids))]
            starts = torch.cat([at + first for at, first in zip(offsets, firsts, strict=True)])
            found.append((torch.cat(ids), starts, *map(torch.cat, weights)))
        return found

    def bags(self, t, given):
        """Without what pads: ids, bag of each, number of each bag, weights."""
        ids, offsets, weights = (*given, None)[:3]
        lengths = torch.diff(offsets, append=torch.tensor([len(ids)]))
        bags = torch.arange(len(offsets)).repeat_interleave(lengths)
        keep = ids != (-1 if self.plan.tables[t].padding_id is None else self.plan.tables[t].padding_id)
        counts = torch.bincount(bags[keep], minlength=len(offsets))
        return ids[keep], bags[keep], counts, None if weights is None else weights[keep]

    def forward(self, inputs):
        out = []
        nums = self.of_tables([len(given[1]) for given in inputs])
        for t, (table, given) in enumerate(zip(self.plan.tables, self.merged(inputs), strict=True)):
            ids, _, counts, weights = self.bags(t, given)
            starts = counts.cumsum(0) - counts
            pooled = torch.zeros(len(counts), table.dim)
            if len(ids):
                w = self.weights[t]
                pooled = F.embedding_bag(ids, w, starts, mode=table.pooling, per_sample_weights=weights)
            out += pooled.split(nums[t])
        return out

    def partial(self, t, given, gradient):
        """One rank's gradient of a whole table, and which rows it touched: in order of positions."""
        ids, bags, counts, weights = self.bags(t, given)
        total = torch.zeros_like(self.weights[t])
        if self.plan.tables[t].pooling == "mean":
            gradient = gradient / counts.clamp(min=1).float()[:, None]
        for k, (i, b) in enumerate(zip(ids.tolist(), bags.tolist(), strict=True)):
            if weights is None:
                total[i] += gradient[b]
            else:  # one rounding for product and sum, as the processor's fused multiply-add has
                total[i] = (gradient[b].double() * weights[k].double() + total[i].double()).float()
        return total, ids

    def step(self, of_ranks):
        """of_ranks: for each rank (inputs, gradients of the outputs)."""
        of_ranks = [(self.merged(inputs), [torch.cat(its) for its in self.of_tables(g)]) for inputs, g in of_ranks]
        for t, table in enumerate(self.plan.tables):
            parts = [self.partial(t, inputs[t], gradients[t]) for inputs, gradients in of_ranks]
            total = parts[0][0]
            for part, _ in parts[1:]:
                total = total + part
            touched = torch.cat([ids for _, ids in parts]).unique()
            if self.average:
                total = total / len(of_ranks)
            columns = [table.dim]
            if self.plan.layouts[t].kind == "columns":
                columns = [p.dim for p in self.plan.pieces() if p.index == t]
            self.update(t, touched, total[touched], columns)

    def update(self, t, rows, g, columns):
        kind, lr, w = self.plan.optimizer, self.lr, self.weights[t]
        if kind == "sgd":
            w[rows] -= g * lr
        elif kind == "adagrad":
            s = self.states[t] = torch.zeros_like(w) if self.states[t] is None else self.states[t]
            s[rows] += g * g
            w[rows] -= (g * lr) / (s[rows].sqrt() + 1e-10)
        elif kind == "rowwise_adagrad":
            s = self.states[t] = torch.zeros(len(w), len(columns)) if self.states[t] is None else self.states[t]
            for k, part in enumerate(g.split(columns, 1)):
                s[rows, k] += (part.contiguous() * part).mean(1)
            factor = lr / (s[rows].sqrt() + 1e-10)
            w[rows] -= g * factor.repeat_interleave(torch.tensor(columns), 1)
        else:
            m, v, count = self.states[t] = self.states[t] or (
                torch.zeros_like(w),
                torch.zeros_like(w),
                torch.zeros(len(w)),
            )
            m[rows] = m[rows] * 0.9 + g * (1 - 0.9)
            v[rows] = v[rows] * 0.999 + (g * g) * (1 - 0.999)
            count[rows] += 1
            c = count[rows].double()
            first = (lr / (1 - 0.9**c)).float()[:, None]
            second = (1 / (1 - 0.999**c).sqrt()).float()[:, None]
            w[rows] -= m[rows] * first / (v[rows].sqrt() * second + 1e-8)


def spread(n):
    """Layouts of every kind, by name."""

    def hot(table, t):
        return TableLayout(kind="rows", num_hot=min(4, table.num_rows))

    def hot_sums(table, t):
        return TableLayout(kind="rows", num_hot=min(4, table.num_rows), moves="sums")

    def columns(table, t):
        homes = tuple((t + k) % n for k in range(2 + t % 2))
        return TableLayout(kind="columns", homes=homes, moves="sums")

    def mixed(table, t):
        choices = (
            TableLayout(kind="rows"),
            TableLayout(kind="table", homes=(t % n,), moves="sums"),
            TableLayout(kind="replicated"),
            TableLayout(kind="rows", num_hot=1, moves="sums"),
            TableLayout(kind="table", homes=(t % n,)),
        )
        return choices[t % 5]

    return {
        "table": lambda table, t: TableLayout(kind="table", homes=(t % n,)),
        "table pooled": lambda table, t: TableLayout(kind="table", homes=(t % n,), moves="sums"),
        "rows": TableLayout(kind="rows"),
        "rows pooled": TableLayout(kind="rows", moves="sums"),
        "rows as they come": TableLayout(kind="rows", distinct=False),
        "columns": columns,
        "replicated": TableLayout(kind="replicated"),
        "hot": hot,
        "hot pooled": hot_sums,
        "mixed": mixed,
    }


def first_weights(tables):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(table.num_rows, table.dim, generator=generator) for table in tables]


def hot_ids(plan):
    return {
        table.name: torch.arange(layout.num_hot)
        for table, layout in zip(plan.tables, plan.layouts, strict=True)
        if layout.num_hot
    }
