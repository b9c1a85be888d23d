"""Functions for algorithms that exchange what Muon needs, momenta: each returns a node of a plan. No torch here."""

from pliant.algorithms.gradients import int4
from pliant.algorithms.inputs import AlgorithmLike, ScheduleLike, as_schedule, node_of
from pliant.spec import LowRank, MomentumDifferences

__all__ = ["dion", "ef21_muon"]


def ef21_muon(
    averaging: AlgorithmLike | None = None, *, momentum: float = 0.95, nesterov: bool = False
) -> MomentumDifferences:
    """Exchange differences of momenta to what all ranks know of them (EF21-Muon, Gruntkowska et al., arXiv:2510.00643).

    `averaging` is how they travel: in 4 bits if None; `onebit`, `sigma2`, `topk` and `powersgd` fit, `allreduce` is
    exact. For matrices that Muon steps, with a momentum of 0 of its own, as in ``relax(model, [muon, adamw],
    "ef21_muon")``: AdamW's gradients are averaged exactly. `nesterov` is Muon's default, not the paper's. Details:
    `MomentumDifferencesExecutor`.

    >>> from pliant import onebit
    >>> str(ef21_muon(onebit()))
    "MomentumDifferences(averaging=ScatterGather(codec=sign, feedback='both'))"
    """
    inner = int4() if averaging is None else node_of(averaging)
    return MomentumDifferences(averaging=inner, momentum=momentum, nesterov=bool(nesterov))


def dion(rank: int = 64, *, momentum: float = 0.95, schedule: ScheduleLike = "ring") -> LowRank:
    """Exchange the part of this rank of momenta that stay with their ranks (Dion, Ahn et al., arXiv:2504.05295).

    For matrices that `pliant.Dion` steps, with a momentum of 0 of its own, as in ``relax(model, [dion, adamw],
    "dion")``, which takes the rank from there. AdamW's gradients are averaged exactly. Matrices for which two factors
    are no smaller send their momentum whole. `schedule` is as for `allreduce`. Details: `LowRankExecutor`.

    >>> str(dion(rank=16))
    'LowRank(rank=16, momentum=0.95)'
    """
    return LowRank(rank=rank, momentum=momentum, schedule=as_schedule(schedule))
