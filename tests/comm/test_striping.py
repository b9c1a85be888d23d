"""Messages in slices over several connections: the same results to the bit, in the same order, and the same errors."""

import threading

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

import pliant
from pliant.codecs import codec_from
from pliant.collectives.compressed import CompressedAverage
from pliant.comm import HierarchicalComm, RecordedComm, hierarchical_comm, striping
from pliant.comm.base import duplicate
from pliant.comm.striping import Striping, slices
from pliant.spec import CodecSpec

CONNECTIONS = 4
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(striping, "SLICE_BYTES", 64)
    monkeypatch.setattr(striping, "SMALL_BYTES", 32)


def numbers(rank, numel, dtype=torch.float32):
    drawn = torch.randn(numel, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    return (1e3 * drawn).to(dtype)


def all_collectives(comm, numel, dtype):
    found = {}
    for op in ("sum", "min", "max"):
        found[op] = numbers(comm.rank, numel, dtype)
        comm.all_reduce(found[op], op).wait()
    found["gather"] = torch.empty(comm.size * numel, dtype=dtype)
    comm.all_gather(found["gather"], numbers(comm.rank, numel, dtype)).wait()
    found["scatter"] = torch.empty(numel, dtype=dtype)
    comm.reduce_scatter(found["scatter"], numbers(comm.rank, comm.size * numel, dtype)).wait()
    found["all"] = torch.empty(comm.size * numel, dtype=dtype)
    comm.all_to_all(found["all"], numbers(comm.rank, comm.size * numel, dtype)).wait()
    found["broadcast"] = numbers(comm.rank, numel, dtype)
    comm.broadcast(found["broadcast"], comm.size - 1).wait()
    found["reduce"] = numbers(comm.rank, numel, dtype)
    comm.reduce(found["reduce"], 0).wait()
    if comm.rank > 0:
        del found["reduce"]  # is left in an undefined state
    following, previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    found["ring"] = torch.empty(numel, dtype=dtype)
    comm.exchange([(following, numbers(comm.rank, numel, dtype))], [(previous, found["ring"])]).wait()
    return {name: x.view(torch.uint8) for name, x in found.items()}


@settings(max_examples=12)
@given(
    size=st.integers(2, 5),
    numel=st.sampled_from([1, 16, 17, 100, 1000, 4099]),
    dtype=st.sampled_from([*FLOATS, torch.int64, torch.uint8]),
)
def test_collectives_are_the_same_to_the_bit_over_several_connections(size, numel, dtype):
    def body(place):
        several = place.comm.split([list(range(size))], CONNECTIONS)
        one, more = (all_collectives(comm, numel, dtype) for comm in (place.comm, several))
        assert several.connections == CONNECTIONS
        several.close()
        return one, more

    for one, more in pliant.run_world(size, body, timeout_s=20):
        assert_close(more, one, rtol=0, atol=0)


@pytest.mark.parametrize("size", [3, 4])
def test_a_long_sum_keeps_its_bits_also_where_gloo_uses_many_segments(size, monkeypatch):
    monkeypatch.setattr(striping, "SLICE_BYTES", 1 << 18)
    numel = (3 << 20) + 5  # 12 MiB

    def body(place):
        several = duplicate(place.comm, 3)
        one, more = (numbers(place.rank, numel) for _ in range(2))
        place.comm.all_reduce(one).wait()
        several.all_reduce(more).wait()
        several.close()
        return bool((one == more).all())

    assert pliant.run_world(size, body, timeout_s=60) == [True] * size


def test_the_order_of_sums_matters_and_so_the_law_above_can_fail():
    columns = Striping.of_sum

    def body(place):
        several = duplicate(place.comm, CONNECTIONS)
        x, y = numbers(place.rank, 4099), numbers(place.rank, 4099)
        place.comm.all_reduce(x).wait()
        several.all_reduce(y).wait()
        several.close()
        return bool((x == y).all())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Striping, "of_sum", lambda self, x, any_order: columns(self, x, any_order=True))
        assert not all(pliant.run_world(4, body))


