"""The validity table: which answers do not go together, and why.

Each row is a condition and the sentence that a user reads when it holds; the planner's search keeps to it as well.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pliant.spec.codecs import CODECS, codec_names
from pliant.spec.target import NEEDS_RATIO

if TYPE_CHECKING:
    from pliant.spec.plan import Choice

__all__ = ["check", "objections"]

# Which codecs each collective can carry: sums must survive in a ring, a sparse gather needs index-value pairs.
SUMMABLE = frozenset(codec_names("cast", "shared"))
QUANTIZERS = frozenset(codec_names("cast", "quantizer"))
SPARSIFIERS = frozenset(codec_names("sparsifier"))
TRANSFORMS = frozenset(codec_names("transform"))
DIFFERENCE_CODERS = QUANTIZERS | SPARSIFIERS
BIASED = frozenset(name for name, facts in CODECS.items() if facts.biased)

_ROWS: tuple[tuple[Callable[["Choice"], bool], str], ...] = (
    (
        lambda c: c.codec is not None and c.codec.name not in (*CODECS, "rank"),
        "there is no codec {codec!r}; there are " + ", ".join((*CODECS, "rank")) + ".",
    ),
    (
        lambda c: c.collective == "all_reduce" and c.codec is not None and c.codec.name not in SUMMABLE,
        "an all_reduce adds up what travels, but sums of {codec} payloads mean nothing; "
        "use scatter_gather or all_gather, or one of " + ", ".join(sorted(SUMMABLE)) + ".",
    ),
    (
        lambda c: c.collective == "scatter_gather" and (c.codec is None or c.codec.name not in QUANTIZERS),
        "scatter_gather sends every element in fewer bits, but {codec} does not do that; "
        "use one of " + ", ".join(sorted(QUANTIZERS)) + ", or another collective.",
    ),
    (
        lambda c: c.collective == "all_gather" and (c.codec is None or c.codec.name not in SPARSIFIERS | TRANSFORMS),
        "all_gather merges chosen elements, but {codec} does not choose any; "
        "use one of " + ", ".join(sorted(SPARSIFIERS | TRANSFORMS)) + ", or another collective.",
    ),
    (
        lambda c: (
            c.codec is not None
            and c.codec.name in TRANSFORMS
            and (c.what != "gradient" or c.collective != "all_gather" or c.momentum == 0 or c.feedback != "none")
        ),
        "coefficients that {codec} leaves out stay in a momentum of gradients, but here a {what} meets {collective}, "
        "momentum {momentum} and feedback {feedback!r}; use gradients, all_gather, a momentum above 0, and 'none'.",
    ),
    (
        lambda c: c.signed and (c.codec is None or c.codec.name not in TRANSFORMS),
        "signs of the mean belong to the momentum that a transform leaves behind, but the codec is {codec}; "
        "use dct, or unset signed.",
    ),
    (
        lambda c: (c.collective == "blocks") != (c.selection is not None),
        "a selection says which blocks travel, but the collective is {collective} and the selection {selection}; "
        "give blocks a selection, and nothing else one.",
    ),
    (
        lambda c: c.collective == "blocks" and (c.codec is not None or c.own is not None),
        "blocks travel as they are, but {codec} and the algorithm {own} are given as well; use value_bits of the "
        "selection, or another collective.",
    ),
    (
        lambda c: c.collective == "blocks" and c.what != "gradient",
        "blocks of gradients are chosen by what they do to the loss, but what is exchanged is a {what}; exchange "
        "gradients, or use a sparsifier in an all_gather.",
    ),
    (
        lambda c: c.collective == "blocks" and c.feedback not in ("worker", "difference"),
        "blocks that are not chosen would be lost with feedback {feedback!r}; use 'worker' or 'difference'.",
    ),
    (
        lambda c: c.feedback == "difference" and c.collective != "blocks",
        "differences to an estimate are sent by blocks, not by {collective}; use feedback 'worker'.",
    ),
    (
        lambda c: c.selection is not None and c.selection.topology is not None and c.hierarchical,
        "a topology of all ranks is given for a schedule between hosts only; leave it out, or hierarchical.",
    ),
    (
        lambda c: (c.collective == "low_rank") != (c.codec is not None and c.codec.name == "rank"),
        "low_rank and the codec 'rank' belong together, but here {collective} meets {codec}.",
    ),
    (
        lambda c: c.feedback != "none" and c.codec is None and c.collective != "blocks",
        "error feedback keeps what a codec loses, but no codec is given; drop the feedback or name a codec.",
    ),
    (
        lambda c: c.feedback != "none" and c.collective == "gossip",
        "what coded gossip loses stays in the difference to the replicas already; set feedback to 'none'.",
    ),
    (
        lambda c: c.feedback == "both" and c.collective != "scatter_gather",
        "feedback on both sides needs chunk owners, which only scatter_gather has, not {collective}; use 'worker'.",
    ),
    (
        lambda c: c.codec is not None and c.codec.name in BIASED and c.feedback == "none" and c.collective != "gossip",
        "{codec} is biased and without error feedback training may not converge; set feedback to 'worker' or 'both'.",
    ),
    (
        lambda c: c.what == "momentum" and not 0 < c.momentum < 1,
        "a momentum is exchanged, but its factor is {momentum}; set it between 0 and 1, as in the optimizer.",
    ),
    (
        lambda c: c.what == "momentum" and c.before is None,
        "momentum is exchanged against a frozen variance, which nothing has estimated; put a warm-up before it.",
    ),
    (
        lambda c: c.what == "gradient" and c.momentum != 0 and c.collective not in ("all_gather", "blocks"),
        "momentum correction belongs to sparsified gradients in an all_gather or to blocks, not to {collective}.",
    ),
    (
        lambda c: c.what == "momentum" and c.every != 1,
        "an exchanged momentum must be exchanged in every step, not every {every}; exchange gradients instead.",
    ),
    (
        lambda c: (
            c.ramp_steps > 0
            and c.collective != "blocks"
            and (c.collective != "all_gather" or (c.codec is not None and c.codec.name not in SPARSIFIERS))
        ),
        "only a sparsifier in an all_gather has a ratio to ramp, and blocks have one, but here {collective} meets "
        "{codec}; use after() for other warm-ups.",
    ),
    (
        lambda c: (c.what == "weight") != (c.collective == "gossip"),
        "{what} and {collective} do not go together: gossip averages weights, and whole weights are only gossiped; "
        "exchange a change, momentum or gradient by another collective.",
    ),
    (
        lambda c: (c.graph is None) != (c.collective != "gossip"),
        "a graph says who gossips with whom, but the collective is {collective} and the graph {graph}; "
        "give gossip a graph, and nothing else one.",
    ),
    (
        lambda c: c.collective == "gossip" and c.codec is not None and c.codec.name not in DIFFERENCE_CODERS,
        "coded gossip decodes and adds one payload at a time, which {codec} does not allow; "
        "use one of " + ", ".join(sorted(DIFFERENCE_CODERS)) + ".",
    ),
    (
        lambda c: not 0 <= c.gamma <= 1 or (c.gamma > 0 and not (c.collective == "gossip" and c.codec is not None)),
        "gamma is {gamma}, but it must be between 0 and 1 and belongs to gossip with a codec.",
    ),
    (
        lambda c: c.own is not None and c.codec is not None,
        "{own} decides by itself in how many bits it sends, so that {codec} would be ignored; "
        "give the codec by its settings, or not at all.",
    ),
    (
        lambda c: c.own is not None and c.what == "momentum",
        "what is exchanged as a momentum is that of 1-bit Adam, which {own} is not; "
        "let it keep a momentum in a slot of its own, and exchange gradients.",
    ),
    (
        lambda c: (c.what == "change") != (c.outer is not None),
        "an outer optimizer takes the mean change of the weights, but {what} is exchanged with "
        "{outer}; give both or neither.",
    ),
    (
        lambda c: c.what != "change" and (c.fragments != 1 or c.stretch != 0 or c.weighted),
        "fragments, a stretched period and weights by work belong to the exchange of changes, not of a {what}.",
    ),
    (
        lambda c: c.fragments < 1 or c.fragments > c.every,
        "{fragments} fragments cannot be exchanged at different steps of a period of {every}; use 1 to {every}.",
    ),
    (lambda c: c.stretch < 0, "a stretch of {stretch} cannot be; use 0 or more."),
    (
        lambda c: c.delay_steps < 0 or (c.what in ("weight", "change") and c.delay_steps > c.every),
        "a result {delay_steps} steps late would come after the next exchange, every {every}; be late by at most that.",
    ),
    (
        lambda c: c.what == "gradient" and c.delay_steps > 1,
        "gradients {delay_steps} steps late are not offered; be late by one step, or exchange changes.",
    ),
    (
        lambda c: c.what == "momentum" and c.delay_steps > 0,
        "a late momentum would meet a variance that it does not belong to; exchange gradients late instead.",
    ),
    (
        lambda c: c.compensation != 0 and (c.what != "gradient" or c.delay_steps == 0 or c.compensation < 0),
        "a compensation of {compensation} corrects late gradients, but what comes is a {what} {delay_steps} steps "
        "late; make it positive and gradients late, or 0.",
    ),
    (
        lambda c: c.lookahead != 0 and (c.what != "gradient" or c.delay_steps == 0 or c.lookahead < 0),
        "a lookahead of {lookahead} extrapolates late gradients, but what comes is a {what} {delay_steps} steps "
        "late; make it positive and gradients late, or 0.",
    ),
    (
        lambda c: c.collective == "owner" and c.what != "gradient",
        "an owner steps its parameters with gradients, but what is exchanged is a {what}; exchange gradients.",
    ),
    (
        lambda c: c.own is not None and c.collective == "owner",
        "{own} decides by itself with whom it exchanges, so that owners would be ignored; give one of the two.",
    ),
    (
        lambda c: c.collective == "owner" and c.codec is not None and c.codec.name not in QUANTIZERS,
        "gradients go to their owner element by element, but {codec} does not send them so; use one of "
        + ", ".join(sorted(QUANTIZERS))
        + ", or none.",
    ),
    (
        lambda c: c.collective == "owner" and (c.every > 1 or c.delay_steps > 0 or c.hierarchical),
        "owners send new weights after every step to all, but here gradients come every {every} steps, {delay_steps} "
        "late or by hosts; use owners without every(), late() and between_hosts().",
    ),
    (
        lambda c: (c.collective == "owner" and c.before is not None) or (c.before is not None and c.before.owned),
        "the optimizer's state lies with owners or everywhere, not first here and then there; switch() instead of "
        "a warm-up.",
    ),
    (
        lambda c: c.collective == "owner" and c.feedback != "none",
        "owners add up what comes and keep no residuals; set feedback to 'none', or use scatter_gather.",
    ),
    (
        lambda c: c.bandwidths != () and (c.collective != "owner" or min(c.bandwidths) <= 0),
        "bandwidths {bandwidths} say how much each owner gets: positive ones, and only where the collective is owner.",
    ),
    (
        lambda c: c.staleness < 0 or (c.staleness > 0 and not (c.collective == "owner" and c.pace == "free")),
        "a staleness of {staleness} bounds how far apart ranks are at owners with a free pace; make it 0 or more, and "
        "give it to such.",
    ),
    (
        lambda c: c.collective == "owner" and c.pace == "free" and c.codec is not None,
        "owners at a free pace take plain gradients, but a codec {codec} is given; leave it out.",
    ),
    (
        lambda c: (
            c.pace == "free" and c.collective != "owner" and (c.what not in ("weight", "change") or c.delay_steps > 0)
        ),
        "at a free pace results are used when they are there, which a {what} {delay_steps} steps late is not; "
        "use it for weights or changes without a delay.",
    ),
    (
        lambda c: c.collective == "gossip" and c.gamma == 0 and c.codec is not None and c.delay_steps > 0,
        "where replicas take the weights' place (gamma 0) they do so at once, not {delay_steps} steps late.",
    ),
    (lambda c: not 0 <= c.momentum < 1, "the momentum factor is {momentum}, but must be at least 0 and below 1."),
    (lambda c: c.every < 1, "an exchange every {every} steps cannot be; use 1 or more."),
    (lambda c: c.target is not None and (c.what != "gradient" or c.ratio is None or c.before is not None), NEEDS_RATIO),
    (lambda c: c.ramp_steps < 0, "a ramp of {ramp_steps} steps cannot be; use 0 or more."),
    (lambda c: c.chunk_bytes < 4096, "chunks of {chunk_bytes} bytes are too small to pay; use 4096 or more."),
    (
        lambda c: (c.before is None) != (c.until_step == 0) or c.until_step < 0,
        "a warm-up has a choice and a step at which it ends, but until_step is {until_step}; give both or neither.",
    ),
    (
        lambda c: c.before is not None and c.before.between_steps,
        "a warm-up of weights exchanged between steps leaves the ranks apart; warm up with gradients.",
    ),
    (
        lambda c: c.before is not None and (c.before.order != c.order or c.before.hierarchical != c.hierarchical),
        "the warm-up and what follows it must agree on order and hierarchy; set both alike.",
    ),
)


def objections(choice: "Choice") -> list[str]:
    """Return the sentences that speak against a choice; none means that it is valid."""
    facts = {
        "codec": str(choice.codec) if choice.codec else "no codec",
        "own": str(choice.own),
        "selection": str(choice.selection) if choice.selection else "none",
        "what": choice.what,
        "collective": choice.collective,
        "graph": choice.graph.kind if choice.graph else "none",
        "gamma": choice.gamma,
        "outer": choice.outer or "no outer optimizer",
        "bandwidths": choice.bandwidths,
        "staleness": choice.staleness,
        "fragments": choice.fragments,
        "stretch": choice.stretch,
        "delay_steps": choice.delay_steps,
        "compensation": choice.compensation,
        "lookahead": choice.lookahead,
        "momentum": choice.momentum,
        "feedback": choice.feedback,
        "every": choice.every,
        "ramp_steps": choice.ramp_steps,
        "chunk_bytes": choice.chunk_bytes,
        "until_step": choice.until_step,
    }
    return [sentence.format(**facts) for objects, sentence in _ROWS if objects(choice)]


def check(choice: "Choice") -> None:
    """Raise ValueError with every objection to a choice."""
    found = objections(choice)
    if found:
        raise ValueError("this choice cannot be: " + " ".join(found))
