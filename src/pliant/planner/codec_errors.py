"""Errors of the gradient under a plan, as they were measured on this model: for budgets of errors."""

import re

from pliant.planner.families import NAMED_FAMILIES
from pliant.planner.genome import all_of
from pliant.spec import CODECS, BlockSparse, CodecSpec, Exchange, SyncPlan, TensorSpec, Workload

__all__ = ["LOW_RANKS", "CodecErrors", "lossy_codecs"]


LOW_RANKS = tuple(int(rank) for rank in NAMED_FAMILIES["low_rank"].grids["rank"])
"""Ranks of PowerSGD that the search may use: for `pliant.observe(ranks=...)`."""


def lossy_codecs() -> tuple[CodecSpec, ...]:
    """Return the codecs that the search may choose among: for `pliant.observe(codecs=...)`, through `codec_from`."""
    found = [gene.exchange.payload_codec for name in NAMED_FAMILIES for gene in all_of(name) if gene.lossy]
    return tuple(dict.fromkeys(codec for codec in found if codec is not None and codec.facts.kind != "cast"))


class CodecErrors:
    """Errors of each codec on each tensor of a workload: |C(g) - g|^2 over the squared norm of the whole gradient.

    The sum over tensors is the relative squared error of the whole gradient, and so what a budget bounds: for an
    unbiased codec omega, for a biased one 1 - delta, of one rank's gradient coded once. What error feedback brings
    back later, and what an owner adds by coding the mean, is not in it. Rounding to 16 bits counts for nothing.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._looked_at = any(tensor.gradient_share for tensor in workload.tensors)
        self._weighed = [_is_compressed(tensor) for tensor in workload.tensors]

    @property
    def measured(self) -> frozenset[str]:
        """Codings, as `Exchange.coding` names them, that were measured on every tensor that has a gradient."""
        seen = [set(row) for t, row in zip(self._workload.tensors, self._weighed, strict=True) if t.gradient_share]
        return frozenset(set.intersection(*seen)) if seen else frozenset()

    def require_some(self) -> None:
        """Raise ValueError if no codec was measured."""
        if not self.measured:
            raise ValueError(
                f"a budget of errors needs errors that were measured, but the workload {self._workload.name!r} has "
                "none; name codecs in pliant.observe(codecs=...), such as pliant.planner.lossy_codecs(), or ranks."
            )

    def of_tensor(self, place: int, node: Exchange) -> float | None:
        """Return the error of workload.tensors[place] under a node, as a share of the whole gradient's square.

        None if it is not known: the codec was not measured on it, or weights are exchanged instead of gradients.
        """
        if node.weights_may_diverge or isinstance(node.core, BlockSparse):
            return None
        coding = node.core.coding
        if not coding:
            return 0.0
        if self._looked_at and not self._workload.tensors[place].gradient_share:
            return 0.0  # its gradient was zero
        return self._weighed[place].get(coding)

    def of(self, plan: SyncPlan) -> float | None:
        """Return the relative squared error of the whole gradient under a plan, or None if it is not known."""
        total = 0.0
        for place, tensor in enumerate(self._workload.tensors):
            error = self.of_tensor(place, plan.exchange_for(tensor.name, tensor.layer, tensor.numel))
            if error is None:
                return None
            total += error
        return total


def _is_compressed(tensor: TensorSpec) -> dict[str, float]:
    return {_normalize_coding(text): tensor.gradient_share * error for text, error in tensor.gradient_error.items()}


def _normalize_coding(text: str) -> str:
    """Return a coding as plans name it: workloads of before write out the settings that have their default."""
    name, _, settings = text.partition("(")
    if name not in CODECS:
        return text
    pairs = re.findall(r"(\w+)=([^,)]+)", settings)
    return str(CodecSpec(name=name, settings={key: float(value) for key, value in pairs}))
