"""`ObservationIndices`: hides the entries of an observation that are not named."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import OBSERVATION
from rl.envs import Transform
from rl.envs.transforms import Specs

__all__ = ["ObservationIndices"]


class ObservationIndices(Transform):
    """Some entries of a vector ``observation``; the others are hidden from the policy.

    Args:
        indices: which entries, in this order.

    Shapes: ``[*B, n]`` to ``[*B, len(indices)]``.

    Raises:
        SpecError: if the environment has no vector under ``observation``, or it is shorter.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), ObservationIndices([0, 2]))  # position and angle, no velocities
        >>> env.reset()["observation"].shape
        torch.Size([2])
    """

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__(in_keys=[OBSERVATION])
        self.indices = list(indices)
        self._index = torch.tensor(self.indices)

    def _apply(self, value: Tensor) -> Tensor:
        if self._index.device != value.device:  # once: a copy at each step would wait for the device
            self._index = self._index.to(value.device)
        return value.index_select(-1, self._index)

    def transform_specs(self, specs: Specs) -> None:
        """Map the spec of the observation to that of the entries that are kept."""
        whole = specs.observation.get(OBSERVATION, None)
        if whole is None or len(whole.shape) != 1:
            found = "no such entry" if whole is None else f"{type(whole).__name__} {list(whole.shape)}"
            raise SpecError(
                f"observation_indices={self.indices} chooses entries of a vector under {OBSERVATION!r}; the environment"
                f" has {found}: leave observation_indices out"
            )
        if not all(0 <= index < whole.shape[0] for index in self.indices):
            raise SpecError(
                f"observation_indices={self.indices} chooses entries of an observation with {whole.shape[0]}: they are"
                f" numbered from 0 to {whole.shape[0] - 1}"
            )
        specs.observation[OBSERVATION] = whole[self._index.to(whole.device)]
