"""Topologies, bitmaps and shapes for the tests of schedules: drawn by hypothesis, or listed."""

import copy
import random
from dataclasses import replace

import torch
from hypothesis import strategies as st

import pliant
from pliant.schedules.collective import Collective
from pliant.schedules.family import shapes
from pliant.spec import Host, Link, Rack, Topology

DENSITIES = (0.001, 0.01, 0.1, 0.5, 1.0)


def hosts(sizes, rate=12.5e6, delay_s=1e-3, links=()):
    return Topology(
        hosts=tuple(
            Host(name=f"h{k}", num_ranks=n, send_bytes_per_s=rate, receive_bytes_per_s=rate, delay_s=delay_s)
            for k, n in enumerate(sizes)
        ),
        links=links,
    )


def racks(sizes, uplink=3e6, **settings):
    """Hosts of one rank in racks of these sizes, with this rate between them, both ways."""
    alone = hosts([1] * sum(sizes), **settings)
    names = iter([host.name for host in alone.hosts])
    found = tuple(
        Rack(
            name=f"r{k}",
            hosts=tuple(next(names) for _ in range(n)),
            send_bytes_per_s=uplink,
            receive_bytes_per_s=uplink,
        )
        for k, n in enumerate(sizes)
    )
    return replace(alone, racks=found)


def topologies_of(num_ranks):
    """Every rank a host; all on one; two levels, twice; uneven hosts, one slow; a ring of fast links in a slow mesh."""
    found = {"full": hosts([1] * num_ranks), "one host": hosts([num_ranks])}
    if num_ranks % 2 == 0:
        found["two hosts"] = hosts([num_ranks // 2] * 2, rate=3e6)
    if num_ranks > 1:
        found["racks"] = racks([num_ranks // 2, num_ranks - num_ranks // 2])
    if num_ranks > 2:
        found["uneven"] = Topology(
            hosts=(
                Host(name="slow", send_bytes_per_s=1e6, receive_bytes_per_s=2e6, delay_s=0.01),
                Host(name="large", num_ranks=num_ranks - 1, send_bytes_per_s=1e7, receive_bytes_per_s=1e7),
            )
        )
        others = [(a, b) for a in range(num_ranks) for b in range(num_ranks) if b not in (a, (a + 1) % num_ranks)]
        found["ring"] = hosts(
            [1] * num_ranks,
            links=tuple(Link(source=f"h{a}", target=f"h{b}", bytes_per_s=1e6, latency_s=5e-3) for a, b in others),
        )
    return found


def random_collective(num_ranks, num_blocks, density, seed, *, all_need=True):
    """Blocks that chance gives holders, and one each that nobody, one and everybody holds."""
    rng = random.Random(seed)
    bitmap = [[rng.random() < density for _ in range(num_blocks)] for _ in range(num_ranks)]
    for rank in range(num_ranks):
        bitmap[rank] += [False, rank == seed % num_ranks, True]
    needers = None
    if not all_need:
        needers = [rng.sample(range(num_ranks), rng.randint(0, num_ranks)) for _ in range(num_blocks + 3)]
    sizes = [rng.choice([4, 100, 4096]) for _ in range(num_blocks + 3)]
    return Collective.of(bitmap, sizes, needers)


def names_of(topology):
    return tuple(host.name for host in topology.hosts)


@st.composite
def problems(draw, max_ranks=9):
    """Return (collective, topology, shape, owners), all at random."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda s: sum(s) <= max_ranks))
    rates = st.sampled_from([0.0, 1e6, 1e8])
    topology = Topology(
        hosts=tuple(
            Host(
                name=f"h{k}",
                num_ranks=n,
                send_bytes_per_s=draw(rates),
                receive_bytes_per_s=draw(rates),
                delay_s=draw(st.sampled_from([0.0, 1e-3])),
            )
            for k, n in enumerate(sizes)
        )
    )
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(sizes)))
        groups = [names for names in (names_of(topology)[:cut], names_of(topology)[cut:]) if names]
        rack = [Rack(name=n[0], hosts=n, send_bytes_per_s=draw(rates), receive_bytes_per_s=draw(rates)) for n in groups]
        topology = replace(topology, racks=tuple(rack))
    seed, density = draw(st.integers(0, 999)), draw(st.sampled_from(DENSITIES))
    all_need = draw(st.booleans())
    collective = random_collective(sum(sizes), draw(st.integers(0, 12)), density, seed, all_need=all_need)
    shape = draw(st.sampled_from(shapes(topology)))
    owners = random.Random(seed).choices(range(sum(sizes)), k=collective.num_blocks)
    return collective, topology, shape, owners


def trained(context, start, algorithm, **where):
    """Return the weights of a copy of a model after four steps, each rank with inputs of its own."""
    model = copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator, dtype = torch.Generator().manual_seed(context.rank), next(model.parameters()).dtype
    with pliant.relax(model, optimizer, algorithm, group=context.process_group, **where) as run:
        for _ in range(4):
            run.model(torch.randn(5, 6, generator=generator, dtype=dtype)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class SolvedAtOnce:
    """Search that ends when it begins."""

    def __init__(self, task):
        self.task = task

    def has_ended(self):
        return True

    def result(self):
        return self.task.solve()

    def close(self):
        pass
