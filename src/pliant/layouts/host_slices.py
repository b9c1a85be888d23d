"""Slices of a vector among the ranks of a host: who adds up which elements, and who exchanges them with other hosts."""

__all__ = ["Range", "parts_by_rank", "slice_ranges"]

Range = tuple[int, int]
"""Half-open range of the elements of a vector."""


def slice_ranges(numel: int, num_slices: int) -> list[Range]:
    """Cut a vector into slices of nearly equal size; some may be empty. Rank q of every host exchanges slice q."""
    return [(numel * q // num_slices, numel * (q + 1) // num_slices) for q in range(num_slices)]


def parts_by_rank(numel: int, num_slices: int, num_ranks: int) -> list[list[Range]]:
    """Return for each rank of a host what it adds up: for an owner one range of its slice, for a helper one of each.

    The first L = num_slices of n ranks own a slice each; the others may help. If owners added up whole slices, each
    would send and receive (n + L - 2) / L vectors, to the host and back. Where that is more than 2, helpers take part:
    of the n - 1 equal pieces of each slice its owner adds up L - 1, and each helper one. Then no rank sends or receives
    more than 2 vectors, whatever L and n are.

    Args:
        numel: Elements of the vector.
        num_slices: Slices, from 1 to num_ranks.
        num_ranks: Ranks of the host.

    """
    slices, helpers = slice_ranges(numel, num_slices), range(num_slices, num_ranks)
    if num_ranks <= num_slices + 2:
        return [[each] for each in slices] + [[] for _ in helpers]
    cuts = [[a + (b - a) * unit // (num_ranks - 1) for unit in range(num_ranks)] for a, b in slices]
    owned = [[(cut[0], cut[num_slices - 1])] for cut in cuts]
    return owned + [[(cut[rank - 1], cut[rank]) for cut in cuts] for rank in helpers]
