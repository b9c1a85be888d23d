"""A stranger who reads and writes the store in which ranks agree: it changes nothing but the log."""

import logging

import pytest
from test_membership import SILENT_S, plain

from pliant.comm.membership import MembershipError
from pliant.comm.signed_records import Records, Seal

SIZE = 3
SECRET = b"sixteen bytes and more"
KINDS = ("rank", "over", "here", "members", "fingerprint", "concluded", "state", "met")


def seal(run="this run", secret=SECRET):
    return Seal(secret, run)


def kind_of(key):
    return key.split()[0]


def run_world(**settings):
    """Return a world of three ranks that have lost and regained one, so that each kind of record has stood there."""
    world = plain()
    settings = {"seal": seal(), "started": 10, **settings}
    for rank in range(SIZE):
        world.start(rank, size=SIZE, **settings)
        world.ranks[rank].agree_on("plan 1")
    world.settle()
    world.history = [dict(world.data)]
    world.dead.add(2)
    world.ask(0)
    world.settle()
    world.ranks[0].words.vouch("weights", "12ab")
    world.ranks[0].words.note_met()
    world.history.append(dict(world.data))
    world.start(2, size=SIZE, **settings)
    world.settle()
    world.ranks[0].words.vouch("weights", "34cd")
    world.ranks[0].words.note_met()
    world.history.append(dict(world.data))
    return world


def members(world):
    return [tuple(m.rank for m in it.epoch.members) for k, it in enumerate(world.ranks) if k not in world.dead]


@pytest.fixture(scope="module")
def other_run():
    """The store of another run with the same secret, which went through the same."""
    return run_world(seal=seal("another run")).data


@pytest.fixture(scope="module")
def same_name():
    """The store of an earlier run with the same secret, and with the same name."""
    return run_world(started=1).data


def reached(world):
    """All keys that ranks may look at now or in the next epochs."""
    number = world.ranks[0].number
    found = ["fingerprint", "concluded", *(f"rank {rank}" for rank in range(SIZE))]
    for epoch in range(number + 3):
        found += [f"over {epoch}", f"members {epoch}", f"state {epoch} weights"]
        found += [f"{kind} {epoch} {it.life}" for it in world.ranks for kind in ("here", "met")]
    return found


def alike(world, key, kind):
    """Return the latest record of a kind that stands at another key."""
    others = [k for k in world.data if kind_of(k) == kind and k != key]
    return world.data[others[-1]] if others else b""


def with_a_bit_flipped(raw):
    return raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:]


JUNK = {
    "a word": lambda world, key: b"yes",
    "nothing": lambda world, key: b"",
    "not UTF-8": lambda world, key: b"\xff\xfe\x00\x80",
    "JSON of another kind": lambda world, key: b'{"hello": 1}',
    "nested": lambda world, key: b"[" * 100_000,
    "huge": lambda world, key: bytes(1 << 21),
    "huge counts": lambda world, key: b'{"pliant":"Life","format":1,"count":' + b"9" * 5000 + b"}",
    "cut off": lambda world, key: world.data.get(key, b"0" * 80)[:70],
    "one bit": lambda world, key: with_a_bit_flipped(world.data.get(key, b"?" * 80)),
    "unsigned": lambda world, key: world.data.get(key, b" {}").partition(b" ")[2],
    "signed with another secret": lambda world, key: resigned(world, key, seal(secret=b"another secret, as long")),
    "signed without one": lambda world, key: resigned(world, key, seal(secret=b"")),
    "of another rank or epoch": lambda world, key: alike(world, key, kind_of(key)),
    "of another kind": lambda world, key: alike(world, key, "rank" if kind_of(key) != "rank" else "over"),
}


def resigned(world, key, other):
    body = world.data.get(key, b" {}").partition(b" ")[2]
    return other.sign(key, body)


def goes_on(world, caplog, write):
    """A stranger writes: the members stay as they are, and a loss and a return go as without him."""
    caplog.set_level(logging.WARNING, logger="pliant")
    write()
    before = [it.epoch for k, it in enumerate(world.ranks) if k not in world.dead]
    assert not any(it.is_over() for k, it in enumerate(world.ranks) if k not in world.dead)
    world.settle()
    assert [it.epoch for k, it in enumerate(world.ranks) if k not in world.dead] == before
    world.dead.add(1)
    write()
    world.ask(0)
    world.settle()
    assert members(world) == [(0, 2), (0, 2)]
    write()
    world.start(1, size=SIZE, seal=seal(), started=10**18)
    world.settle()
    assert members(world) == [(0, 2, 1)] * 3
    assert "is ignored" in caplog.text
    said = [record.getMessage().split(" in the store")[0] for record in caplog.records]
    assert len(said) <= 4 * len(set(said))  # once for each reader of a key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("junk", JUNK)
