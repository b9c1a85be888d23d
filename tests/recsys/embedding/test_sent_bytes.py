"""What travels is what layouts/embedding_messages.py says, to the byte; and fewer bits cost what they may."""

import numpy as np
import pytest
import torch

from pliant.comm import RecordedComm, run_world
from pliant.layouts.embedding_messages import mask_bytes, request_bytes, sizes_bytes, vector_bytes
from pliant.recsys import ShardedEmbeddingBag, count_traffic
from pliant.recsys.embedding.shard import Request
from pliant.spec import Table, TableLayout
from recsys.embedding.whole import TABLES, Whole, first_weights, hot_ids, inputs_of, plan_of, spread


def said(plan, of_ranks, hot):
    """Bytes that each rank sends in a step, from the ids of all ranks, in plain Python."""
    n = plan.num_ranks
    whole = Whole(plan, first_weights(plan.tables), lr=0.1)
    groups = {}
    for piece in plan.pieces():
        layout = piece.layout
        if layout.kind != "replicated":
            weighted = layout.moves == "sums" and plan.tables[piece.index].weighted
            groups.setdefault((piece.dim, layout.moves, layout.bits, layout.distinct, weighted), []).append(piece)
    num_sums = sum(key[1] == "sums" for key in groups)
    sent = [(n - 1) * sizes_bytes(len(groups) - num_sums, num_sums)] * n
    touched = {}
    for rank, inputs in enumerate(map(whole.merged, of_ranks)):
        for (dim, moves, bits, distinct, weighted), pieces in groups.items():
            ids, bags = [[] for _ in range(n)], [set() for _ in range(n)]
            for piece in pieces:
                t = piece.index
                its, of_bag, _, _ = whole.bags(t, inputs[t])
                for i, b in zip(its.tolist(), of_bag.tolist(), strict=True):
                    if i in hot.get(plan.tables[t].name, ()):
                        touched.setdefault(dim, set()).add((t, i))
                        continue
                    owner = (i + t) % n if piece.home is None else piece.home
                    ids[owner].append((t, piece.first_column, i))
                    bags[owner].add((t, piece.first_column, b))
            for owner in set(range(n)) - {rank}:
                num = len(set(ids[owner])) if moves == "vectors" and distinct else len(ids[owner])
                num_bags = len(bags[owner]) if moves == "sums" else 0
                sent[rank] += request_bytes(num, num_bags, weighted=weighted)
                vectors = num_bags if moves == "sums" else num
                sent[rank] += vectors * vector_bytes(dim, bits)  # gradients
                sent[owner] += vectors * vector_bytes(dim, bits)  # answers
        for t, layout in enumerate(plan.layouts):
            if layout.kind == "replicated":
                rows = {(t, i) for i in whole.bags(t, inputs[t])[0].tolist()}
                touched.setdefault(plan.tables[t].dim, set()).update(rows)
    room = {}
    for table, layout in zip(plan.tables, plan.layouts, strict=True):
        num = table.num_rows if layout.kind == "replicated" else layout.num_hot
        room[table.dim] = room.get(table.dim, 0) + num
    for dim, num in room.items():
        marks, rest = num, 4 * dim * len(touched.get(dim, ()))
        for x in (marks, rest):
            sent = [s + 2 * (n - 1) * x // n for s in sent]
    return sent


@pytest.mark.parametrize("bits", [32, 8, pytest.param(16, marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", list(spread(1)))
def test_bytes_on_the_wire_are_those_of_wire_py(name, bits):
    n = 3

    def layout(table, t):
        its = spread(n)[name]
        its = its(table, t) if callable(its) else its
        return TableLayout(
            kind=its.kind, homes=its.homes, num_hot=its.num_hot, moves=its.moves, distinct=its.distinct, bits=bits
        )

    plan = plan_of(layout, n)

    def be(place):
        comm = RecordedComm(place.comm)
        bags = ShardedEmbeddingBag(plan, comm, lr=0.1, weights=first_weights(TABLES), hot=hot_ids(plan))
        comm.reset()
        before = sum(bags.stats().sent_bytes.values())
        out = bags(inputs_of(TABLES, place.rank, 0))
        sum((x.square() / 2).sum() for x in out).backward()
        bags.step()
        counted = sum(bags.stats().sent_bytes.values()) - before
        assert counted == comm.sent_bytes or name in (
            "hot",
            "hot pooled",
        )  # these count the choice of hot rows apart
        return comm.sent_bytes, comm.received_bytes

    found = run_world(n, be)
    hot = {name: set(ids.tolist()) for name, ids in hot_ids(plan).items()}
    assert [sent for sent, _ in found] == said(plan, [inputs_of(TABLES, rank, 0) for rank in range(n)], hot)
    assert sum(sent for sent, _ in found) == sum(received for _, received in found)


@pytest.mark.parametrize(("bits", "error"), [(16, 2.0**-7), (8, 1 / 127)])
@pytest.mark.parametrize("moves", ["vectors", "sums"])
def test_fewer_bits_are_off_by_no_more_than_they_may(moves, bits, error):
    table = Table(name="a", num_rows=40, dim=12)

    def be(place, bits):
        plan = plan_of(TableLayout(kind="table", homes=(0,), moves=moves, bits=bits), 2, tables=(table,))
        weights = [first_weights((table,))[0] * torch.linspace(0.001, 50, 40)[:, None]]
        weights[0][3] = 0.0
        bags = ShardedEmbeddingBag(plan, place.comm, lr=1.0, weights=weights)
        ids = torch.arange(40)[:, None] if place.rank == 1 else torch.empty(0, 1, dtype=torch.int64)
        (out,) = bags([ids])
        gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        out.backward(gradient)
        bags.step()
        return out.detach(), bags.full_weights("a")[0], gradient

    (_, _, _), (exact, learned, gradient) = run_world(2, lambda place: be(place, 32))
    (_, _, _), (coded, coarse, _) = run_world(2, lambda place: be(place, bits))
    largest = exact.abs().amax(1, keepdim=True)
    assert bool(((coded - exact).abs() <= error * largest / 2 + 1e-30).all())
    assert torch.equal(coded[3], exact[3])
    assert not torch.equal(coded, exact)
    bound = error * gradient.abs().amax(1, keepdim=True) + 1e-5
    assert bool(((coarse - learned).abs() <= bound).all())


def test_random_rounding_is_right_on_average():
    from pliant.recsys.embedding.vectors import empty_wire, from_wire, to_wire

    x = torch.randn(50, 16)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros_like(x)
    for _ in range(400):
        out = torch.empty_like(x)
        from_wire(to_wire(x, 8, generator), 8, out)
        total += out
    assert float((total / 400 - x).abs().max()) < 5 * float(x.abs().max()) / 127 / 400**0.5
    for bits in (32, 16, 8):
        sent, room = to_wire(x, bits), empty_wire(50, 16, bits, torch.device("cpu"))
        assert [part.shape for part in sent] == [part.shape for part in room]
        assert sum(part.nbytes for part in sent) == 50 * vector_bytes(16, bits)
    x[7, 3] = np.inf
    for bits in (16, 8):
        out = torch.empty_like(x)
        from_wire(to_wire(x, bits, generator), bits, out)
        assert not bool(out[7].isfinite().all())
        assert bool(out[:7].isfinite().all())


def test_bytes_of_a_batch_that_was_asked_for_ahead():
    tables = (Table(name="a", num_rows=400, dim=8), Table(name="b", num_rows=300, dim=4))
    layouts = (TableLayout(kind="rows"), TableLayout(kind="rows", moves="sums"))
    plan = plan_of(lambda table, t: layouts[t], 3, tables=tables)

    def be(place, ahead):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1)
        first, second = (inputs_of(tables, place.rank, step) for step in (0, 1))
        out = bags(first)
        if ahead:
            bags.prefetch(second)
        sum(x.sum() for x in out).backward()
        bags.step()
        bags(second)
        bags.close()
        return bags.stats()

    masks = []
    for rank in range(3):  # what each rank asks of the others in table a
        ids = set(inputs_of(tables, rank, 1)[0][0].tolist())
        masks.append([mask_bytes(sum(i % 3 == owner for i in ids)) for owner in range(3)])
    plain = run_world(3, lambda place: be(place, False))
    for rank, (a, b) in enumerate(zip(plain, run_world(3, lambda place: be(place, True)), strict=True)):
        sent = dict(b.sent_bytes)
        assert sent.pop("masks") == sum(masks[peer][rank] for peer in range(3) if peer != rank)
        early = sent.pop("early")
        assert early > 0
        sent["answers"] += early
        assert sent == a.sent_bytes
        assert b.num_vectors == a.num_vectors
        assert b.wait_s["early"] >= 0.0
        assert b.hot_share == 0.0


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.extended)])
@pytest.mark.parametrize("name", list(spread(1)))
def test_the_cost_framework_counts_what_is_sent(name, every):
    n = 4
    plan = plan_of(spread(n)[name], n, every=every)
    hot = hot_ids(plan)

    def be(place):
        comm = RecordedComm(place.comm)
        bags = ShardedEmbeddingBag(plan, comm, lr=0.1, weights=first_weights(TABLES), hot=hot)
        found = []
        for step in range(every):
            comm.reset()
            out = bags(inputs_of(TABLES, place.rank, step))
            sum((x.square() / 2).sum() for x in out).backward()
            bags.step()
            found.append((comm.sent_bytes, comm.received_bytes))
        return found

    results = run_world(n, be)
    steps = [[inputs_of(TABLES, rank, step) for rank in range(n)] for step in range(every)]
    for step, traffic in enumerate(count_traffic(plan, steps, hot)):
        sent, received = traffic.sent_bytes(), traffic.received_bytes()
        for rank in range(n):
            found = results[rank][step]
            # RecordedComm takes the floor of each all-reduce's 2 (n - 1) / n
            np.testing.assert_allclose(found, (sent[rank], received[rank]), atol=2 * len(traffic.syncs), rtol=0)


