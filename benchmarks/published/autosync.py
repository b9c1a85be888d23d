"""AutoSync (Zhang et al., 2020): its clusters A and B and its models; the paper's step times were not in reach.

What can be held is the ratio of builders, plans of one kind for the whole model, to an all-reduce.
"""

from functools import cache

from benchmarks.published.record import Row, Source

import pliant
from pliant.algorithms.plans import plan_of
from pliant.netmodel import PRESETS
from pliant.simulator import simulate
from pliant.spec import Exchange, Workload
from pliant.spec.layers import workload_of_layers
from pliant.spec.models import LAYERS
from pliant.spec.worlds import world

__all__ = ["AUTOSYNC"]

MODELS = {
    "vgg16": 32,
    "resnet50": 32,
    "resnet101": 32,
    "inception-v3": 32,
    "densenet121": 32,
    "bert": 8,
    "bert-large": 4,
    "ncf": 4096,
}
"""Model -> samples of a GPU in a step, taken."""
OPERATIONS_PER_S = {"titan-x": 3e12, "t4": 4e12}
"""Half of the peak of 6.1 and 8.1 Tflop/s in float32 (data sheets)."""
BUILDERS: dict[str, Exchange] = {
    "all-reduce": pliant.allreduce(),
    "all-reduce in bf16": pliant.bf16(),
    "owners": pliant.sharded_optimizer(),
    "by hosts in bf16": pliant.between_hosts(pliant.bf16()),
    "ByteGrad": pliant.bytegrad(),
}


@cache
def _workload(model: str, machine: str) -> Workload:
    speed = OPERATIONS_PER_S[machine]
    return workload_of_layers(model, LAYERS[model](), batch=MODELS[model], operations_per_s=speed)


@cache
def step_s(cluster: str, model: str, builder: str) -> float:
    """Return the step of a builder's plan."""
    topology = world(cluster)
    work = _workload(model, topology.hosts[0].machine)
    return simulate(plan_of(BUILDERS[builder]), work, topology).step_s


def _rows() -> list[Row]:
    rows: list[Row] = []
    for cluster in ("autosync-a", "autosync-b"):
        machine = world(cluster).hosts[0].machine
        for model in MODELS:
            for builder in BUILDERS:
                if builder == "all-reduce" or (builder.startswith("by hosts") and PRESETS[machine].gpus == 1):
                    continue
                rows.append(
                    Row(
                        case=f"{cluster}, {model}",
                        arm=builder,
                        topology=cluster,
                        machine=machine,
                        workload=model,
                        plan=str(BUILDERS[builder]),
                        published=0.0,
                        unit="times as fast as all-reduce",
                        uncertainty=0.0,
                        where="not in reach",
                        predict=lambda c=cluster, m=model, b=builder: step_s(c, m, "all-reduce") / step_s(c, m, b),
                    )
                )
    return rows


AUTOSYNC = Source(
    name="AutoSync",
    link="",
    rows=tuple(_rows()),
    constants=(
        ("clusters A and B", "the paper, by an extraction of others: `autosync-a` and `autosync-b` are shipped worlds"),
        ("GPUs compute at half of their peak, batches of 4 to 4096", "taken"),
    ),
    misses=(
        "The paper claims up to 1.6 times over hand-tuned plans (1.2 to 1.6 on NCF, BERT and VGG16), found by search "
        "over partitions and placements; builders of one kind are no such plans.",
    ),
)
