"""Plans, simulated: how long a step takes, what it waits for and what it sends, without torch and without a network."""

from pliant.netmodel import IDEAL, KEYS, Overheads
from pliant.simulator.cost_features import CostFeatures
from pliant.simulator.models import MODELS, bert_large, equal_layers, vgg16, workload_named
from pliant.simulator.simulate import BUCKET_BYTES, Simulated, simulate, simulate_many
from pliant.simulator.trace import to_trace, write_trace

__all__ = [
    "BUCKET_BYTES",
    "IDEAL",
    "KEYS",
    "MODELS",
    "CostFeatures",
    "Overheads",
    "Simulated",
    "bert_large",
    "equal_layers",
    "simulate",
    "simulate_many",
    "to_trace",
    "vgg16",
    "workload_named",
    "write_trace",
]
