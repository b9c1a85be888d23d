"""Nodes of parameters: that of their rule, unless their gradients are sparse or no optimizer steps them."""

from collections.abc import Container, Mapping

from torch import Tensor, nn

from pliant.engine.relaxed_model import RelaxedModel, name_without_wrappers
from pliant.spec import AllReduce, Exchange, SyncPlan

__all__ = ["layer_classes", "leaves_gradients", "nodes_for", "sparse_parameters"]


def nodes_for(
    plan: SyncPlan,
    relaxed: RelaxedModel,
    parameters: Mapping[str, Tensor],
    layers: Mapping[str, str],
    stepped: Container[int],
) -> dict[str, Exchange]:
    """Return parameter -> node of the plan.

    Sparse gradients are averaged exactly, as index-value pairs, whatever a plan says about gradients: a codec would
    make them dense. A node of weights applies to their tables too, since those are dense. Parameters that no optimizer
    of the run steps are averaged exactly and left alone.

    Args:
        plan: Has a rule for each parameter.
        relaxed: The model; its layers say where gradients are sparse.
        parameters: Name -> parameter, of those that are trained.
        layers: Name -> class of the layer that owns it.
        stepped: The ids of the parameters that an optimizer of the run steps.

    Raises:
        ValueError: A gradient is sparse, but the plan exchanges momenta, which never are.

    """
    exact = AllReduce()
    # Of a sharded model whole parameters count: shards differ from rank to rank, and the plan must not.
    numels = {name: p.numel() for name, p in parameters.items()} if relaxed.sharded is None else relaxed.sharded.numels
    nodes: dict[str, Exchange] = {
        name: plan.exchange_for(name, layers[name], numels[name]) if id(p) in stepped else exact
        for name, p in parameters.items()
    }
    for name in sparse_parameters(relaxed.module, parameters):
        if nodes[name].kind == "momentum":
            raise ValueError(
                f"{name!r} has sparse gradients (sparse=True), but its algorithm exchanges momenta, which are dense: "
                f"{nodes[name]}; make the layer with sparse=False, or give it another rule and another optimizer."
            )
        if not nodes[name].exchanges_weights:
            nodes[name] = exact
    return nodes


def leaves_gradients(plan: SyncPlan, relaxed: RelaxedModel) -> bool:
    """Say whether all gradients of a model stay with their rank; sparse ones do where only weights are exchanged."""
    if all(rule.exchange.exchanges_weights for rule in plan.rules):
        return plan.leaves_gradients
    return plan.leaves_gradients and not sparse_parameters(relaxed.module, relaxed.parameters)


def sparse_parameters(module: nn.Module, parameters: Mapping[str, Tensor]) -> list[str]:
    """Return the parameters whose gradients are sparse: those of embeddings made so, as DDP finds them."""
    tables = [m for m in module.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
    ids = {id(table.weight) for table in tables}
    return [name for name, parameter in parameters.items() if id(parameter) in ids]


def layer_classes(module: nn.Module) -> dict[str, str]:
    """Return, for each parameter's full name, the class name of the layer that owns it."""
    return {
        name_without_wrappers(f"{prefix}.{name}" if prefix else name): type(layer).__name__
        for prefix, layer in module.named_modules(remove_duplicate=False)
        for name, _ in layer.named_parameters(recurse=False, remove_duplicate=False)
    }
