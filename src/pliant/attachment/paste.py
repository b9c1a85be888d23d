"""Line of code that gives a script the plan that was found."""

from torch.optim import Optimizer

from pliant.engine.plan_resolution import resolve_plan
from pliant.spec import SyncPlan

__all__ = ["line_for"]


def line_for(plan: SyncPlan, optimizer: Optimizer, plan_file: str) -> str:
    """Return the line to paste: the plan as a text where a text says all of it, else from a file.

    Args:
        plan: The plan that was found.
        optimizer: Of the model.
        plan_file: File that the plan is written to; "" if the user has named none.

    """
    text = str(plan.rules[-1].exchange)
    try:
        whole = resolve_plan(text, optimizer).hash == plan.hash
    except ValueError:
        whole = False
    if whole:
        return f'run = pliant.relax(model, optimizer, "{text}")'
    told = "" if plan_file else "  # written by pliant run --out plan.json"
    return f'run = pliant.relax(model, optimizer, "{plan_file or "plan.json"}"){told}'