def test_junk_changes_nothing_but_the_log(junk, kind, caplog):
    world = run_world()

    def write():
        keys = [key for key in reached(world) if kind_of(key) == kind]
        world.data.update({key: JUNK[junk](world, key) for key in keys})

    if kind == "met":  # read when a rank leaves
        assert [m.rank for m in world.ranks[1].words.not_met()] == [1, 2]
        write()
        assert [m.rank for m in world.ranks[1].words.not_met()] == [0, 1, 2]
        assert "is ignored" in caplog.text
    elif kind in ("fingerprint", "state"):  # read when a rank comes, and after it has come
        write()
        assert world.ranks[1].words.vouched("weights") == (None if kind == "state" else "34cd")
        assert world.ranks[0].agree_on("plan 1" if kind == "fingerprint" else "plan 2") == "plan 1"
        assert "is ignored" in caplog.text or (kind == "fingerprint" and not JUNK[junk](world, kind))
    else:
        goes_on(world, caplog, write)


@pytest.mark.parametrize("past", [0, 1])
def test_what_was_true_once_is_not_believed_again(past, caplog):
    """All of the store is put back to what it was, but for what nobody of that time had said yet."""
    world = run_world()
    goes_on(world, caplog, lambda: world.data.update(world.history[past]))


def test_signs_of_life_are_not_believed_again(caplog):
    """A stranger repeats the signs of life of a rank that has died: it is given up all the same."""
    world = run_world()
    recorded = []
    for _ in range(50):
        world.ranks[1].heartbeat()
        recorded.append(world.data["rank 1"])
    world.turn(0), world.turn(2)
    world.dead.add(1)
    world.ask(0), world.ask(3)
    begin_s = world.now_s
    world.ranks[0].poll(world.now_s), world.ranks[3].poll(world.now_s)
    while world.ranks[0].waits:
        world.data["rank 1"] = recorded[int(world.now_s * 2) % 50]
        world.now_s += 0.5
        world.turn(0), world.turn(3)
        assert world.now_s - begin_s <= SILENT_S + 1
    assert [m.rank for m in world.ranks[0].epoch.members] == [0, 2]


@pytest.mark.parametrize("source", ["other_run", "same_name"])
def test_what_another_run_has_said_is_not_believed(source, request, caplog):
    world, theirs = run_world(), request.getfixturevalue(source)

    def write():
        number = world.ranks[0].number
        for key, value in theirs.items():
            if kind_of(key) != "fingerprint":
                world.data[key] = value
        for kind in ("over", "members"):
            last = max((k for k in theirs if kind_of(k) == kind), key=lambda k: int(k.split()[1]))
            world.data[f"{kind} {number}"] = theirs.get(f"{kind} {number}", theirs[last])

    goes_on(world, caplog, write)


def test_a_store_full_of_another_run_does_not_keep_this_one_from_starting(other_run, caplog):
    caplog.set_level(logging.WARNING, logger="pliant")
    world = plain()
    world.data.update(other_run)
    for rank in range(SIZE):
        world.start(rank, size=SIZE, seal=seal())
        assert world.ranks[rank].agree_on("plan 2") == "plan 2"
    world.settle()
    assert members(world) == [(0, 1, 2)] * SIZE
    assert "'members 0' in the store of this elastic run is ignored" in caplog.text


def test_ranks_with_another_secret_are_told_what_was_ignored():
    world = plain()
    world.start(0, size=2, seal=seal()), world.start(1, size=2, seal=seal(secret=b"mistyped, and long enough"))
    with pytest.raises(MembershipError, match=r"rank 1 had not come .*'rank 1' was ignored.*give all the same secret"):
        world.settle()


def test_a_process_whose_place_a_later_one_has_says_so():
    world = run_world()
    world.start(1, size=SIZE, seal=seal())
    with pytest.raises(MembershipError, match="rank 1 was started again, and the later process has its place"):
        world.settle()


def test_a_signature_is_of_its_place():
    here = seal()
    raw = here.sign("over 3", b"body")
    assert here.body("over 3", raw) == b"body"
    for place, other in (("over 4", raw), ("over 3", raw[:-1]), ("over 3", b"0" + raw[1:]), ("over 3", b""), ("", raw)):
        assert here.body(place, other) is None
    # Neither can a byte move from the place to the body.
    assert here.body("over", here.sign("over ", b"3body").replace(b" 3body", b"  3body")) is None
    assert Seal(SECRET, "a").sign("k", b"") != Seal(SECRET, "b").sign("k", b"")


def test_junk_is_logged_once_for_each_place(caplog):
    world = plain()
    records = Records(world, seal())
    world.data["over 1"] = world.data["over 2"] = b"junk"
    for _ in range(5):
        for key in ("over 1", "over 2"):
            assert records.get(object, key) is None
            assert records.beside(world).get(object, key) is None
    assert len(caplog.records) == 2
