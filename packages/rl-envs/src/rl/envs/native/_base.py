"""Bases of environments that compute in torch: `SeededState`, and `NativeEnv` of those written in torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.core.interfaces import Leaves
from rl.core.specs import Categorical, OneHot, TensorSpec
from rl.core.state import set_generator
from rl.envs.base._checks import warn_not_restorable
from rl.envs.base._leaf import LeafEnvBase


class SeededState:
    """Part of environments whose state is in the TensorDict, and which own a generator of start states."""

    _generator: torch.Generator

    def _make_generator(self, device: torch.device | None, seed: int | None) -> None:
        self._generator = torch.Generator(device=device or "cpu")
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """Generators that steps and resets draw from, besides torch's own: a CUDA graph has to know them."""
        return (self._generator,)

    def _set_seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the generator of the start states; the rest of the state is in the data."""
        return {"restorable": True, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Returns:
            False if the state was saved on another kind of device, whose generator draws other numbers. The environment
            then warned, and keeps its own generator: with the seed that it was given.

        Raises:
            CheckpointError: If `state` has no generator.
        """
        if "generator" not in state:
            raise CheckpointError(
                f"{type(self).__name__} cannot load a state with the entries {sorted(state)}: no 'generator'"
            )
        if state["generator"].shape != self._generator.get_state().shape:
            warn_not_restorable(
                type(self).__name__,
                f"its generator is on {self._generator.device}, and was saved on another kind of device, which draws"
                " other numbers",
            )
            return False
        set_generator(self._generator, state["generator"], type(self).__name__)
        return True


class NativeEnv(SeededState, LeafEnvBase):
    """Environment in torch whose state is in the TensorDict; it owns a generator of start states.

    Without a batch size it takes TensorDicts of any batch (`batch_locked` is false).

    Args:
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the generator; nondeterministic if None. See also `set_seed`.
    """

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, device=device)
        self.batch_locked = bool(self.batch_size)
        self._make_generator(self.device, seed)

    def _rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform numbers in [0, 1), ``[*B, *shape]``."""
        generator = self._generator
        return torch.rand((*self.batch_size, *shape), generator=generator, device=generator.device, dtype=dtype)

    def _flags(self, terminated: Tensor | None = None) -> Leaves:
        """Return the done flags, for `terminated` ``[*B]``; false if None."""
        if terminated is None:
            device = self._generator.device
            over = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=device)
            return {"done": over, "terminated": over.clone()}
        over = terminated.unsqueeze(-1)
        return {"done": over, "terminated": over.clone()}


def discrete_action(n: int, *, categorical: bool) -> TensorSpec:
    """Spec of `n` actions: one-hot ``[n]``, or int64 ``[]``."""
    return Categorical(n) if categorical else OneHot(n, dtype=torch.int64)


def action_index(action: Tensor, *, categorical: bool) -> Tensor:
    """Return the number of the action, ``[*B]``."""
    return action if categorical else action.argmax(-1)
