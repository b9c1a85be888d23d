"""The written answer to: what is exchanged, with whom, in how many bits, and when, per group of parameters."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pliant.spec.files import LATER, canonical_hash
from pliant.spec.graph import Graph
from pliant.spec.selection import Selection
from pliant.spec.target import Target
from pliant.spec.validity import SPARSIFIERS, check

__all__ = ["Choice", "CodecSpec", "Match", "Outer", "OwnSpec", "Rule", "SyncPlan"]

What = Literal["gradient", "momentum", "weight", "change"]
Collective = Literal["all_reduce", "scatter_gather", "all_gather", "low_rank", "gossip", "owner", "blocks"]
Feedback = Literal["none", "worker", "both", "difference"]
Order = Literal["ready", "at_end"]
Pace = Literal["lockstep", "free"]


@dataclass(frozen=True, kw_only=True)
class _Named:
    name: str
    settings: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType({k: float(v) for k, v in self.settings.items()}))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.settings.items()))))

    def __str__(self) -> str:
        settings = ", ".join(f"{k}={v:g}" for k, v in self.settings.items())
        return f"{self.name}({settings})" if settings else self.name


class CodecSpec(_Named):
    """A codec by name with its settings, such as ``qsgd`` with ``{"bits": 4}``."""


class OwnSpec(_Named):
    """An algorithm that is not Pliant's, by the name under which every rank has registered it, with its settings."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """What becomes of the mean change of the weights: SGD with Nesterov momentum on the point where all set out."""

    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.lr <= 0 or not 0 <= self.momentum < 1:
            raise ValueError(
                f"the outer optimizer has lr {self.lr} and momentum {self.momentum}, but needs lr above 0 and momentum "
                "at least 0 and below 1."
            )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How one group of parameters is synchronized. Nonsense is refused here, with both sides named."""

    what: What = "gradient"
    """Gradients and momenta are exchanged before the optimizer's step, weights and their changes between steps."""
    collective: Collective = "all_reduce"
    """Which collective moves it, and so with whom: all but gossip reach every rank of the group."""
    bandwidths: tuple[float, ...] = ()
    """Of owners: what each rank's network carries, in any unit; nothing means that all are alike."""
    staleness: int = 0
    """Of owners at a free pace: how many steps a rank may be ahead of the slowest, and its weights behind."""
    graph: Graph | None = None
    """Of gossip: who averages with whom."""
    gamma: float = 0.0
    """Of coded gossip: how far weights go towards what replicas say (CHOCO); at 0 a replica takes their place (DCD)."""
    outer: Outer | None = None
    """Of changes: the optimizer that takes them."""
    own: OwnSpec | None = None
    """A registered algorithm: it decides by itself with whom and in how many bits."""
    codec: CodecSpec | None = None
    selection: Selection | None = field(default=None, metadata=LATER)
    """Of blocks: which of them travel."""
    feedback: Feedback = "none"
    """Who keeps the error of its lossy codec for the next step: nobody, the worker, or the chunk owner as well; or,
    of blocks, whether the worker sends differences to an estimate that all keep (EF21)."""
    momentum: float = 0.0
    """Factor of a momentum that the algorithm keeps itself: DGC's correction, DeMo's, or beta_1 of 1-bit Adam."""
    signed: bool = False
    """Of DeMo's momentum: whether the optimizer gets the signs of the mean, not the mean."""
    ramp_steps: int = 0
    """Steps over which a sparsifier's ratio falls to its final value."""
    target: Target | None = field(default=None, metadata=LATER)
    """What a sparsifier's ratio is set for while training goes on; None for one that stays as it is."""
    every: int = 1
    """Exchange in every n-th step; gradients of the others are added to the next exchange."""
    stretch: float = 0.0
    """Of changes: exchange every max(every, (stretch / lr)^2) steps, so that the period grows as lr falls."""
    fragments: int = 1
    """Of changes: parts of the model that are exchanged at different steps of a period."""
    delay_steps: int = 0
    """How many steps later a result is used, while its exchange runs beside them."""
    compensation: float = 0.0
    """Of late gradients: factor of the correction for what the weights have done since."""
    lookahead: float = 0.0
    """Of late gradients: how many steps they are extrapolated by, along what has changed since those before."""
    pace: Pace = "lockstep"
    """Whether all ranks exchange at the same steps, or whenever the network is free, each at the step it is in."""
    weighted: bool = False
    """Of changes: whether a rank counts by the work that it has done since the last exchange."""
    before: "Choice | None" = None
    """What to do instead in the steps before `until_step`: the warm-up."""
    until_step: int = 0
    chunk_bytes: int = 1 << 20
    """Uncompressed bytes in one pipelined piece of a bucket."""
    hierarchical: bool = False
    """Whether ranks of one host are summed exactly first, and only hosts exchange this way."""
    order: Order = "ready"
    """Whether a bucket leaves when it is ready, beside backward, or after the whole backward."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def staged(self) -> bool:
        """Whether gradients are brought to float32 first, since something of them is kept or coded."""
        kept = self.codec is not None or self.selection is not None or self.own is not None
        return kept or self.every > 1 or self.delay_steps > 0

    @property
    def between_steps(self) -> bool:
        """Whether weights are exchanged between steps, and gradients stay with their rank (or its host)."""
        return self.what in ("weight", "change")

    @property
    def ratio(self) -> float | None:
        """What a controller may set: the share that blocks or a sparsifier in an all_gather send; None without such."""
        if self.selection is not None:
            return self.selection.ratio
        sparse = self.codec is not None and self.codec.name in SPARSIFIERS and self.collective == "all_gather"
        return self.codec.settings.get("ratio") if self.codec is not None and sparse else None

    @property
    def owned(self) -> bool:
        """Whether each parameter has an owner, who alone steps it."""
        return self.collective == "owner"

    @property
    def served(self) -> bool:
        """Whether owners take gradients as they come, and ranks are at steps of their own."""
        return self.owned and self.pace == "free"

    @property
    def apart(self) -> bool:
        """Whether the weights of ranks may differ, and gradients stay with their rank in backward."""
        return self.between_steps or self.served

    def stays(self, step: int) -> bool:
        """Say whether a gradient stays with its rank in this step, because weights are exchanged instead."""
        return self.apart and not self.hierarchical and step >= self.until_step

    def __str__(self) -> str:
        codec = f" as {self.codec}" if self.codec else f" ({self.selection})" if self.selection else ""
        signed = ", signs of the mean" if self.signed else ""
        feedback = {
            "none": "",
            "worker": ", error feedback",
            "both": ", error feedback on both sides",
            "difference": ", as differences to an estimate",
        }[self.feedback]
        when = "" if self.every == 1 else f", every {self.every} steps"
        when += f", {self.delay_steps} steps late" if self.delay_steps else ""
        when += ", whenever the network is free" if self.pace == "free" and not self.owned else ""
        when += f", at most {self.staleness} steps stale" if self.served else ""
        whom = f" on a {self.graph.kind} graph" if self.graph else ""
        level = ", between hosts" if self.hierarchical else ""
        level += f", {self.target}" if self.target else ""
        first = f"until step {self.until_step}: {self.before}; then " if self.before else ""
        return f"{first}{self.what} by {self.own or self.collective}{whom}{codec}{signed}{feedback}{when}{level}"


@dataclass(frozen=True, kw_only=True)
class Match:
    """Which parameters a rule speaks of: all conditions that are given must hold."""

    pattern: str = "*"
    """Shell pattern over the parameter's full name."""
    layer: str = "*"
    """Shell pattern over the class name of the layer that owns it, such as ``Embedding`` or ``*Norm*``."""
    min_numel: int = 0
    max_numel: int = 0
    """0 means no upper limit."""

    def __post_init__(self) -> None:
        if min(self.min_numel, self.max_numel) < 0:
            raise ValueError(f"a rule is for {self.min_numel} to {self.max_numel} elements; neither can be negative.")

    def __call__(self, name: str, layer: str, numel: int) -> bool:
        """Say whether a parameter is meant."""
        return (
            fnmatch.fnmatchcase(name, self.pattern)
            and fnmatch.fnmatchcase(layer, self.layer)
            and numel >= self.min_numel
            and (self.max_numel == 0 or numel <= self.max_numel)
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A choice for the parameters that match."""

    match: Match = field(default_factory=Match)
    choice: Choice = field(default_factory=Choice)


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    """Rules in order: the first that matches a parameter decides. The last must match everything."""

    rules: tuple[Rule, ...] = (Rule(),)
    bucket_bytes: int = 0
    """Gradients come in buckets of at most so many bytes; 0 for those that DDP has. One tensor is never divided."""
    name: str = ""
    provenance: str = ""

    def __post_init__(self) -> None:
        if not self.rules or self.rules[-1].match != Match():
            raise ValueError(
                "the last rule of a plan must match every parameter, but this plan could leave some without a choice; "
                "append a rule without conditions."
            )
        if self.bucket_bytes < 0:
            raise ValueError(f"a bucket of {self.bucket_bytes} bytes holds nothing; use 0 for DDP's own size.")
        if len({rule.choice.served for rule in self.rules}) > 1:
            raise ValueError(
                "one rule lets ranks be at steps of their own, with owners at a free pace, and another does not; "
                "give all rules such owners, or none."
            )
        if len({rule.choice.target for rule in self.rules} - {None}) > 1:
            raise ValueError(
                "two rules have different targets, but what is exposed of a step cannot be told apart by rules; give "
                "all rules that have a target the same one."
            )
        orders = {rule.choice.order for rule in self.rules}
        if len(orders) > 1:
            raise ValueError("one rule sends when ready and another at the end of backward; a plan has one order.")

    def choice_for(self, name: str, layer: str, numel: int) -> Choice:
        """Return the choice of the first rule that matches the parameter."""
        return next(rule.choice for rule in self.rules if rule.match(name, layer, numel))

    @property
    def between_steps(self) -> bool:
        """Whether gradients always stay with their rank in backward: what is exchanged is exchanged between steps."""
        choices = [rule.choice for rule in self.rules]
        return all(c.apart and c.before is None and not c.hierarchical for c in choices)

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that all ranks must agree on; name and provenance do not count."""
        return canonical_hash(SyncPlan(rules=self.rules, bucket_bytes=self.bucket_bytes))

    def __str__(self) -> str:
        buckets = f", buckets of {self.bucket_bytes / 2**20:.3g} MiB" if self.bucket_bytes else ""
        lines = [f"{self.name or 'plan'} [{self.hash}]{buckets}"]
        for rule in self.rules:
            m = rule.match
            conditions = [
                f"name {m.pattern}" if m.pattern != "*" else "",
                f"layer {m.layer}" if m.layer != "*" else "",
                f">= {m.min_numel} elements" if m.min_numel else "",
                f"<= {m.max_numel} elements" if m.max_numel else "",
            ]
            lines.append(f"  {', '.join(c for c in conditions if c) or 'everything'}: {rule.choice}")
        return "\n".join(lines)
