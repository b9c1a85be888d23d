"""Averages of two vectors: the mean stays, whatever happens meanwhile, and codecs contract as CHOCO-SGD says."""

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st

from pliant.codecs import MinMax8, Qsgd, Sign, TopK
from pliant.collectives.pair_average import CodedPairAverage, PairAverage

NUMEL = 65
CODECS = {
    "minmax8": (MinMax8(), 1.0),
    "qsgd": (Qsgd(bits=4), 0.5),
    "sign": (Sign(), 0.3),
    "topk": (TopK(ratio=0.2), 0.3),
}
RULES = ["exact", *CODECS]


def rules_of(size, kind):
    """Return a rule for each rank."""
    if kind == "exact":
        return [PairAverage(NUMEL) for _ in range(size)]
    codec, gamma = CODECS[kind]
    peers = [[j for j in range(size) if j != i] for i in range(size)]
    own, others = ([{j: torch.zeros(NUMEL) for j in near} for near in peers] for _ in range(2))
    return [CodedPairAverage(codec, NUMEL, gamma=gamma, own=own[i], others=others[i]) for i in range(size)]


class World:
    """Vectors of some ranks, each moved by corrections alone."""

    def __init__(self, size, kind, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, NUMEL, generator=generator)
        self.rules, self.seeds = rules_of(size, kind), itertools.count()

    def exchange(self, a, b, *, meanwhile=lambda: None):
        message = torch.empty(self.rules[a].num_bytes, dtype=torch.uint8)
        self.rules[a].ask(b, self.x[a], message, next(self.seeds))
        meanwhile()
        down = self.rules[b].answer(a, self.x[b], message, next(self.seeds)).clone()
        self.x[b] += down
        meanwhile()
        up = self.rules[a].take(b, message)
        assert torch.equal(up, -down), "the two corrections differ"
        self.x[a] += up


def rounding(world, exchanges):
    return 2 * exchanges * torch.finfo(torch.float32).eps * float(world.x.abs().max() + 1)


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from(RULES),
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda p: p[0] != p[1]), max_size=30),
)
def test_any_sequence_of_exchanges_keeps_the_mean(kind, pairs):
    world = World(4, kind)
    before = world.x.double().mean(0)
    for a, b in pairs:
        world.exchange(a, b)
    torch.testing.assert_close(world.x.double().mean(0), before, rtol=0, atol=rounding(world, len(pairs) + 1))


@pytest.mark.parametrize("kind", RULES)
def test_exchanges_inside_exchanges_keep_the_mean_and_bring_ranks_together(kind):
    """While ranks 0 and 1 exchange, each of them exchanges with others, twice."""
    world = World(4, kind)
    before, apart = world.x.double().mean(0), world.x.var(0, correction=0).sum()

    def others():
        world.exchange(2, 0)
        world.exchange(1, 3)

    for _ in range(60):
        world.exchange(0, 1, meanwhile=others)
    torch.testing.assert_close(world.x.double().mean(0), before, rtol=0, atol=rounding(world, 400))
    assert world.x.var(0, correction=0).sum() < 0.01 * apart


def test_an_exact_exchange_is_the_mean_of_both():
    world = World(2, "exact")
    wanted = world.x.double().mean(0)
    world.exchange(0, 1)
    torch.testing.assert_close(world.x.double(), wanted.expand(2, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", CODECS)
def test_a_coded_exchange_equals_choco_on_two_nodes(kind):
    """Step by step, against Algorithm 2 of CHOCO-SGD with W = 1/2 in float64, for which only what is coded is given."""
    world = World(2, kind)
    codec, gamma = CODECS[kind]
    replicas = torch.zeros(2, NUMEL, dtype=torch.float64)
    for turn in range(8):
        x = world.x.double()
        world.exchange(0, 1)
        for rank in range(2):
            payload = torch.empty(codec.nbytes(NUMEL), dtype=torch.uint8)
            codec.encode((x[rank] - replicas[rank]).float(), payload, 2 * turn + rank)
            decoded = torch.zeros(NUMEL)
            codec.decode(payload, decoded)
            replicas[rank] += decoded
        wanted = x + gamma / 2 * (replicas.flip(0) - replicas)
        torch.testing.assert_close(world.x.double(), wanted, rtol=0, atol=2e-5)
        held = (world.rules[1]._others[0], world.rules[1]._own[0])
        replicas = torch.stack([each.double() for each in held])  # from equal states on
        assert torch.equal(world.rules[0]._own[1], held[0])
        assert torch.equal(world.rules[0]._others[1], held[1])


@pytest.mark.parametrize("kind", CODECS)
def test_coded_exchanges_contract(kind):
    """What is coded is a difference, so that nothing is lost for good, however coarse the codec."""
    world = World(4, kind)
    apart = [world.x.var(0, correction=0).sum()]
    pairs = list(itertools.permutations(range(4), 2))
    for _ in range(40):
        for a, b in pairs:
            world.exchange(a, b)
        apart.append(world.x.var(0, correction=0).sum())
    assert apart[20] < 0.5 * apart[0]
    assert apart[40] < 0.5 * apart[20] or apart[40] < 1e-8
