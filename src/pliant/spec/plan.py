"""Plans: what is exchanged, with whom, in how many bits, and when, per group of parameters."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

from pliant.spec.exchange import Exchange, require, text_of
from pliant.spec.files import canonical_hash
from pliant.spec.format1 import FlatChoice, exchange_of
from pliant.spec.gradients import AllReduce
from pliant.spec.plain import LATER, build_record
from pliant.spec.ranges import check_ranges
from pliant.spec.weights import LocalSteps

__all__ = ["Match", "Order", "Rule", "SparseWay", "SyncPlan"]

Order = Literal["ready", "at_end"]
"""Whether a bucket leaves when it is ready, beside backward, or after the whole backward."""
SparseWay = Literal["auto", "gather", "owners", "dense"]
"""Way of sparse gradients, as of ``nn.Embedding(sparse=True)``: all ranks' rows to all, sums of rows at the owners of
ranges of the table, or an all-reduce of the table; "auto" is what sends the fewest bytes, step by step."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """Conditions that select the parameters of a rule: all that are given must hold.

    >>> Match(layer="*Norm*")("blocks.0.norm.weight", "LayerNorm", 64)
    True
    """

    pattern: str = "*"
    """Shell pattern over the parameter's full name."""
    layer: str = "*"
    """Shell pattern over the class name of the layer that owns it, such as ``Embedding`` or ``*Norm*``."""
    min_numel: int = 0
    max_numel: int = 0
    """0 means no upper limit."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if min(self.min_numel, self.max_numel) < 0 or 0 < self.max_numel < self.min_numel:
            raise ValueError(
                f"a rule is for {self.min_numel} to {self.max_numel} elements; neither can be negative, and the first "
                "is at most the second, unless that is 0 for no limit."
            )

    def __call__(self, name: str, layer: str, numel: int) -> bool:
        """Say whether a parameter with this full name, layer class and number of elements is selected."""
        return (
            fnmatch.fnmatchcase(name, self.pattern)
            and fnmatch.fnmatchcase(layer, self.layer)
            and numel >= self.min_numel
            and (self.max_numel == 0 or numel <= self.max_numel)
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An exchange for the parameters that match."""

    match: Match = field(default_factory=Match)
    exchange: Exchange = field(default_factory=AllReduce)

    def __post_init__(self) -> None:
        if not isinstance(self.exchange, Exchange):  # pyright: ignore[reportUnnecessaryIsInstance]  # it comes from users
            raise ValueError(
                f"invalid Rule: exchange must be a node of a plan, got {self.exchange!r}; give one such as "
                "pliant.qsgd(), or the `node` of an algorithm of your own."
            )
        holds = [(node, child) for node in self.exchange.walk() for child in node.children]
        for holder, node in [(None, self.exchange), *holds]:
            require(
                not node.needs_anchor or isinstance(holder, LocalSteps),
                "Rule",
                f"{type(node).__name__} compares changes with the weights that a rank set out from, which LocalSteps "
                "alone keeps; give it as the averaging of LocalSteps, as pulse_loco() and no_loco() do.",
            )


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    """Rules in order: the first that matches a parameter decides. The last must match everything.

    >>> plan = SyncPlan(bucket_bytes=1 << 20)
    >>> str(plan.exchange_for("head.weight", "Linear", 4096))
    'AllReduce'
    """

    rules: tuple[Rule, ...] = (Rule(),)
    bucket_bytes: int = 0
    """Gradients come in buckets of at most so many bytes; 0 for those that DDP has. One tensor is never divided."""
    order: Order = "ready"
    name: str = ""
    provenance: str = ""
    sparse: SparseWay = field(default="auto", metadata=LATER)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.rules or self.rules[-1].match != Match():
            raise ValueError(
                "the last rule of a plan must match every parameter, but this plan leaves some without an exchange; "
                "append a rule without conditions."
            )
        if self.bucket_bytes < 0:
            raise ValueError(f"a bucket of {self.bucket_bytes} bytes holds nothing; use 0 for DDP's own size.")
        if len({rule.exchange.staleness_bound for rule in self.rules}) > 1:
            raise ValueError(
                "one rule lets ranks be at steps of their own, with a ParameterServer, and another does not, or with "
                "another staleness; give all rules such owners with the same staleness, or none."
            )
        free = [rule.exchange.timing for rule in self.rules if rule.exchange.averages_freely]
        if len({(timing.quorum, timing.grace_s) for timing in free}) > 1:
            raise ValueError(
                "two rules have different quorums or graces at a free pace, but one round averages all their weights; "
                "give all rules at a free pace the same quorum and grace_s."
            )
        servers = [rule.exchange for rule in self.rules if rule.exchange.staleness_bound is not None]
        if len({node.payload_codec for node in servers}) > 1:
            raise ValueError(
                f"two rules have ParameterServers with different codecs, {servers[0].payload_codec} and another, but "
                "all gradients of an owner travel in one message; give all the same codec."
            )
        if len({rule.exchange.ratio_target for rule in self.rules} - {None}) > 1:
            raise ValueError(
                "two rules have different targets, but what is exposed of a step cannot be told apart by rules; give "
                "all rules that have a target the same one."
            )

    def exchange_for(self, name: str, layer: str, numel: int) -> Exchange:
        """Return the exchange of the first rule that matches the parameter."""
        return next(rule.exchange for rule in self.rules if rule.match(name, layer, numel))

    def require_order_of_shards(self) -> None:
        """Raise ValueError for an order that a model which is divided among ranks cannot keep."""
        if self.order == "at_end":
            raise ValueError(
                "the plan exchanges all gradients at the end of backward (order='at_end'), but a module under "
                "fully_shard or replicate() hands its gradients over when they are complete; use order='ready'."
            )

    @property
    def leaves_gradients(self) -> bool:
        """Whether gradients always stay with their rank in backward: what is exchanged is exchanged between steps."""
        return all(rule.exchange.leaves_gradients(0) for rule in self.rules)

    @property
    def exchanges_weights(self) -> bool:
        """Whether weights of any parameter are exchanged between steps, so that those of ranks may differ meanwhile."""
        return any(rule.exchange.exchanges_weights for rule in self.rules)

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits that all ranks must agree on; name and provenance do not count."""
        return canonical_hash(replace(self, name="", provenance=""))

    def __str__(self) -> str:
        buckets = f", buckets of {self.bucket_bytes / 2**20:.3g} MiB" if self.bucket_bytes else ""
        sparse = f", sparse gradients by {self.sparse}" if self.sparse != "auto" else ""
        lines = [f"{self.name or 'plan'} [{self.hash}]{buckets}{sparse}"]
        for rule in self.rules:
            m = rule.match
            conditions = [
                f"name {m.pattern}" if m.pattern != "*" else "",
                f"layer {m.layer}" if m.layer != "*" else "",
                f">= {m.min_numel} elements" if m.min_numel else "",
                f"<= {m.max_numel} elements" if m.max_numel else "",
            ]
            lines.append(
                f"  {', '.join(c for c in conditions if c) or 'everything'}: {text_of(rule.exchange, brief=True)}"
            )
        return "\n".join(lines)

    @classmethod
    def read_format_1(cls, body: Mapping[str, Any]) -> Self:
        """Return a plan of format 1, whose rules have flat choices. Raises ValueError for what is no such plan."""
        old = build_record(_PlanOfFormat1, body, "SyncPlan")
        orders = {rule.choice.order for rule in old.rules}
        if len(orders) > 1:
            raise ValueError("one rule sends when ready and another at the end of backward; a plan has one order.")
        rules = tuple(Rule(match=rule.match, exchange=exchange_of(rule.choice)) for rule in old.rules)
        order = orders.pop() if orders else "ready"
        return cls(rules=rules, bucket_bytes=old.bucket_bytes, order=order, name=old.name, provenance=old.provenance)


@dataclass(frozen=True, kw_only=True)
class _RuleOfFormat1:
    match: Match = field(default_factory=Match)
    choice: FlatChoice = field(default_factory=FlatChoice)


@dataclass(frozen=True, kw_only=True)
class _PlanOfFormat1:
    rules: tuple[_RuleOfFormat1, ...] = (_RuleOfFormat1(),)
    bucket_bytes: int = 0
    name: str = ""
    provenance: str = ""
