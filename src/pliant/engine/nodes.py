"""Nodes of parameters: that of their rule, unless their gradients are sparse or their optimizer does not fit it."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.optim import Optimizer

from pliant.algorithms.registry import is_adaptive
from pliant.engine.joint_optimizer import optimizer_name
from pliant.engine.relaxed_model import RelaxedModel, name_without_wrappers
from pliant.spec import AllReduce, Exchange, Sharded, SyncPlan

__all__ = ["layer_classes", "leaves_gradients", "nodes_for", "sparse_parameters"]


def nodes_for(
    plan: SyncPlan,
    relaxed: RelaxedModel,
    parameters: Mapping[str, Tensor],
    layers: Mapping[str, str],
    steppers: Mapping[int, Optimizer],
) -> dict[str, Exchange]:
    """Return parameter -> node of the plan.

    Sparse gradients are averaged exactly, as index-value pairs, whatever a plan says about gradients: a codec would
    make them dense. A node of weights applies to their tables too, since those are dense. Parameters that no optimizer
    of the run steps are averaged exactly and left alone. So are those that an adaptive optimizer steps, such as AdamW
    beside Muon, where a plan hands over momenta in the place of the optimizer's own.

    Args:
        plan: Has a rule for each parameter.
        relaxed: The model; its layers say where gradients are sparse.
        parameters: Name -> parameter, of those that are trained.
        layers: Name -> class of the layer that owns it.
        steppers: Parameter's id -> the optimizer of the run that steps it.

    Raises:
        ValueError: A gradient is sparse, but the plan exchanges momenta, which never are; or it hands over momenta, but
            all of its parameters are those of adaptive optimizers.

    """
    exact = AllReduce()
    # Of a sharded model whole parameters count: shards differ from rank to rank, and the plan must not.
    numels = {name: p.numel() for name, p in parameters.items()} if relaxed.sharded is None else relaxed.sharded.numels
    nodes: dict[str, Exchange] = {
        name: plan.exchange_for(name, layers[name], numels[name]) if id(p) in steppers else exact
        for name, p in parameters.items()
    }
    _spare_adaptive(nodes, {name: steppers.get(id(p)) for name, p in parameters.items()})
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


def _spare_adaptive(nodes: dict[str, Exchange], steppers: Mapping[str, Optimizer | None]) -> None:
    """Let exact means take the place of momenta for parameters whose optimizer is adaptive, with momenta of its own."""
    spared: dict[Exchange, Optimizer] = {}
    for name, node in nodes.items():
        optimizer = steppers[name]
        if optimizer is not None and node.core.replaces_momentum and is_adaptive(optimizer):
            spared[node] = optimizer
            nodes[name] = replace(node, replicas=AllReduce()) if isinstance(node, Sharded) else AllReduce()
    for node, optimizer in spared.items():
        if node not in nodes.values():
            raise ValueError(
                f"the plan hands over momenta ({node}) in the place of the optimizer's own, but all its parameters are "
                f"stepped by {optimizer_name(optimizer)}, which needs gradients; give relax() [Muon(matrices, "
                "momentum=0), AdamW(all others)], or choose an algorithm that exchanges gradients."
            )


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
