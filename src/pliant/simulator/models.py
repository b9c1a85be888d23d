"""Workloads of published models for a step of a given time: no torch, no model, no data."""

from collections.abc import Sequence

from pliant.spec import Workload
from pliant.spec.layers import Layer, workload_of_layers
from pliant.spec.models import LAYERS

__all__ = ["MODELS", "bert_large", "equal_layers", "vgg16", "workload_named"]

MODELS = tuple(LAYERS)
"""Names of the models that there are."""


def vgg16(step_s: float) -> Workload:
    """VGG16 for 1000 classes (Simonyan and Zisserman, arXiv:1409.1556), 138.4 million parameters."""
    return workload_named("vgg16", step_s)


def bert_large(step_s: float) -> Workload:
    """BERT-Large with the head for SQuAD (Devlin et al., arXiv:1810.04805), some 334 million parameters."""
    return workload_named("bert-large", step_s)


def equal_layers(name: str, num_parameters: float, num_layers: int, step_s: float, dtype: str = "float32") -> Workload:
    """Return a model of equal layers, one tensor each: what papers compute with."""
    rows = round(num_parameters / num_layers)
    layers = [Layer(f"layer{k}", "Layer", (("weight", (rows,)),), 1.0) for k in range(num_layers)]
    return _workload_of(name, layers, step_s, dtype)


def workload_named(name: str, step_s: float) -> Workload:
    """Return one of MODELS, with forward and backward of so many seconds in all, backward twice as long.

    Raises:
        ValueError: The name is not there, or the step takes no time.

    """
    if name not in LAYERS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(MODELS)}, or the path of a workload.")
    return _workload_of(name, LAYERS[name](), step_s)


def _workload_of(name: str, layers: Sequence[Layer], step_s: float, dtype: str = "float32") -> Workload:
    """Let one sample's forward and backward, three times the operations of forward, take step_s."""
    if step_s <= 0:
        raise ValueError(f"a step of {name} takes {step_s} s, but it must take some time; give more than 0.")
    operations_per_s = 3 * sum(layer.operations for layer in layers) / step_s
    return workload_of_layers(name, layers, batch=1, operations_per_s=operations_per_s, dtype=dtype)
