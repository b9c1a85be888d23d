"""Settings that `torch.nn.EmbeddingBag` modules give to the tables that stand in for them."""

from collections.abc import Sequence

from torch import nn

from pliant.spec import Table

__all__ = ["require_tables"]


def require_tables(bags: Sequence[nn.EmbeddingBag], tables: Sequence[Table]) -> None:
    """Raise ValueError unless each module does what its table says, and nothing that tables cannot do."""
    if len(bags) != len(tables):
        raise ValueError(
            f"there are {len(bags)} modules, but the plan has {len(tables)} tables; one for each, in order."
        )
    first: dict[int, str] = {}
    for bag, table in zip(bags, tables, strict=True):
        shared = first.setdefault(id(bag.weight), table.name)
        if shared != table.name:
            raise ValueError(
                f"the modules for tables {shared!r} and {table.name!r} have one weight; make them one table, with "
                "`features=` of both."
            )
        has = (bag.num_embeddings, bag.embedding_dim, bag.mode, bag.padding_idx)
        wants = (table.num_rows, table.dim, table.pooling, table.padding_id)
        if has != wants:
            raise ValueError(
                f"the module for table {table.name!r} has (rows, dim, mode, padding) {has}, but the plan {wants}."
            )
        if bag.max_norm is not None or bag.scale_grad_by_freq:
            raise ValueError(
                f"the module for table {table.name!r} has max_norm or scale_grad_by_freq; tables have not."
            )
