"""Mistakes: a sentence on every rank, and nobody hangs."""

import pytest
import torch

from pliant.comm import CommError, run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import Table, TableLayout
from recsys.embedding.whole import inputs_of, plan_of

A = Table(name="a", num_rows=10, dim=4)
B = Table(name="b", num_rows=6, dim=4, weighted=True)
ROWS = TableLayout(kind="rows")
IDS, OFFSETS = torch.tensor([1, 2, 3]), torch.tensor([0, 1])
GOOD = [(IDS, OFFSETS), (IDS, OFFSETS, torch.ones(3))]


class Keyed:
    """As torchrec.KeyedJaggedTensor: a bag of one id for each key, unless lengths say otherwise."""

    def __init__(self, keys, *, weights=None, lengths=(1, 1), inverse=None):
        self.keys, self.values, self.lengths = lambda: keys, lambda: IDS[:2], lambda: torch.tensor(lengths)
        self.weights_or_none, self.inverse_indices_or_none = lambda: weights, lambda: inverse


BAD = {
    "weights of all keys where a table has none": (
        Keyed(["b", "a"], weights=torch.ones(2)),
        ValueError,
        "'a' got weights, but it has none; say `weighted=True`",
    ),
    "a key of another name": (
        Keyed(["a", "c"]),
        ValueError,
        r"have keys \['a', 'c'\], but the features are \['a', 'b'\]",
    ),
    "a key twice": (Keyed(["a", "b", "a"]), ValueError, "name each once"),
    "a key too few": ({"a": GOOD[0]}, ValueError, r"have keys \['a'\]"),
    "lengths for other bags": (Keyed(["a", "b"], lengths=(1, 1, 0)), ValueError, "3 lengths for 2 keys"),
    "lengths for other values": (Keyed(["a", "b"], lengths=(1, 2)), ValueError, "2 values where lengths add up to 3"),
    "inverse indices": (Keyed(["a", "b"], inverse=(["a"], IDS)), ValueError, "one bag for each sample"),
    "what is no input at all": (None, (TypeError, ValueError), "not iterable"),
    "an id too large": (
        [(torch.tensor([1, 2, 10]), OFFSETS), GOOD[1]],
        IndexError,
        "table 'a' got id 10 at position 2, but has rows 0 to 9; give it more rows, or map ids to rows first",
    ),
    "an id below zero": (
        [GOOD[0], (torch.tensor([-1, 2, 3]), OFFSETS)],
        IndexError,
        "table 'b' got id -1 at position 0",
    ),
    "a table too few": ([GOOD[0]], ValueError, "there are 2 tables, but inputs for 1"),
    "offsets not sorted": ([(IDS, torch.tensor([0, 2, 1])), GOOD[1]], ValueError, "'a' are not sorted.* after bag 1"),
    "offsets too large": ([(IDS, torch.tensor([0, 4])), GOOD[1]], ValueError, "beyond its 3 ids"),
    "offsets that begin late": ([(IDS, torch.tensor([1, 2])), GOOD[1]], ValueError, "begin with 1; they begin with 0"),
    "ids without bags": ([(IDS, torch.tensor([], dtype=torch.int64)), GOOD[1]], ValueError, "has 3 ids, but no bags"),
    "weights where none belong": (
        [(IDS, OFFSETS, torch.ones(3)), GOOD[1]],
        ValueError,
        "'a' got weights, but it has none",
    ),
    "weights of another shape": (
        [GOOD[0], (IDS, OFFSETS, torch.ones(2))],
        ValueError,
        "floats of the shape of its ids",
    ),
    "weights that are not finite": (
        [GOOD[0], (IDS, OFFSETS, torch.tensor([1, 2, torch.nan]))],
        ValueError,
        "NaN or an Inf",
    ),
    "weights that learn": ([GOOD[0], (IDS, OFFSETS, torch.ones(3, requires_grad=True))], ValueError, "detach"),
    "floats": ([(IDS.float(), OFFSETS), GOOD[1]], TypeError, "ids of table 'a' are torch.float32"),
    "ids without offsets": ([IDS, GOOD[1]], ValueError, r"give ids \(n,\) and offsets"),
}


