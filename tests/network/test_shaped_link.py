"""Commands by which a link gets from one shape to the next, on a kernel with netem and on one without."""

from dataclasses import replace

import pytest

from pliant.network import shaped_link
from pliant.network.host_shape import HostShape, Incoming, Outgoing, host_shapes
from pliant.network.namespaces import CannotEmulateError
from pliant.network.rack_switch import RackSwitch, shape_uplinks
from pliant.network.shaped_link import ShapedLink
from pliant.network.tcp_settings import TcpSettings
from pliant.spec import Host, Rack, Topology

PLAIN = HostShape(send_bytes_per_s=0.0, receive_bytes_per_s=0.0, delay_s=0.0, round_trip_s=0.0)
LATE = replace(PLAIN, delay_s=0.01)
LIMITED = replace(PLAIN, send_bytes_per_s=1e6, receive_bytes_per_s=1e6)
BOTH = replace(LIMITED, delay_s=0.01)
PAIRS = replace(
    BOTH,
    outgoing=(Outgoing(target=1, bytes_per_s=1e5, round_trip_s=0.0),),
    incoming=(Incoming(source=1, delay_s=0.0, jitter_s=0.0, loss=0.0),),
)


class Machine:
    """A namespace that keeps the qdiscs of its devices, as the kernel would, and runs nothing else."""

    pid = 1

    def __init__(self, *, netem: bool) -> None:
        self.netem = netem
        self.there: dict[str, list[str]] = {}
        """Device -> kinds of its qdiscs, the root first."""

    def run(self, *argv: str, text: str = "") -> str:
        lines = [line.split() for line in text.splitlines()] if argv[:2] == ("tc", "-batch") else []
        for words in [list(argv[1:])] if argv[0] == "tc" and not lines else lines:
            if words[0] == "qdisc":
                self._qdisc(words[1], words[3], "root" in words, words)
        return ""

    def _qdisc(self, verb: str, device: str, root: bool, words: list[str]) -> None:
        kinds = self.there.get(device, [])
        if verb == "del":
            assert len(kinds) > (0 if root else 1), f"nothing to delete: {words}"
            self.there[device] = [] if root else kinds[:1]
            return
        kind = next(word for word in words if word in ("tbf", "htb", "netem", "bfifo"))
        if kind == "netem" and not self.netem:
            raise CannotEmulateError("Specified qdisc kind is unknown.")
        if root:
            assert verb == "replace" or not kinds, f"there is one already: {words}"
            self.there[device] = kinds if kinds[:1] == [kind] else [kind]
        else:
            assert kinds, f"nothing to be behind of: {words}"
            self.there[device] = [*kinds[:1], kind]


class Relay:
    """What a delay relay was told."""

    def __init__(self, host, *, seed):
        self.told = []

    def shape(self, delay_s, incoming=()):
        self.told.append((delay_s, len(incoming)))


def plug(monkeypatch, *, netem):
    monkeypatch.setattr(shaped_link, "DelayRelay", Relay)
    host, bridge = Machine(netem=netem), Machine(netem=netem)
    link = ShapedLink(host, bridge, 0, "10.77.0.1", switch="br0", burst=128_000, tcp=TcpSettings())
    return link, host, bridge


SHAPES = {"plain": PLAIN, "late": LATE, "limited": LIMITED, "both": BOTH, "pairs": PAIRS}
SENDING = {"plain": [], "late": [], "limited": ["tbf"], "both": ["tbf"], "pairs": ["htb", "bfifo"]}


@pytest.mark.parametrize("netem", [True, False])
@pytest.mark.parametrize("first", SHAPES)
@pytest.mark.parametrize("then", SHAPES)
def test_from_any_shape_a_link_gets_to_any_other(monkeypatch, netem, first, then):
    link, host, bridge = plug(monkeypatch, netem=netem)
    relayed = False
    for name in (first, then, then, first):
        shape = SHAPES[name]
        link.shape(shape)
        relayed = relayed or bool(shape.delay_s and (shape.incoming or not netem))
        assert host.there.get("eth0", []) == SENDING[name]
        held = ["netem"] if shape.delay_s and not relayed else []
        assert bridge.there.get("port0", []) == held + ["tbf"] * bool(shape.receive_bytes_per_s)
        assert (link._relay is not None) == relayed
        if relayed:
            assert link._relay.told[-1] == (shape.delay_s, len(shape.incoming))


def test_an_uplink_gets_other_rates_without_losing_what_waits():
    """Its queues hold a round trip of its hosts, as those of hosts do; nothing is deleted but what has no rate left."""
    told = []

    class Bridge:
        def run(self, *argv, text=""):
            told.append(" ".join(argv))

    def shaped(rate, delay_s):
        told.clear()
        hosts = tuple(Host(name=name, delay_s=delay_s) for name in "ab")
        racks = tuple(Rack(name=name, hosts=(name,), send_bytes_per_s=rate, receive_bytes_per_s=1e7) for name in "ab")
        topology = Topology(hosts=hosts, racks=racks)
        shape_uplinks(uplinks, topology, host_shapes(topology))
        return [line for line in told if "0 root" in line]

    uplinks = [RackSwitch(Bridge(), k, 128_000) for k in range(2)]
    up, down = shaped(1e7, 0.0)
    assert up == "tc qdisc replace dev up0 root handle 2: tbf rate 80000000bit burst 128000b limit 500000b"
    assert down == up.replace("up0", "down0")
    assert shaped(2e7, 0.0)[0] == up.replace("80000000", "160000000").replace("500000", "1000000")
    assert shaped(1e7, 0.1)[0] == up.replace("500000", "2000000")
    assert shaped(0.0, 0.0) == ["tc qdisc del dev up0 root", down]
    assert shaped(0.0, 0.0) == [down]


@pytest.mark.parametrize(("buffer_bytes", "receive"), [(32_000_000, "4096 131072 64000000"), (1_000_000, "")])
def test_who_receives_has_room_for_what_is_sent(buffer_bytes, receive):
    """A receive buffer that is too small for the window of a send buffer would be the limit in its place."""
    written = {}

    class Netns:
        def run(self, *argv, text=""):
            if argv[0] == "tee":
                written[argv[1].rpartition("/")[2]] = text
            return "4096\t131072\t6291456\n"

    TcpSettings(send_buffer_bytes=buffer_bytes).apply(Netns(), "10.77.0.1")
    assert written["tcp_wmem"] == f"4096 16384 {buffer_bytes}"
    assert written.get("tcp_rmem", "") == receive
