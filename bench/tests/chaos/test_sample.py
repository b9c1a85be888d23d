"""A few trials of benchmarks/chaos: real ranks, one attack each."""

import signal

import pytest
from chaos.trials import Trial

from pliant.network import CannotEmulateError

pytestmark = [pytest.mark.processes, pytest.mark.netns]

_SLACK = 2.0  # two cores, and other tests before and after


def trial(attack, algorithm, *victims, **settings):
    plain = {"where": "hosts", "rank_hosts_store": False, "ranks": 3, "elastic": False, "moment": 3, "part": 0.5}
    return Trial(seed=0, number=0, attack=attack, algorithm=algorithm, victims=victims, **(plain | settings))


@pytest.fixture(scope="module")
def hosts():
    """Emulated hosts for all of these; skip where this machine cannot emulate any."""
    from chaos.hosts import Hosts

    try:
        with Hosts(3) as made:
            yield made
    except CannotEmulateError as error:
        pytest.skip(f"this machine cannot emulate hosts: {error}")


@pytest.mark.parametrize(
    ("attacked", "outcome"),
    [
        (trial("kill", "onebit", 1, rank_hosts_store=True), "ended right"),
        (trial("packet_loss", "topk", ranks=2, share=0.03), "went on right"),
        pytest.param(
            trial("disk_full", "local_sgd", ranks=2, where="loopback", how="dcp", share=0.4),
            "went on right",
            marks=pytest.mark.extended,
        ),
    ],
    ids=lambda value: value.attack if isinstance(value, Trial) else "",
)
def test_an_attacked_training_ends_or_goes_on_as_promised(hosts, attacked, outcome):
    from chaos.strike import carry_out

    line = carry_out(attacked, hosts, {}, _SLACK)
    assert line["outcome"] == outcome, line
    if attacked.attack == "disk_full":
        assert line["checkpoint_not_saved"], line


def test_a_trial_that_is_broken_off_leaves_no_process_and_no_rule(hosts, monkeypatch, request):
    from chaos import strike
    from chaos.world import World

    worlds = []

    def broken_off(world, limit_s):
        worlds.append(world)
        assert world.await_begun(limit_s)
        world.hosts.cut([0], [1, 2])
        world.stop(1)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(strike._ATTACKS, "cut_host", broken_off)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        strike.carry_out(trial("cut_host", "allreduce", 0), hosts, {}, _SLACK)
    assert isinstance(worlds[0], World)
    assert None not in worlds[0].wait(range(3), 0.0).values()
    assert all(hosts.rules(k) == [] for k in range(3))
