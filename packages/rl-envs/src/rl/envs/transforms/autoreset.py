"""Adapters for environments that reset by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import where_reset
from rl.core.specs import Bounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform, check_root_done, merged
from rl.envs.transforms._specs import Specs
from rl.envs.transforms._transformed_env import TransformedEnv

__all__ = ["AutoResetEnv", "AutoResetTransform", "VecGymEnvTransform"]


class AutoResetTransform(Transform):
    """Separates first observations of new episodes from outcomes of steps, for environments that reset by themselves.

    Such an environment resets finished elements within the step that ends their episode.

    The observation under ``next`` of a finished element is that of the new episode: it is kept for the reset that
    follows, and replaced by a value that marks it as unknown. The environment must not be reset for it again.

    Args:
        replace: Whether to put the fill values; the observation of the new episode stays under ``next`` if false.
        fill_float: Fill value for floating-point entries; ``"nan"`` or a number.
        fill_int: Fill value for integers.
        fill_bool: Fill value for booleans.

    Raises:
        SpecError: If a fill value is not one of an entry's spec, or the environment has no ``done`` at the root.

    Order: first.

    Example:
        >>> AutoResetTransform(fill_float=0.0)
        AutoResetTransform()
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        *,
        replace: bool = True,
        fill_float: float | str = "nan",
        fill_int: int = -1,
        fill_bool: bool = False,
    ) -> None:
        super().__init__()
        self.replace, self.fill_float, self.fill_int, self.fill_bool = replace, float(fill_float), fill_int, fill_bool
        self._begun: Any = None
        self._waiting: Tensor | None = None
        self._device: torch.device | None = None

    def _terminal(self, key: NestedKey, outcome: Any) -> Tensor:
        """Return the last observations of finished elements, ``[*B, ...]``."""
        value: Tensor = outcome[key]
        if not self.replace:
            return value
        kind = "bool" if value.dtype == torch.bool else "float" if value.is_floating_point() else "int"
        return torch.full_like(value, getattr(self, f"fill_{kind}"))

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def restart(mask: Tensor | None) -> Any:
            begun, waiting = self._begun, self._waiting
            self._begun = self._waiting = None
            if mask is None or begun is None or waiting is None:
                return self._shown(reset(mask))
            asked = mask & ~waiting
            root = begun.copy()
            if asked.any():
                root = merged(asked, self._shown(reset(asked)), root)
            return root

        def forward(root: Any) -> Any:
            outcome = step(root)
            done = outcome["done"]
            self._begun = self._waiting = None
            if done.any():
                self._keep(outcome, done)
            return self._shown(outcome)

        return restart, forward

    def _keep(self, outcome: Any, done: Tensor) -> None:
        begun = outcome.copy()
        for key in self._rewards:
            del begun[key]
        for key in self._flags:
            begun[key] = torch.zeros_like(begun[key])
        for key in self._observed:
            outcome[key] = where_reset(done, self._terminal(key, outcome), outcome[key])
        self._begun, self._waiting = self._shown(begun), done

    def _shown(self, entries: Any) -> Any:
        """Return the entries that the caller receives."""
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Allow the fill values in the observation."""
        self._device = specs.device or torch.device("cpu")  # that of the entries here
        check_root_done(specs, self)
        self._rewards, self._flags = leaf_keys(specs.reward), leaf_keys(specs.done)
        self._observed = leaf_keys(specs.observation)
        for key in self._observed if self.replace else ():
            spec = specs.observation[key]
            fill = self._terminal(key, {key: spec.zero()})
            if isinstance(spec, Bounded) and not fill.isnan().any() and not spec.is_in(fill):
                specs.observation[key] = Bounded(
                    spec.space.low.minimum(fill), spec.space.high.maximum(fill), dtype=spec.dtype, device=spec.device
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the observations of new episodes that no reset has returned yet."""
        if self._begun is None:
            return {}
        keys = [key for key in (*self._observed, *self._flags) if self._begun.get(key, None) is not None]
        return {"begun": [self._begun[key] for key in keys], "waiting": self._waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        waiting = state.get("waiting")
        self._waiting = None if waiting is None else waiting.to(self._device)
        keys = (*self._observed, *self._flags)
        begun = [leaf.to(self._device) for leaf in state.get("begun", [])]
        self._begun = dict(zip(keys, begun, strict=True)) if "begun" in state else None


class AutoResetEnv(TransformedEnv):
    """Environment that resets finished elements on its own, with an `AutoResetTransform`.

    Args:
        env: The environment.
        transform: An `AutoResetTransform`; a new one if None.

    Raises:
        ArgumentError: If `transform` is another.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> AutoResetEnv(PendulumEnv()).transform
        AutoResetTransform()
    """

    def __init__(self, env: Env, transform: AutoResetTransform | None = None) -> None:
        made = AutoResetTransform() if transform is None else transform
        if not isinstance(made, AutoResetTransform):
            raise ArgumentError(
                f"AutoResetEnv takes an AutoResetTransform, got {made!r}; append other transforms to it"
            )
        super().__init__(env, made)


class VecGymEnvTransform(AutoResetTransform):
    """Puts the last observation of an episode under ``next``, for an environment that writes it under another name.

    Vector environments of Gymnasium do so, and reset finished elements on their own. Reads each observation ``k``, and
    ``(final_name, k)``, valid where ``done`` is true; removes the latter. `GymWrapper` does so itself.

    Args:
        final_name: Prefix of the last observations.

    Raises:
        SpecError: If an observation has no last one.

    Order: first.

    Example:
        >>> VecGymEnvTransform("last").final_name
        'last'
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, final_name: str = "final") -> None:
        super().__init__(replace=False)
        self.final_name = final_name

    def _terminal(self, key: NestedKey, outcome: Any) -> Tensor:
        return outcome[self._final[key]]

    def _shown(self, entries: Any) -> Any:
        for key in self._final.values():
            if entries.get(key, None) is not None:
                del entries[key]
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Remove the entries of last observations."""
        keys = leaf_keys(specs.observation)
        self._final = {
            key: unwrap((self.final_name, *as_tuple(key))) for key in keys if as_tuple(key)[0] != self.final_name
        }
        for key, final in self._final.items():
            if final not in keys:
                raise SpecError(
                    f"{self!r} reads {key_str(final)}, the last observation {key_str(key)}, which the environment does"
                    " not write"
                )
        del specs.observation[self.final_name]
        super().transform_specs(specs)