def bags_of(place, layout=ROWS, tables=(A, B), **settings):
    return ShardedEmbeddingBag(plan_of(layout, place.size, tables=tables), place.comm, lr=0.1, **settings)


@pytest.mark.parametrize("what", list(BAD))
def test_a_mistake_of_one_rank_is_raised_on_all(what):
    given, kind, text = BAD[what]

    def be(place):
        bags = bags_of(place)
        bags(GOOD)
        with pytest.raises(kind, match=("" if place.rank == 1 else "rank 1: .*") + text):
            bags(given if place.rank == 1 else GOOD)
        out = bags(GOOD)  # and all is well again
        sum(x.sum() for x in out).backward()
        bags.step()

    run_world(3, be)


def test_a_mistake_in_a_batch_asked_for_ahead_is_raised_on_all():
    def be(place):
        bags = bags_of(place)
        bags(GOOD)
        given = BAD["an id too large"][0] if place.rank == 0 else GOOD
        bags.prefetch(given)
        with pytest.raises(IndexError, match="table 'a' got id 10"):
            bags(given)
        bags.close()

    run_world(2, be)


def test_one_rank_alone():
    with pytest.raises(IndexError, match="table 'a' got id 10"):
        run_world(1, lambda place: bags_of(place)(BAD["an id too large"][0]))


def test_a_rank_that_fails_frees_the_others():
    def be(place):
        bags = bags_of(place)
        bags(GOOD)
        if place.rank == 2:
            raise KeyError("of its own")
        with pytest.raises(CommError):
            [bags(GOOD) for _ in range(3)]
        return True

    with pytest.raises(KeyError, match="of its own"):
        run_world(3, be, timeout_s=5.0)


def raised(place, make, kind, text):
    with pytest.raises(kind, match=text):
        make(place)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda p: ShardedEmbeddingBag(plan_of(ROWS, 5), p.comm, lr=0.1), ValueError, "plan is for 5 ranks"),
        (
            lambda p: bags_of(p, layout=TableLayout(kind="rows", num_hot=p.rank)),
            ValueError,
            "plan of ranks 1 differs",
        ),
        (
            lambda p: ShardedEmbeddingBag(
                plan_of(ROWS, 2, tables=(A, B), hierarchical=p.rank == 0), p.comm, lr=0.1, hosts=[[0], [1]]
            ),
            ValueError,
            "plan of ranks 1 differs",
        ),
        (
            lambda p: bags_of(p, layout=TableLayout(kind="rows", num_hot=2), hot={"a": [p.rank]}),
            ValueError,
            "the set of hot rows of ranks 1 differs",
        ),
        (
            lambda p: bags_of(p, layout=TableLayout(kind="rows", num_hot=2), hot={"a": [1, 2, 3]}),
            ValueError,
            "room for 2",
        ),
        (
            lambda p: bags_of(p, layout=TableLayout(kind="rows", num_hot=2), hot={"a": [10]}),
            IndexError,
            "it has 0 to 9",
        ),
        (lambda p: bags_of(p, hot={"c": [1]}), ValueError, "no table 'c'"),
        (lambda p: bags_of(p, weights=[torch.zeros(3, 3)]), ValueError, "2 tables, but 1 tensors"),
        (lambda p: bags_of(p, weights=[torch.zeros(3, 3)] * 2), ValueError, "10 rows of 4"),
        (lambda p: bags_of(p, betas=(1.0, 0.9)), ValueError, "betas"),
        (lambda p: bags_of(p).load_state_dict({}), ValueError, "also rank0"),
        (lambda p: bags_of(p).full_weights("x"), ValueError, "no table 'x'"),
    ],
)
def test_refusals(make, kind, text):
    run_world(2, lambda place: raised(place, make, kind, text))


