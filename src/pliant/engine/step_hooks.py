"""Steps of a run: hooks on one optimizer, or on several that make a step together."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from pliant.engine.gradient_exchange import GradientExchange, NonFinite
from pliant.engine.initial_sync import is_no_step
from pliant.engine.joint_optimizer import JointOptimizer

__all__ = ["StepHooks", "require_one_optimizer_pass"]


class StepHooks:
    """Calls a run's functions when its optimizers step.

    One optimizer's step is the run's step. Of several, each makes a part: the run's step ends when all have stepped, or
    when one steps again before that. So Muon and AdamW make one step together, and the five steps of a critic before
    its generator's make five. This depends on nothing but calls of step(), which all ranks make alike.

    The steps with which torch's get_state_dict makes an optimizer's state, on whichever ranks, do not count. An
    optimizer that is given a closure steps with gradients that come in it: `before` is then called after each.

    Args:
        optimizer: One, or several together.
        before: Called with the optimizer that is about to use its gradients.
        after: Called with the optimizer that has stepped.
        complete: Called when a step of the run has ended.
        passes: Returns how many backward passes have been exchanged.
        in_turns: Called when gradients came between two parts of a step, so that each optimizer has its own pass.
        catch_up: Called when an optimizer steps behind others: ends their part if a GradScaler has skipped the rest.

    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        before: Callable[[Optimizer], None],
        after: Callable[[Optimizer], None],
        complete: Callable[[], None],
        passes: Callable[[], int],
        in_turns: Callable[[], None],
        catch_up: Callable[[], None],
    ) -> None:
        self._together = optimizer if isinstance(optimizer, JointOptimizer) else None
        self.members = optimizer.members if isinstance(optimizer, JointOptimizer) else (optimizer,)
        self._before, self._after, self._complete = before, after, complete
        self._passes, self._in_turns, self._catch_up = passes, in_turns, catch_up
        self._passes_before = 0
        """Backward passes when this step began."""
        self._begun: set[int] = set()
        """Members whose step() is under way."""
        self._stepped: set[int] = set()
        """Members that have made their part of this step."""
        self._hooks = [
            hook
            for k, member in enumerate(self.members)
            for hook in (member.register_step_pre_hook(self._enter(k)), member.register_step_post_hook(self._leave(k)))
        ]

    @property
    def is_in_part(self) -> bool:
        """Whether some optimizers have made their part of a step since the last backward pass, and others have not."""
        return bool(self._stepped) and self._passes() == self._passes_before

    def end_skipped(self) -> None:
        """End a step that a GradScaler has skipped, in whole or in part."""
        if self.is_in_part:
            self._end()
        else:
            self._complete()

    def close(self) -> None:
        """Remove every hook that it has."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, k: int) -> Callable[[Optimizer, Any, Any], Any]:
        def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is None and is_no_step(optimizer):
                return None
            if self._stepped:
                self._catch_up()
            if self._stepped and self._passes() != self._passes_before:
                self._in_turns()
            if k in self._stepped:
                self._end()
            if not self._stepped:
                self._passes_before = self._passes()
                if self._together is not None:
                    self._together.tell(begins=True)
            self._begun.add(k)
            if closure is None:
                self._before(optimizer)
                return None

            def closed() -> Any:
                result = closure()
                self._before(optimizer)
                return result

            return ((args[0], closed, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closed})

        return hook

    def _leave(self, k: int) -> Callable[[Optimizer, Any, Any], None]:
        def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if k not in self._begun:  # no step; or the inner of two has ended: a subclass calls its base's step()
                return
            self._begun.discard(k)
            self._after(optimizer)
            self._stepped.add(k)
            if len(self._stepped) == len(self.members):
                self._end()

        return hook

    def _end(self) -> None:
        self._stepped.clear()
        self._complete()
        if self._together is not None:
            self._together.tell(begins=False)


def require_one_optimizer_pass(gradients: GradientExchange, nonfinite: NonFinite) -> None:
    """Raise RuntimeError if gradients of one backward pass may come with those of a later one, of another optimizer.

    With a GradScaler, which alone needs non-finite gradients, an optimizer that was skipped looks just the same.
    """
    kept = next((node for node in gradients.store.nodes.values() if node.keeps_gradients), None)
    if kept is not None and nonfinite == "raise":
        raise RuntimeError(
            f"each of these optimizers steps after a backward pass of its own, but the plan ({kept}) keeps a part of "
            "each pass's gradients for the next, where they would reach the other optimizer or be lost; give each "
            "network its own DistributedDataParallel and its own relax(), or choose a plan that keeps none (qsgd)."
        )
