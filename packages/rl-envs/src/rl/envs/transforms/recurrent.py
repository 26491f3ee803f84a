"""Transforms for recurrent policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, SpecError, issue_warning
from rl.core.keys import NestedKey, key_str, nearest, unwrap
from rl.core.specs import Composite, TensorSpec, Unbounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs
from rl.envs.transforms._transformed_env import Compose

__all__ = ["TensorDictPrimer", "gSDENoise", "get_primers_from_module"]


Value = float | Tensor


@foreign_arguments()
class TensorDictPrimer(Transform):
    """Writes entries at the root when an episode begins: the start of what a policy carries from step to step.

    A recurrent policy reads its state at the root and writes the following one under ``next``, whence it moves to the
    next root; this transform puts the first one there. ``policy.make_tensordict_primer()`` returns the one that fits; a
    `Collector` does without, as it starts such states itself.

    Args:
        primers: Specs by key, for one element of the environment's batch; a dictionary or a `Composite`. Of a composite
            with a batch, the specs of its first element are taken.
        random: Whether to draw from the specs at each reset, instead of `default_value`.
        default_value: Value of every element of an entry, a number or a tensor of the spec's shape; or such values by
            key, where those that are not named are 0.
        others: Specs by name, besides `primers`.

    Raises:
        ArgumentError: If there is no entry, or a default value does not fit its spec.
        SpecError: If the environment has such an entry.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> primer = TensorDictPrimer({("recurrent_state", "h"): Unbounded((1, 8))})
        >>> TransformedEnv(PendulumEnv(), primer).reset()["recurrent_state", "h"].shape
        torch.Size([1, 8])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        primers: Mapping[NestedKey, TensorSpec] | Composite | None = None,
        *,
        random: bool = False,
        default_value: Value | Mapping[NestedKey, Value] = 0.0,
        **others: TensorSpec,
    ) -> None:
        self.primers: dict[NestedKey, TensorSpec] = {**_leaves(primers), **_leaves(others)}
        if not self.primers:
            raise ArgumentError("TensorDictPrimer has nothing to write: give it specs by key, {key: spec}")
        super().__init__(out_keys=list(self.primers))
        self.in_keys = []
        self.random = random
        self._values = self._defaults(default_value)

    def _defaults(self, given: Value | Mapping[NestedKey, Value]) -> dict[NestedKey, Tensor]:
        """One element of each entry."""
        by_key = {unwrap(key): value for key, value in given.items()} if isinstance(given, Mapping) else None
        for key in by_key or ():
            if key not in self.primers:
                close = nearest(key, self.primers)
                hint = f"; did you mean {key_str(close)}?" if close is not None else ""
                raise ArgumentError(f"TensorDictPrimer got a default value for {key_str(key)}, which has no spec{hint}")
        values: dict[NestedKey, Tensor] = {}
        for key, spec in self.primers.items():
            value = given if by_key is None else by_key.get(key, 0.0)
            one = torch.as_tensor(value, dtype=spec.dtype)  # pyright: ignore[reportArgumentType]
            if one.ndim and one.shape != spec.shape:
                raise ArgumentError(
                    f"TensorDictPrimer: the default value of {key_str(key)} has the shape {tuple(one.shape)}, its"
                    f" spec {tuple(spec.shape)}"
                )
            values[key] = one.expand(spec.shape).clone()
        return values

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask  # the caller replaces the rows outside it
        assert self._parent is not None  # called by a parent only
        size, device = self._parent.batch_size, self._parent.device
        for key, value in self._values.items():
            fresh = self.primers[key].rand(size) if self.random else value.expand(*size, *value.shape).clone()
            root[key] = fresh if device is None else fresh.to(device)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        """Nothing: what follows is written by the policy."""
        del root
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the entries to the state."""
        for key, one in self.primers.items():
            if specs.state.get(key, None) is not None or specs.observation.get(key, None) is not None:
                raise SpecError(f"TensorDictPrimer writes {key_str(key)}, which the environment has already")
            specs.state[key] = one.clone()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(key_str(key) for key in self.primers)})"


class gSDENoise(TensorDictPrimer):  # noqa: N801  the name that users of TorchRL know
    """Draws the noise of `gSDEModule` of rl-modules, standard normal, when an episode begins.

    Raffin et al., "Smooth Exploration for Robotic Reinforcement Learning", 2021, section 3. It writes ``"_eps_gSDE"``,
    which a `Collector` leaves out of batches; where a loss reads the noise, use ``gSDEModule.make_tensordict_primer``.

    Args:
        state_dim: Width of the features.
        action_dim: Number of action dimensions.
        shape: Batch size of the environment, which may be left out.
        others: Further arguments of `TensorDictPrimer`.

    Raises:
        ArgumentError: If a width is missing.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(batch_size=(5,)), gSDENoise(state_dim=4, action_dim=1))
        >>> env.reset()["_eps_gSDE"].shape
        torch.Size([5, 1, 4])
    """

    def __init__(
        self,
        state_dim: int | None = None,
        action_dim: int | None = None,
        shape: Sequence[int] | None = None,
        **others: Any,
    ) -> None:
        if state_dim is None or action_dim is None:
            raise ArgumentError(
                f"gSDENoise needs state_dim and action_dim, got {state_dim} and {action_dim}: pass the width of the"
                " features and the number of action dimensions"
            )
        self.state_dim, self.action_dim = state_dim, action_dim
        batch = tuple(shape or ())
        noise = Unbounded((*batch, action_dim, state_dim))
        options: dict[str, Any] = {"random": True, **others}
        super().__init__(Composite({"_eps_gSDE": noise}, shape=batch), **options)


def get_primers_from_module(module: nn.Module, warn: bool = True) -> Transform | None:  # noqa: FBT001, FBT002  # as in TorchRL
    """Return the transform that starts the states of a policy: the primers of all of its parts.

    Args:
        module: Module whose parts have a method ``make_tensordict_primer``, as recurrent modules of rl-modules.
        warn: Whether to warn if there is none.

    Returns:
        A `TensorDictPrimer`, a `Compose` of several, or None.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> class Memory(nn.Module):
        ...     def make_tensordict_primer(self):
        ...         return TensorDictPrimer(h=Unbounded(8))
        >>> get_primers_from_module(nn.Sequential(nn.Linear(3, 8), Memory()))
        TensorDictPrimer('h')
    """
    parts: list[Any] = [part for part in module.modules() if hasattr(part, "make_tensordict_primer")]
    primers: list[Transform] = [part.make_tensordict_primer() for part in parts]
    if not primers and warn:
        issue_warning(f"{type(module).__name__} has no part with make_tensordict_primer: its policy has no state")
    return Compose(*primers) if len(primers) > 1 else primers[0] if primers else None


def _leaves(specs: Mapping[Any, Any] | Composite | None) -> dict[NestedKey, TensorSpec]:
    if specs is None:
        return {}
    if isinstance(specs, Composite):
        one: Any = specs
        while one.shape:  # an element of it: the environment adds the batch
            one = one[0]
        return {unwrap(key): one[key] for key in one.keys(include_nested=True, leaves_only=True)}
    found: dict[NestedKey, TensorSpec] = {}
    for key, spec in specs.items():
        if isinstance(spec, Composite):
            found |= {unwrap((*_tuple(key), *_tuple(inner))): leaf for inner, leaf in _leaves(spec).items()}
        elif isinstance(spec, TensorSpec):
            found[unwrap(key)] = spec
        else:
            raise ArgumentError(f"TensorDictPrimer takes specs by key, got {type(spec).__name__} under {key_str(key)}")
    return found


def _tuple(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