@pytest.mark.parametrize("name", list(spread(1)))
def test_the_cost_framework_counts_batches_that_were_asked_for_ahead(name):
    n, num = 3, 3
    plan = plan_of(spread(n)[name], n)
    hot = hot_ids(plan)

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1, weights=first_weights(TABLES), hot=hot)
        before = sum(bags.stats().sent_bytes.values())
        batches = [inputs_of(TABLES, place.rank, step) for step in range(num)]
        for step, batch in enumerate(batches):
            out = bags(batch)
            if step + 1 < num:
                bags.prefetch(batches[step + 1])
            sum((x.square() / 2).sum() for x in out).backward()
            bags.step()
        bags.close()
        return sum(bags.stats().sent_bytes.values()) - before

    steps = [[inputs_of(TABLES, rank, step) for rank in range(n)] for step in range(num)]
    traffic = [count_traffic(plan, steps, hot)[0], *count_traffic(plan, steps, hot, ahead=True)[1:]]
    sent = np.sum([t.sent_bytes() for t in traffic], axis=0)
    np.testing.assert_allclose(run_world(n, be), sent, atol=2 * sum(len(t.syncs) for t in traffic), rtol=0)


@pytest.mark.parametrize("lengths", [[1, 1_000_000], [1, 1], [-3, 6], [6, -3], [2**31 - 1, 4]])
def test_a_request_whose_bags_were_damaged_is_refused(lengths):
    request = Request(slots=torch.zeros(3, dtype=torch.int32), lengths=torch.tensor(lengths, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"asks for 3 rows in bags of .* damaged"):
        request.answer(torch.zeros(5, 4))
