"""Commands by which a link gets from one shape to the next, on a kernel with netem and on one without."""

from dataclasses import replace

import pytest

from pliant.network import shaped_link
from pliant.network.host_shape import HostShape, Incoming, Outgoing
from pliant.network.namespaces import CannotEmulateError
from pliant.network.shaped_link import ShapedLink
from pliant.network.tcp_settings import TcpSettings

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
