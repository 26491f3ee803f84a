"""`TerminateTransform`: episodes that end when a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import as_tuple, unwrap
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._entries import element_mask
from rl.envs.transforms._specs import Specs

__all__ = ["TerminateTransform"]


class TerminateTransform(Transform):
    """Terminates episodes when a condition on the outcome of a step holds.

    Writes ``terminated`` and ``done`` under ``next``, next to each ``done`` of the environment.

    Args:
        stop: receives the TensorDict under ``next``; returns a bool, or a bool tensor ``[*B]`` or ``[*B, 1]``.
        write_done: must be true: termination sets ``done`` too.

    Raises:
        SpecError: if `write_done` is false, or the condition has another shape.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), TerminateTransform(lambda td: td["observation"][..., 0] < 2))
        >>> env.rollout(5)["next", "terminated"].flatten()
        tensor([True])
    """

    def __init__(self, stop: Callable[[Any], Tensor | bool], *, write_done: bool = True) -> None:
        super().__init__()
        if not write_done:
            raise SpecError(
                "TerminateTransform: write_done=False sets 'terminated' without 'done', but done = terminated |"
                " truncated; to mark steps and not end the episode, write another entry"
            )
        self.stop = stop

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        stops = self.stop(outcome)
        for terminated, done in self._flags:
            flag = outcome[done]
            over = element_mask(stops, flag, self)
            outcome[terminated] = outcome[terminated] | over
            outcome[done] = flag | over
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        dones = [as_tuple(key) for key in leaf_keys(specs.done) if as_tuple(key)[-1] == "done"]
        self._flags = [(unwrap((*key[:-1], "terminated")), unwrap(key)) for key in dones]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.stop, '__name__', type(self.stop).__name__)})"
