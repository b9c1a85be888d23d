"""Embedding tables over real processes: memory stays within what is said, and a checkpoint loads at another number."""

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from pliant.comm import run_world
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import EmbeddingPlan, Table, TableLayout
from processes.ranks import said, start

pytestmark = pytest.mark.processes

SCRIPT = """
import os, resource, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from pliant.comm import new_comm
from pliant.recsys import ShardedEmbeddingBag
from pliant.spec import EmbeddingPlan, Table, TableLayout

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), os.environ["FOLDER"]
tables = (Table(name="large", num_rows=1_000_000, dim=32), Table(name="small", num_rows=10, dim=4))
layouts = (TableLayout(kind="rows", num_hot=20_000), TableLayout(kind="replicated"))
plan = EmbeddingPlan(tables=tables, layouts=layouts, num_ranks=2, batch_size=64, optimizer="rowwise_adagrad")


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


comm = new_comm(dist.group.WORLD, 30.0)
before = peak()
bags = ShardedEmbeddingBag(plan, comm, lr=0.1, hot={"large": torch.arange(20_000)})
generator = torch.Generator().manual_seed(rank)
for step in range(4):
    ids = [torch.randint(0, t.num_rows, (64, 3), generator=generator) for t in tables]
    out = bags(ids)
    bags.prefetch(ids)
    sum(x.square().sum() for x in out).backward()
    bags.step()
    sum(x.sum() for x in bags(ids)).backward()
    bags.step()
    bags.set_hot({"large": torch.arange(20_000) + 7_000 * step})
more, said = peak() - before, sum(bags.nbytes().values())
assert 64e6 < said < 80e6, bags.nbytes()
assert more < said + 40e6, (more, said)  # buffers of parts, and what Gloo and the allocator keep
dcp.save(bags.state_dict(), checkpoint_id=folder + "/checkpoint")
rows = bags.full_weights()
if rank == 0:
    torch.save([rows[0][:50_000].clone(), rows[1]], folder + "/rows.pt")
bags.close()
print("equal")
dist.destroy_process_group()
"""


@pytest.mark.extended
def test_memory_and_a_checkpoint_of_two_processes(tmp_path):
    ranks = start(SCRIPT, 2, tmp_path)
    codes = [process.wait(timeout=250) for process in ranks]
    assert codes == [0, 0], said(tmp_path, 0) + said(tmp_path, 1)
    dcp_to_torch_save(tmp_path / "checkpoint", tmp_path / "all.pt")
    state = torch.load(tmp_path / "all.pt", weights_only=True)
    tables = (Table(name="large", num_rows=1_000_000, dim=32), Table(name="small", num_rows=10, dim=4))
    layouts = (TableLayout(kind="table", homes=(0,)), TableLayout(kind="rows"))
    plan = EmbeddingPlan(tables=tables, layouts=layouts, num_ranks=1, batch_size=64, optimizer="rowwise_adagrad")

    def be(place):
        bags = ShardedEmbeddingBag(plan, place.comm, lr=0.1)
        bags.load_state_dict(state)
        return bags.num_steps, bags.full_weights()

    ((num_steps, rows),) = run_world(1, be)
    large, small = torch.load(tmp_path / "rows.pt", weights_only=True)
    assert num_steps == 8
    assert torch.equal(rows[0][:50_000], large)
    assert torch.equal(rows[1], small)
