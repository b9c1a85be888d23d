"""Placement of the rows of embedding tables, and what travels for them."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from pliant.spec.plain import LATER
from pliant.spec.ranges import check_ranges

__all__ = ["STATE_NUMBERS", "EmbeddingPlan", "Piece", "RowOptimizer", "Table", "TableLayout"]

Kind = Literal["table", "rows", "columns", "replicated"]
Moves = Literal["vectors", "sums"]
RowOptimizer = Literal["sgd", "adagrad", "rowwise_adagrad", "adam"]

STATE_NUMBERS = {"sgd": (0, 0), "adagrad": (1, 0), "rowwise_adagrad": (0, 1), "adam": (2, 1)}
"""What optimizers keep: numbers for each element, and for each row."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One embedding table: rows of float32, pooled over bags of ids."""

    name: str
    num_rows: int
    dim: int
    pooling: Literal["sum", "mean"] = "sum"
    padding_id: int | None = None
    """An id that counts for nothing, as `padding_idx` of `torch.nn.EmbeddingBag`."""
    weighted: bool = False
    """Whether ids have weights, with which their rows are multiplied; of sums only."""
    features: tuple[str, ...] = field(default=(), metadata=LATER)
    """Names of the inputs that look up rows of this table, each with bags and an output of its own; none are named:
    one, which has the table's name."""

    def __post_init__(self) -> None:
        check_ranges(self)
        twice = [name for name, count in Counter(self.features).items() if count > 1]
        if twice:
            raise ValueError(f"table {self.name!r} has feature {twice[0]!r} twice; name each once.")
        if self.num_rows < 1 or self.dim < 1:
            raise ValueError(
                f"table {self.name!r} has {self.num_rows} rows of {self.dim}; it needs at least one of each."
            )
        if self.padding_id is not None and not 0 <= self.padding_id < self.num_rows:
            raise ValueError(f"table {self.name!r} has rows 0 to {self.num_rows - 1}, but pads with {self.padding_id}.")
        if self.weighted and self.pooling != "sum":
            raise ValueError(
                f"table {self.name!r} has weights and the {self.pooling} of its rows; weights need the sum."
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its features: one at least."""
        return self.features or (self.name,)


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Placement of one table, and what travels for it.

    'table': all of it at one rank. 'columns': cut by columns, each part at a rank of its own. 'rows': row i of the t-th
    table at rank (i + t) mod n, of which the `num_hot` most frequent are on all ranks as well. 'replicated': on all.

    Ranks get 'vectors', distinct rows which they pool themselves, or 'sums' that their owners have pooled. Vectors
    of rows that a batch has twice travel once, unless `distinct` is False, as in a plain all-to-all.
    """

    kind: Kind
    homes: tuple[int, ...] = ()
    """The rank of a 'table', or one for each part of 'columns'."""
    num_hot: int = 0
    moves: Moves = "vectors"
    bits: Literal[32, 16, 8] = 32
    """Of a number on the wire: float32, bfloat16, or 8-bit integers with a float32 scale for each vector."""
    distinct: bool = True

    def __post_init__(self) -> None:
        check_ranges(self)
        wanted = {"table": len(self.homes) == 1, "columns": len(self.homes) > 1}.get(self.kind, not self.homes)
        if not wanted:
            raise ValueError(
                f"a layout of kind {self.kind!r} has homes {self.homes}; a 'table' has one, 'columns' two or more, "
                "'rows' and 'replicated' none."
            )
        if self.num_hot < 0 or (self.num_hot and self.kind != "rows"):
            raise ValueError(f"a layout of kind {self.kind!r} has {self.num_hot} hot rows; only 'rows' may have some.")
        if self.kind == "columns" and self.moves == "vectors":
            raise ValueError("'columns' are pooled by their owners, so 'sums' move, not 'vectors'.")
        if self.moves == "sums" and not self.distinct:
            raise ValueError("owners that pool get each id of a bag; `distinct=False` is for 'vectors'.")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """All columns of a table, or some: what is laid out as one."""

    index: int
    """Of its table in the plan."""
    first_column: int
    dim: int
    home: int | None
    """The rank that has all its rows; None: they are spread over all."""
    layout: TableLayout


@dataclass(frozen=True, kw_only=True)
class EmbeddingPlan:
    """Layouts of all tables, for so many ranks."""

    tables: tuple[Table, ...]
    layouts: tuple[TableLayout, ...]
    num_ranks: int
    batch_size: int
    """Samples on each rank in a step, for which the plan was made."""
    every: int = 1
    """Gradients of rows on all ranks are summed and used once in so many steps; until then they gather."""
    optimizer: RowOptimizer = "rowwise_adagrad"
    hierarchical: bool = False
    """Whether those gradients are summed inside hosts first, and only once between them."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if len(self.tables) != len(self.layouts) or not self.tables:
            raise ValueError(
                f"there are {len(self.tables)} tables and {len(self.layouts)} layouts; each table needs its own."
            )
        twice = [name for name, count in Counter(table.name for table in self.tables).items() if count > 1]
        if twice:
            raise ValueError(f"two tables are called {twice[0]!r}; names must differ.")
        if self.num_ranks < 1 or self.batch_size < 1 or self.every < 1:
            raise ValueError(
                f"a plan for {self.num_ranks} ranks, {self.batch_size} samples and sums every {self.every} steps "
                "cannot be; each is at least 1."
            )
        for table, layout in zip(self.tables, self.layouts, strict=True):
            outside = [home for home in layout.homes if not 0 <= home < self.num_ranks]
            if outside:
                raise ValueError(
                    f"{table.name!r} is at home at rank {outside[0]}, but there are ranks 0 to {self.num_ranks - 1}."
                )
            if len(layout.homes) > table.dim:
                raise ValueError(f"{table.name!r} has {table.dim} columns, but {len(layout.homes)} parts of them.")
            if layout.num_hot > table.num_rows:
                raise ValueError(f"{table.name!r} has {table.num_rows} rows, but {layout.num_hot} hot ones.")

    @property
    def num_bags(self) -> tuple[int, ...]:
        """Bags of each table on each rank in a step: one for each sample and feature."""
        return tuple(self.batch_size * len(table.inputs) for table in self.tables)

    @property
    def may_cut_columns(self) -> bool:
        """Whether a table by 'columns' learns as a whole one, unlike with one mean square for each part of a row."""
        return self.optimizer != "rowwise_adagrad"

    def pieces(self) -> tuple[Piece, ...]:
        """Return what each table is cut into, in order: one piece, or one for each home of its columns.

        Columns are cut as `numpy.array_split` does: the first parts have one more where they cannot be alike.
        """
        found: list[Piece] = []
        for index, (table, layout) in enumerate(zip(self.tables, self.layouts, strict=True)):
            if not layout.homes:
                found.append(Piece(index=index, first_column=0, dim=table.dim, home=None, layout=layout))
                continue
            least, more = divmod(table.dim, len(layout.homes))
            first = 0
            for part, home in enumerate(layout.homes):
                dim = least + (part < more)
                found.append(Piece(index=index, first_column=first, dim=dim, home=home, layout=layout))
                first += dim
        return tuple(found)

    def alike(self, piece: Piece) -> tuple[int, Moves, int, bool, bool]:
        """Return what makes sharded pieces one group: dim, moves, bits, distinct, and whether ids have weights."""
        layout = piece.layout
        weighted = layout.moves == "sums" and self.tables[piece.index].weighted
        return piece.dim, layout.moves, layout.bits, layout.distinct, weighted

    def row_bytes(self, piece: Piece) -> int:
        """Return what a row of a piece takes where it lives, with what the optimizer keeps of it."""
        per_element, per_row = STATE_NUMBERS[self.optimizer]
        return 4 * (piece.dim * (1 + per_element) + per_row)

    def num_owned(self, piece: Piece, rank: int) -> int:
        """Return how many rows of a piece a rank owns: those that are on all ranks belong to nobody."""
        num_rows, num_ranks = self.tables[piece.index].num_rows, self.num_ranks
        if piece.layout.kind == "replicated":
            return 0
        if piece.home is not None:
            return num_rows if rank == piece.home else 0
        first = (rank - piece.index) % num_ranks
        return max(0, -(-(num_rows - first) // num_ranks))