def test_calls_in_the_wrong_order():
    def be(place):
        bags = bags_of(place, layout=TableLayout(kind="rows", num_hot=1))
        batch, other = list(GOOD), list(GOOD)
        bags.prefetch(batch)
        with pytest.raises(ValueError, match="called twice"):
            bags.prefetch(other)
        with pytest.raises(ValueError, match="another batch"):
            bags(other)
        out = bags(batch)
        sum(x.sum() for x in out).backward()
        for call in (lambda: bags.set_hot({}), bags.state_dict, bags.full_weights):
            with pytest.raises(ValueError, match="call step"):
                call()
        bags.step()
        bags.close()

    run_world(2, be)


def test_a_state_that_does_not_fit():
    def be(place):
        state = bags_of(place).state_dict()
        with pytest.raises(ValueError, match="it lacks rank1" if place.rank == 0 else "also rank0"):
            bags_of(place).load_state_dict(state)
        other = ShardedEmbeddingBag(plan_of(ROWS, 2, tables=(A, B), optimizer="adam"), place.comm, lr=0.1)
        counters = next(iter(state.values()))
        with pytest.raises(ValueError, match="another optimizer"):
            other.load_state_dict({"rank0": counters, "rank1": counters})
        with pytest.raises(ValueError, match="lacks rows of"):
            bags_of(place).load_state_dict({"rank0": counters, "rank1": counters})

    run_world(2, be)


@pytest.mark.parametrize(
    "take",
    [
        lambda bags, state, bad: bags.load_state_dict({} if bad else state),
        lambda bags, _, bad: bags.set_hot({"a": "x" if bad else [1]}),
    ],
)
def test_what_one_rank_alone_cannot_take_is_refused_on_all_and_changes_nothing(take):
    layout = TableLayout(kind="rows", num_hot=1)
    (state,) = run_world(1, lambda place: bags_of(place, layout=layout, seed=2**64 - 1).state_dict())

    def be(place):
        bags = bags_of(place, layout=layout, hot={"a": [3]})
        before = bags.full_weights()
        kind, text = (ValueError, "of ranks 1 differs") if place.rank == 0 else (Exception, "also rank0|invalid data")
        with pytest.raises(kind, match=text):
            take(bags, state, place.rank == 1)
        assert all(map(torch.equal, before, bags.full_weights()))
        assert bags.hot["a"].tolist() == [3]

    run_world(2, be, timeout_s=10.0)


def test_gradients_of_rows_that_have_moved_are_refused():
    def be(place):
        bags = bags_of(place, layout=TableLayout(kind="rows", num_hot=1), hot={"a": [1]})
        out = bags(GOOD)
        bags.set_hot({"a": [2]})
        with pytest.raises(ValueError, match=r"before set_hot\(\)"):
            sum(x.sum() for x in out).backward()

    run_world(2, be)


def test_gradients_of_an_earlier_forward_after_prefetch():
    def be(place):
        bags = bags_of(place)
        batch = inputs_of((A, B), place.rank, 0)
        old = bags(batch)
        bags.step()
        bags.prefetch(batch)
        with pytest.raises(ValueError, match="of an earlier step"):
            sum(x.sum() for x in old).backward()
        bags.close()

    run_world(2, be)


def test_where_nothing_is_exchanged_only_the_rank_itself_hears_of_it():
    def be(place):
        bags = bags_of(place, layout=TableLayout(kind="replicated"))
        if place.rank:
            assert len(bags(GOOD)) == 2
        else:
            with pytest.raises(IndexError, match="table 'a' got id 10"):
                bags(BAD["an id too large"][0])

    run_world(2, be)


def test_too_many_rows_for_a_slot():
    def huge(place):
        ShardedEmbeddingBag(plan_of(ROWS, 1, tables=(Table(name="a", num_rows=2**32, dim=1),)), place.comm, lr=0.1)

    with pytest.raises(ValueError, match="slots travel as int32"):
        run_world(1, huge)
