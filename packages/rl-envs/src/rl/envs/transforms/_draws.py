"""`RandomTransform`: base class of transforms that draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl.envs.transforms._base import Transform

__all__ = ["RandomTransform"]


class RandomTransform(Transform):
    """Base class of transforms that draw random numbers: from a generator that `set_seed` of the environment seeds.

    Without a seed, the generator starts from a number that the global generator of torch draws.
    """

    _random: torch.Tensor | None = None

    def _generator(self) -> torch.Generator:
        """A generator in the current state; `_keep` stores its state."""
        made = torch.Generator()
        if self._random is None:
            made.manual_seed(int(torch.randint(2**62, ()).item()))
        else:
            made.set_state(self._random)
        return made

    def _integers(self, low: int, high: int, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
        """Integers from `low` to `high`, both included, on the CPU."""
        generator = self._generator()
        drawn = torch.randint(low, high + 1, shape, generator=generator)
        self._random = generator.get_state()
        return drawn

    def _uniform(self, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
        """Numbers in ``[0, 1)``, on the CPU."""
        generator = self._generator()
        drawn = torch.rand(shape, generator=generator)
        self._random = generator.get_state()
        return drawn

    def set_seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    def to(self, device: torch.device | str | int) -> Any:
        """Move the tensors, except the state of the generator."""
        state, self._random = self._random, None
        super().to(device)
        self._random = state
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return {} if self._random is None else {"random": self._random}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        random = state.get("random")
        self._random = None if random is None else random.cpu()  # as torch takes it; see `to`