@given(num_bytes=st.integers(0, 5000), connections=st.integers(1, 32), turn=st.integers(0, 40))
def test_a_message_is_cut_by_its_bytes_and_turn_alone(num_bytes, connections, turn):
    cut = Striping(2, connections)
    sent, into = torch.arange(num_bytes).to(torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    cut.placed(torch.empty(700, dtype=torch.uint8), 3)  # what went before does not matter
    out, back = cut.placed(sent, turn), Striping(2, connections).placed(into, turn)
    assert [k for k, _ in out] == [k for k, _ in back]
    for (_, a), (_, b) in zip(out, back, strict=True):
        b.copy_(a)
    assert bool((into == sent).all())
    assert len({k for k, _ in out}) == len(out) <= min(connections, max(1, -(-num_bytes // 64)))
    assert cut.placed(sent, 0)[0][0] == 0


def test_slices_are_views():
    x = torch.zeros(10)
    for part in slices(x, 3):
        part.fill_(255)
    assert bool(x.isnan().all())


def test_chunks_of_a_pipeline_use_all_connections():
    cut = Striping(3, 4)
    taken = [k for turn in range(4) for k, _ in cut.placed(torch.empty(128, dtype=torch.uint8), turn)]
    assert taken == [0, 1, 2, 3, 0, 1, 2, 3]
    one_by_one = [cut.placed(torch.empty(n), turn)[0][0] for turn, n in enumerate((9, 9, 8, 8, 9))]
    assert one_by_one == [0, 1, 0, 0, 0]  # small ones have no turn


def test_messages_by_themselves_take_the_connection_with_the_widest_window():
    cut, sent = Striping(2, 8), [0] * 8
    for num_bytes in [40, 64, 500, 64, 130, 40, 64]:
        slices_of = cut.placed(torch.empty(num_bytes, dtype=torch.uint8), 0)
        assert all(sent[k] == max(sent) for k, _ in slices_of if len(slices_of) == 1)
        for k, part in slices_of:
            sent[k] += part.nbytes
    assert sent[0] == max(sent)


def test_messages_between_two_ranks_keep_their_order():
    sizes = [1, 300, 64, 65, 5000, 2, 128, 700, 3]

    def body(place):
        comm, peer = duplicate(place.comm, CONNECTIONS), 1 - place.rank
        sends = [(peer, torch.full((n,), 10 * place.rank + k, dtype=torch.uint8)) for k, n in enumerate(sizes)]
        into = [torch.empty(n, dtype=torch.uint8) for n in sizes]
        works = [comm.exchange([], [(peer, x)], turn=max(k - 6, 0)) for k, x in enumerate(into)]
        comm.exchange(sends[:4], []).wait()
        comm.exchange(sends[4:6], []).wait()
        for k, each in enumerate(sends[6:]):
            comm.exchange([each], [], turn=k).wait()
        for work in works:
            work.wait()
        comm.close()
        return [x.unique().tolist() for x in into]

    assert pliant.run_world(2, body) == [[[10 + k] for k in range(9)], [[k] for k in range(9)]]


def test_what_is_counted_does_not_depend_on_connections():
    def body(place):
        counted = []
        for comm in (RecordedComm(place.comm), RecordedComm(duplicate(place.comm, CONNECTIONS))):
            all_collectives(comm, 1000, torch.float32)
            counted.append((comm.sent_bytes, comm.received_bytes, comm.calls))
        return counted

    for one, several in pliant.run_world(3, body):
        assert one == several


def test_parts_have_as_many_connections_but_for_those_of_two_levels():
    def body(place):
        comm = place.comm
        comm.reconnect(3)
        half = comm.split([[0, 1], [2, 3]])
        levels = hierarchical_comm(comm, [[0, 1], [2, 3]])
        assert isinstance(levels, HierarchicalComm)
        found = [comm.connections, half.connections, levels.inner.connections]
        levels.close()
        return [*found, duplicate(comm, 1).connections, half.split([[0, 1]]).connections]

    assert pliant.run_world(4, body) == [[3, 3, 1, 1, 3]] * 4


def test_other_connections_can_take_the_place_of_those_there_are():
    def body(place):
        comm = duplicate(place.comm)
        found = []
        for connections in (4, 1, 2):
            comm.reconnect(connections)
            found.append(all_collectives(comm, 1000, torch.float32))
        comm.close()
        return found

    for first, second, third in pliant.run_world(3, body):
        assert_close(second, first, rtol=0, atol=0)
        assert_close(third, first, rtol=0, atol=0)


@pytest.mark.parametrize("connections", [0, 33, -1])
def test_more_connections_than_links_bear_are_refused(connections):
    with pytest.raises(ValueError, match=rf"{connections} connections .* at least 1 and at most 32"):
        pliant.run_world(1, lambda place: place.comm.reconnect(connections))


def test_who_hangs_up_closes_all_connections_and_a_loss_is_told_once():
    freed = threading.Event()

    def body(place):
        comm = duplicate(place.comm, CONNECTIONS)
        x = torch.zeros(1000)
        if place.rank == 0:
            comm.hang_up()
            assert freed.wait(20)
            return ""
        try:
            comm.exchange([(0, x)], [(0, torch.zeros(1000))]).wait()
        except pliant.CommError as error:
            with pytest.raises(pliant.CommError):
                comm.exchange([], [(0, torch.zeros(1))]).wait()
            return str(error)
        finally:
            freed.set()

    text = pliant.run_world(2, body, timeout_s=10)[1]
    assert "rank 1 of 2: exchange of 4000 bytes failed" in text
    assert "Timed out" not in text


def test_pieces_of_a_coded_average_use_all_connections_and_give_the_same_bits(monkeypatch):
    monkeypatch.setattr(striping, "SLICE_BYTES", 1 << 18)
    placed, taken = Striping.placed, set()

    def noted(self, x, turn):
        found = placed(self, x, turn)
        taken.update(k for k, _ in found if self.connections > 1)
        return found

    monkeypatch.setattr(Striping, "placed", noted)
    codec, numel = codec_from(CodecSpec(name="minmax8")), 20_000

    def body(place):
        several, results = duplicate(place.comm, CONNECTIONS), []
        for comm in (place.comm, several):
            results.append(numbers(place.rank, numel))
            average = CompressedAverage(
                codec, numel, comm, chunk_bytes=4096, owner_feedback=False, device=torch.device("cpu")
            )
            average(results[-1], 1)
        several.close()
        return results

    for one, more in pliant.run_world(2, body):
        assert torch.equal(one, more)
    assert taken == set(range(CONNECTIONS))
