"""`pliant schedule`: in which order blocks should move between these hosts, if ranks hold these blocks."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pliant.cli import inputs
from pliant.cli.owned_schedules import OwnedOption, owned_bytes, owned_search, require_whole
from pliant.cli.page import require_plotly, write_figure
from pliant.cli.racks import RacksOption, UplinkOption
from pliant.cli.schedule_figure import schedule_figure
from pliant.netmodel import Overheads
from pliant.schedules import (
    Candidate,
    Collective,
    candidates,
    improve_owners,
    improve_rounds,
    lower_bound_s,
    merge_blocks,
    verify,
)
from pliant.schedules.dense import dense_candidates
from pliant.spec import Topology, save
from pliant.spec.files import require_places, write_atomically
from pliant.spec.reading import read_text
from pliant.spec.units import format_bytes, format_time, parse_bytes, parse_time

__all__ = ["schedule"]

_SHOWN = 8
"""Fastest schedules that are shown; the classic ones are shown besides."""
_CLASSIC = ("direct", "ring", "halving", "tree")


def schedule(
    topology: inputs.TopologyOption = None,
    hosts: inputs.HostsOption = 0,
    ranks: inputs.RanksOption = None,
    rate: inputs.RateOption = "",
    delay: inputs.DelayOption = "",
    racks: RacksOption = 0,
    uplink: UplinkOption = "",
    size: Annotated[str, typer.Option(help="Of the whole vector: 4MiB.")] = "4MiB",
    blocks: Annotated[int, typer.Option(help="In how many equal blocks it is.")] = 128,
    density: Annotated[str, typer.Option(help="Part of the blocks that each rank holds: 0.05 or 5%.")] = "100%",
    agreed: Annotated[bool, typer.Option("--agreed", help="All ranks hold the same blocks.")] = False,
    seed: Annotated[int, typer.Option(help="Of which blocks those are.")] = 0,
    bitmap: Annotated[
        Path | None, typer.Option(help="Who holds what: a line of 0 and 1 for each rank; instead of the last four.")
    ] = None,
    owned: OwnedOption = "",
    improve: Annotated[str, typer.Option(help="How long integer programs may look for something better: 10s.")] = "0s",
    machine: inputs.MachineOption = "",
    overheads: inputs.OverheadsOption = None,
    draw: Annotated[Path | None, typer.Option(help="Draw the best there, as a page.")] = None,
    pause: Annotated[str, typer.Option(help="Time between two all-reduces: after it TCP starts slowly.")] = "0s",
    out: Annotated[Path | None, typer.Option(help="Write the best schedule there.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results there.")] = None,
) -> None:
    """Find the fastest schedule for an all-reduce of which every rank holds some blocks, and verify it.

    With --owned, sums end on owners of parts, who send what they make of them back to all.
    """
    if draw is not None:
        require_plotly()
        if draw.suffix != ".html":
            raise ValueError(f"--draw is {draw}, but a drawing is a page; name it .html.")
    require_places(draw, out, json_file)
    where = inputs.read_topology(topology, hosts, ranks, rate, delay, racks, uplink, machine)
    known = replace(inputs.read_overheads(overheads, machine, where), pause_s=parse_time(pause))
    notes = list[str]()
    if owned:
        require_whole(owned, bitmap is None and _part(density) == 1 and parse_time(improve) == 0)
        parts = owned_bytes(owned, parse_bytes(size), where.num_ranks)
        collective, found, bound_s = owned_search(parts, where, known)
    else:
        held = (
            _random_bitmap(where.num_ranks, blocks, _part(density), agreed=agreed, seed=seed)
            if bitmap is None
            else _read(bitmap, where.num_ranks)
        )
        collective = Collective.of(held, _sizes(parse_bytes(size), len(held[0])))
        found, notes = _search(collective, where, known, parse_time(improve))
        bound_s = lower_bound_s(collective, where, known)
    notes.append(inputs.describe_overheads(overheads, machine, network=where))
    _show(found, collective, bound_s, notes)
    best = found[0]
    if draw is not None:
        write_figure(draw, f"Schedule {best.name}", schedule_figure(best, where, bound_s))
    if out is not None:
        save(best.schedule, out)
    if json_file is not None:
        write_atomically(json_file, json.dumps(_plain(found, bound_s, known), indent=1, allow_nan=False) + "\n")


def _search(
    collective: Collective, topology: Topology, overheads: Overheads, limit_s: float
) -> tuple[list[Candidate], list[str]]:
    """Return verified candidates, the fastest first, and notes on the programs."""
    family = candidates(merge_blocks(collective), topology, overheads)
    if num_bytes := collective.dense_bytes:  # a vector that may be cut anywhere
        classic = {each.name for each in family}
        family += [e for e in dense_candidates(num_bytes, topology, overheads) if e.name not in classic]
        family.sort(key=lambda each: each.cost.total_s)
    found, notes = list(family), list[str]()
    if limit_s > 0:
        found.append(improve_owners(family[0], topology, overheads, limit_s=limit_s / 2))
        try:
            found.append(improve_rounds(family[0], collective, topology, overheads, limit_s=limit_s / 2))
        except ValueError as error:
            notes.append(f"no program over all rounds: {error}")
        if all(each is family[0] for each in found[len(family) :]):
            notes.append(f"the programs found nothing faster in {format_time(limit_s)}.")
        found = [*family, *(each for each in found[len(family) :] if each is not family[0])]
    for each in found:
        verify(each.schedule, each.merged.collective)
    return sorted(found, key=lambda each: each.cost.total_s), notes


def _show(found: list[Candidate], collective: Collective, bound_s: float, notes: list[str]) -> None:
    console = Console()
    union_bytes = sum(n for n, held in zip(collective.block_bytes, collective.holders, strict=True) if held)
    held_bytes = [
        sum(n for n, held in zip(collective.block_bytes, collective.holders, strict=True) if rank in held)
        for rank in range(collective.num_ranks)
    ]
    console.print(
        f"{collective.num_ranks} ranks, {collective.num_blocks} blocks, {format_bytes(sum(collective.block_bytes))}; "
        f"a rank holds up to {format_bytes(max(held_bytes))}, all together {format_bytes(union_bytes)}; "
        f"no schedule takes less than {format_time(bound_s)}",
        highlight=False,
    )
    table = Table("schedule", "rounds", "messages", "sent by the busiest", "predicted", "over the bound")
    names = set[str]()
    for k, each in enumerate(found):
        if k < _SHOWN or (each.name in _CLASSIC and each.name not in names):
            table.add_row(
                each.name,
                str(len(each.schedule.rounds)),
                str(each.cost.num_messages),
                format_bytes(max(each.cost.sent_bytes)),
                format_time(each.cost.total_s),
                _over(each, bound_s),
            )
        names.add(each.name)
    console.print(table)
    console.print(f"{len(found)} schedules, all verified; the best: {found[0].name}", markup=False, highlight=False)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _over(candidate: Candidate, bound_s: float) -> str:
    return f"{candidate.cost.total_s / bound_s - 1:.0%}" if bound_s > 0 else ""


def _plain(found: list[Candidate], bound_s: float, overheads: Overheads) -> dict[str, Any]:
    return {
        "lower_bound_s": bound_s,
        "message_s": overheads.message_s,
        "wire_factor": overheads.wire_factor,
        "best": found[0].name,
        "members": [list(blocks) for blocks in found[0].merged.members],
        "candidates": [
            {
                "name": each.name,
                "rounds": len(each.schedule.rounds),
                "messages": each.cost.num_messages,
                "sent_bytes": list(each.cost.sent_bytes),
                "predicted_s": each.cost.total_s,
                "round_s": [one.total_s for one in each.cost.rounds],
            }
            for each in found
        ],
    }


def _part(text: str) -> float:
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise ValueError(f"--density is {text}, but is a part of all blocks: write 0.05, or 5%.")
    return part


def _sizes(num_bytes: int, num_blocks: int) -> list[int]:
    """Return the bytes of each block: multiples of 4, as equal as may be."""
    if num_blocks < 1 or num_bytes < 4 * num_blocks:
        raise ValueError(f"{num_bytes} bytes in {num_blocks} blocks cannot be: a block has at least 4 bytes.")
    words = num_bytes // 4
    return [4 * (words * (k + 1) // num_blocks - words * k // num_blocks) for k in range(num_blocks)]


def _random_bitmap(num_ranks: int, num_blocks: int, part: float, *, agreed: bool, seed: int) -> list[list[bool]]:
    """Return (ranks, blocks): each rank holds the same number, drawn anew for each unless agreed."""
    generator = random.Random(seed)  # noqa: S311  which blocks, not a secret
    number = max(round(part * num_blocks), int(part > 0 and num_blocks > 0))
    chosen = set[int]()
    rows: list[list[bool]] = []
    for rank in range(num_ranks):
        if rank == 0 or not agreed:
            chosen = set(generator.sample(range(num_blocks), number))
        rows.append([b in chosen for b in range(num_blocks)])
    return rows


def _read(path: Path, num_ranks: int) -> list[list[bool]]:
    """Return the bitmap of a file: a line for each rank, of 0 and 1, which blanks or commas may part."""
    lines = [line.replace(" ", "").replace(",", "") for line in read_text(path).splitlines()]
    lines = [line for line in lines if line]
    if len(lines) != num_ranks or len({len(line) for line in lines}) != 1 or set("".join(lines)) - {"0", "1"}:
        raise ValueError(
            f"{path} has {len(lines)} lines, but needs one for each of the {num_ranks} ranks of the topology, all as "
            "long, of 0 and 1."
        )
    return [[digit == "1" for digit in line] for line in lines]
