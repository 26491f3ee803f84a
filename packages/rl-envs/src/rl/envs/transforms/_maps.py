"""Specs of values that a function of tensors maps, and dimensions counted from the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.transforms._base import Parent, Transform


def mapped_spec(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Spec of ``function(value)``: with the mapped bounds if `spec` is bounded, unbounded otherwise.

    Args:
        spec: Spec of the value.
        function: Monotone in each element; it may change shape and dtype.

    Example:
        >>> mapped_spec(Bounded(0, 1, shape=(2,)), lambda value: 3 - value).space.low
        tensor([2., 2.])
    """
    if isinstance(spec, Bounded):
        ends = function(spec.space.low), function(spec.space.high)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        if not (low.isnan().any() or high.isnan().any()):
            return Bounded(low, high, dtype=low.dtype, device=spec.device)
    example = function(spec.zero())
    return Unbounded(example.shape, dtype=example.dtype, device=spec.device)


def from_the_end(dim: int, owner: str, name: str, *, allow_positive_dim: bool = False) -> int:
    """Return a dimension counted from the last one, so that any batch may come in front.

    Raises:
        ArgumentError: If it is counted from the first one and `allow_positive_dim` is false.
    """
    dim = as_integer(dim, owner, name)
    if dim >= 0 and not allow_positive_dim:
        raise ArgumentError(
            f"{owner}: {name} must be negative, counted from the last dimension, got {dim}; with"
            " allow_positive_dim=True it is counted after the batch of the environment"
        )
    return dim


def after_batch(dim: int, parent: Parent | None) -> int:
    """Return the dimension of a value whose first ones are the batch of `parent`, or of a full tensor without one."""
    return dim if dim < 0 or parent is None else dim + len(parent.base_env.batch_size)


class RandomTransform(Transform):
    """Base class of transforms that draw random numbers: from a generator that `set_seed` of the environment seeds.

    Without a seed, the generator starts from a number that the global generator of torch draws.
    """

    _random: torch.Tensor | None = None

    def _generator(self) -> torch.Generator:
        """Return a generator in the current state; `_keep` stores its state."""
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
