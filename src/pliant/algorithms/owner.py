"""Each parameter has an owner, who alone holds its optimizer state and steps it: parameter servers without servers."""

from dataclasses import dataclass
from typing import Any

from pliant.algorithms.base import Moment, Slots, State
from pliant.buckets import Bucket
from pliant.codecs import Codec, spec_of
from pliant.collectives.owner import OwnerSum
from pliant.comm.base import Comm
from pliant.spec import Choice

__all__ = ["Owner", "owner", "stale"]


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Gradients go to the owner of their parameter; it steps, and sends the new weights to all.

    In lockstep, of parameter p with owner o(p), on n ranks (Rajbhandari et al., ZeRO, arXiv:1910.02054, stage 1;
    Li et al., parameter server, OSDI 2014):

        at o(p):  g <- (1/n) sum_i g_i;  x_p <- optimizer(x_p, g);  everywhere:  x_p <- x_p of o(p)

    which is an all-reduce and the plain optimizer, up to rounding; bytes are the same too, 2 (n-1)/n N out and in, but
    the optimizer's state and work are divided by n. Elsewhere p.grad is a stand-in with the norm of g (`OwnerSum`).

    With a staleness s, stale synchronous parallel (Ho et al., NeurIPS 2013): owners make one step with the mean of
    every n gradients, from whomever and in the order in which they come; a rank that has made c steps goes on when
    the slowest has made c - s, with weights that hold all gradients but the last fewer than n of what had come by then.
    """

    codec: Codec | None = None
    """In how many bits gradients travel to owners, in lockstep; weights travel as they are."""
    bandwidths: tuple[float, ...] = ()
    """What each rank's network carries, in any unit: owners hold parts of that size. Equal if not given."""
    staleness: int | None = None
    """None for lockstep."""

    @property
    def choice(self) -> Choice:
        """Gradients to owners, in lockstep or at a free pace."""
        return Choice(
            collective="owner",
            codec=None if self.codec is None else spec_of(self.codec),
            bandwidths=self.bandwidths,
            pace="lockstep" if self.staleness is None else "free",
            staleness=self.staleness or 0,
        )

    def slots(self, shape: tuple[int, ...], comm: Comm) -> Slots:
        """The owner's rank: the engine places all parameters when a plan begins."""
        return {"owner": ()}

    def prepare(self, bucket: Bucket, comm: Comm) -> Any:
        """Make room for the collective, which is made once owners are known."""
        return list[OwnerSum]()

    def on_ready(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Scale first, then add up; at a free pace gradients stay, and go to owners when all are there."""
        if self.staleness is None:
            bucket.flat.mul_(1 / comm.size)
            self.on_shares(bucket, state, comm, moment)

    def on_shares(self, bucket: Bucket, state: State, comm: Comm, moment: Moment) -> None:
        """Add up at the owners."""
        made: list[OwnerSum] = state.workspace
        if not made:
            owners = [int(state.of["owner"][span.name]) for span in bucket.spans]
            numels = [span.numel for span in bucket.spans]
            made.append(OwnerSum(numels, owners, comm, like=bucket.flat, codec=self.codec))
        made[0](bucket.flat, moment.seed)


def owner(codec: Codec | None = None, *, bandwidths: tuple[float, ...] = ()) -> Owner:
    """Let each parameter's owner step it: optimizer state and work divided by the ranks, bytes as in an all-reduce.

    With a codec without bias, gradients travel in fewer bits. Bandwidths, one for each rank, say how much each owns.
    """
    return Owner(codec=codec, bandwidths=bandwidths)


def stale(staleness: int = 1, *, bandwidths: tuple[float, ...] = ()) -> Owner:
    """Let owners take gradients as they come, and ranks be at most `staleness` steps ahead of the slowest."""
    return Owner(staleness=staleness, bandwidths=bandwidths)
