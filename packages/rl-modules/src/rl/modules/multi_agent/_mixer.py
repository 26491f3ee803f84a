"""Base class of mixers: from the values of all agents to that of the team."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

__all__ = ["Mixer"]


class Mixer(nn.Module):
    """Base of mixers, which a subclass implements in `mix`.

    Args:
        n_agents: number of agents.
        state_shape: shape of the state of the environment; None for a mixer that reads none.

    Raises:
        SpecError: if a size is not a positive integer.
    """

    def __init__(self, n_agents: int, state_shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.n_agents = as_integer(n_agents, type(self).__name__, "n_agents", least=1)
        self.state_shape = None if state_shape is None else self._sizes(state_shape)

    def _sizes(self, shape: Any) -> tuple[int, ...]:
        name = type(self).__name__
        if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape:
            raise SpecError(
                f"{name} got state_shape={shape!r}; it is the sizes of the state without the batch, such as (8,)"
            )
        sizes: Sequence[Any] = shape  # pyright: ignore[reportUnknownVariableType]
        return tuple(as_integer(size, name, "state_shape", least=1) for size in sizes)

    def forward(self, chosen_action_value: Tensor, state: Tensor | None = None) -> Tensor:
        """Value of the team.

        Args:
            chosen_action_value: value of the action of each agent, ``[*B, n_agents, 1]``.
            state: state of the environment, ``[*B, *state_shape]``, if the mixer reads it.

        Returns:
            The value ``[*B, 1]``.

        Raises:
            ShapeError: if the shapes are others.
        """
        name = type(self).__name__
        batch = chosen_action_value.shape[:-2]
        if chosen_action_value.shape[-2:] != (self.n_agents, 1):
            raise ShapeError(f"{name} expects values [*B, {self.n_agents}, 1], got {tuple(chosen_action_value.shape)}")
        if self.state_shape is None:
            return self.mix(chosen_action_value, None)
        if state is None or state.shape != (*batch, *self.state_shape):
            found = "none" if state is None else tuple(state.shape)
            raise ShapeError(f"{name} expects a state {[*batch, *self.state_shape]} beside the values, got {found}")
        return self.mix(chosen_action_value, state.flatten(len(batch)))

    @abstractmethod
    def mix(self, chosen_action_value: Tensor, state: Tensor | None) -> Tensor:
        """The value ``[*B, 1]`` of ``[*B, n_agents, 1]`` and the state ``[*B, size]``."""
