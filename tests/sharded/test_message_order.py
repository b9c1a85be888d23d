"""The order of messages in each group, which is that of the program on all ranks, and how many there are."""

import itertools
import threading
from collections import defaultdict

import pytest
from gpt import adamw, build, train
from worlds import run

import pliant
from engine.device_shards import ShardStepRun
from engine.device_steps import CPU
from pliant.comm import ProcessGroupComm

pytestmark = [pytest.mark.processes]

PLANS = {
    "exact": pliant.allreduce(),
    "int4 and int8": pliant.sharded(gradients="int4", weights="bytegrad"),
    "gathered once": pliant.sharded(gradients="int4", weights="bytegrad", regather=False),
    "torch's gathers": pliant.sharded(gradients="onebit"),
}
QUEUES = {"exact": 2, "int4 and int8": 2, "gathered once": 2, "torch's gathers": 1}
"""Groups that messages of shards go through: gathers have one of their own, unless they are torch's."""
STANDING = {"exact": 0, "int4 and int8": 2, "gathered once": 1, "torch's gathers": 1}
"""Groups in which receives stand: those of coded gradients, and of coded weights that are decoded once."""


Messages = list[tuple[int, int, int]]
"""Peer, tag and bytes of each."""


def messages(names: tuple[str, ...], steps: int) -> dict[str, list[tuple[Messages, Messages]]]:
    """Return for each group of a run, in the order in which groups were used first: sends and receives, in order."""
    found = {}
    exchange, expect = ProcessGroupComm.exchange, ProcessGroupComm.expect
    for name in names:
        calls = defaultdict(lambda: ([], []))

        def recorded(self, sends, receives, calls=calls, tag=0, **options):
            own = calls[id(self)]
            own[0].extend((peer, tag, tensor.nbytes) for peer, tensor in sends)
            own[1].extend((peer, tag, tensor.nbytes) for peer, tensor in receives)
            return exchange(self, sends, receives, tag=tag, **options)

        def expected(self, receives, calls=calls, tag=0, **options):
            calls[id(self)][1].extend((peer, tag, tensor.nbytes) for peer, tensor in receives)
            return expect(self, receives, tag=tag, **options)

        ProcessGroupComm.exchange, ProcessGroupComm.expect = recorded, expected
        model = build(width=34)
        optimizer = adamw(model)
        with pliant.relax(model, optimizer, PLANS[name], agreement_every=0, timeout_s=60):
            train(model, optimizer, steps)
        ProcessGroupComm.exchange, ProcessGroupComm.expect = exchange, expect
        found[name] = [*calls.values()]
    return found


@pytest.mark.parametrize(
    ("size", "names"),
    [(2, (*PLANS,)), *(pytest.param(n, (*PLANS,), marks=pytest.mark.extended) for n in (3, 4))],
)
def test_each_message_is_received_in_the_order_in_which_it_was_sent(size, names):
    """In each order of its own, by tag. Receives of coded shards stand for a step that never comes, and no others."""
    results = run(size, messages, names, 3)
    for name in names:
        assert {len(found[name]) for found in results} == {QUEUES[name]}, name
        standing = set()
        for group, a, b in itertools.product(range(QUEUES[name]), range(size), range(size)):
            sent, received = by_tag(results[a][name][group][0], b), by_tag(results[b][name][group][1], a)
            assert sent.keys() == received.keys()
            for tag, sizes in sent.items():
                came, left = received[tag][: len(sizes)], received[tag][len(sizes) :]
                assert (came, left) == (sizes, sizes[: len(left)]), (name, group, a, b)
                if left:
                    assert tag
                    standing.add(group)
        assert len(standing) == STANDING[name], name


def by_tag(sent: Messages, other: int) -> dict[int, list[int]]:
    """Return the bytes of the messages to or from another rank, in order, by their tags."""
    found = defaultdict(list)
    for peer, tag, num_bytes in sent:
        if peer == other:
            found[tag].append(num_bytes)
    return found


def in_one_and_three_steps() -> list[int]:
    """Return the number of messages that a rank sends in one step, and in three."""
    found = [messages(("gathered once",), steps)["gathered once"] for steps in (1, 3)]
    return [sum(len(sends) for sends, _ in groups) for groups in found]


def test_small_parameters_of_a_module_travel_in_one_message():
    """Norms and biases of a block go with its matrices: a message for each block and collective, not for each of 26."""
    one, three = run(2, in_one_and_three_steps)[0]
    num_groups, of_each = 3, 2  # two blocks and the root; a reduce-scatter and a gather
    assert three - one == 2 * num_groups * of_each


@pytest.mark.parametrize("name", ["int4 and int8", "gathered once"])
def test_weights_of_backward_do_not_wait_behind_gradients(name):
    """Gradients are held up until backward has its weights, which it would never get behind them."""

    def body(place):
        steps = ShardStepRun(place, PLANS[name], CPU)
        steps.gathered()
        there, came = threading.Event(), []
        gradients = steps.thread.submit(lambda: came.append(there.wait(30)))
        steps.gathered()
        there.set()
        gradients.wait()
        steps.close()
        return came

    assert pliant.run_world(2, body) == [[True], [True]]
