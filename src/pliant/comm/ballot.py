"""Vote of the ranks of a process group, over the store in which they have found each other."""

from datetime import timedelta

from torch.distributed import PrefixStore, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from pliant.comm.torch_private import store_of

__all__ = ["collect_votes"]


def collect_votes(group: ProcessGroup, name: str, mine: str, timeout_s: float) -> list[str] | None:
    """Tell all ranks of a group a text, and return the texts of all, by rank; on all ranks None if some come too late.

    No collective: a rank that never votes, such as one without Pliant, costs the others the timeout and nothing else.
    The first rank that has all texts, or whose time is up, decides by one compare-and-set; one that comes later gets
    None too, and does not wait for those that have gone on.

    Args:
        group: Its ranks vote.
        name: Name of the vote, used once in the life of the group.
        mine: Text of this rank.
        timeout_s: Time for all to come.

    """
    store = PrefixStore(f"pliant-vote/{name}", store_of(group))
    store.set(str(group.rank()), mine)
    keys = [str(rank) for rank in range(group.size())]
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
        found = "all"
    except RuntimeError:  # torch says that the time is up in no better type
        found = "some"
    if store.compare_set("came", "", found).decode() == "some":
        return None
    return [store.get(key).decode() for key in keys]
