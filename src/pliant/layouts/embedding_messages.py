"""Sizes of what ranks send each other in a step: the module sends them, and the cost framework counts them.

A step of the sharded tables between two ranks, a requester and an owner, for each group of pieces that are alike:

1. sizes: how many ids follow, and, where the owner pools, in how many bags: int64 each, in one message for all groups
2. request: ids as the owner's slots, int32; where the owner pools, then the number of ids in each of those bags, int32,
   and weights of ids, float32, if there are any: one message for all groups, none where it would be empty
3. answer: a vector for each id, or for each bag: one message for all groups, none where it would be empty
4. gradients: as many vectors, back to the owner

Pieces are alike whose (dim, moves, bits, distinct) are equal, and, where sums move, whether ids are weighted. A piece
at one home is asked for by the other ranks only; empty bags, ids that pad and rows on all ranks are never asked for.

Rows on all ranks are synchronized once in `every` steps, for each group of one dim. A first all-reduce has one byte for
each of them (has anybody touched it?), a second the gradients of the touched rows, float32.

A batch that is prefetched has its answers in two parts. Where vectors move, the owner first sends one bit for each id
that it was asked for (is its row sent early?), in one message for all groups; a group's bits fill whole bytes. Then it
sends the early rows, and later the others. Both together are as many as otherwise.

A rank whose inputs are bad sends sizes of -1, and then, by broadcast, its error.
"""

__all__ = ["mask_bytes", "request_bytes", "sizes_bytes", "vector_bytes"]

_ID_BYTES = 4
_SIZE_BYTES = 8
_SCALE_BYTES = 4


def sizes_bytes(num_vector_groups: int, num_sum_groups: int) -> int:
    """Return the bytes of the first message."""
    return _SIZE_BYTES * (num_vector_groups + 2 * num_sum_groups)


def request_bytes(num_ids: int, num_bags: int, *, weighted: bool) -> int:
    """Return a group's part of the second; bags and weights count where owners pool."""
    return _ID_BYTES * (num_ids * (2 if weighted else 1) + num_bags)


def vector_bytes(dim: int, bits: int) -> int:
    """Return the bytes of one vector on the wire."""
    return dim * bits // 8 + (_SCALE_BYTES if bits == 8 else 0)


def mask_bytes(num_ids: int) -> int:
    """Return the bytes of a group's part of what says which answers are early; of groups where vectors move."""
    return -(-num_ids // 8)
