"""Environments and transforms in TorchRL's spelling: specs with the batch, modules, hooks by their names there."""

from __future__ import annotations

from contextlib import ContextDecorator
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl.core.arguments import one_of
from rl.core.specs import Composite, TensorSpec
from rl.envs import EnvBase as UnbatchedEnvBase
from rl.envs import Transform as RenamedTransform

# ruff: noqa: SLF001  # a transform calls its own hooks

_SPECS = frozenset(
    f"{full}{role}_spec" for full in ("", "full_") for role in ("observation", "action", "reward", "done", "state")
)


class EnvBase(UnbatchedEnvBase, nn.Module):  # pyright: ignore[reportIncompatibleMethodOverride]  # ours come first
    """Base class of environments that are written for TorchRL: `rl.envs.EnvBase`, and a `torch.nn.Module`.

    A spec that begins with the batch of the environment is assigned without it; one that does not is for one element.
    Specs may be assigned before ``super().__init__()``.
    Networks and parameters that are assigned are registered, moved by `to`, and shown by `parameters`.
    ``state_dict`` is that of the environment, without parameters.

    Args:
        device: Device of all tensors.
        batch_size: Number of elements in each batch dimension.
        options: Arguments of `rl.envs.EnvBase`, and those of TorchRL that are ignored at their default.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.core import Bounded, Composite, Unbounded
        >>> class Walk(EnvBase):
        ...     def __init__(self):
        ...         super().__init__(batch_size=[3])
        ...         self.observation_spec = Composite(observation=Unbounded((3, 1)), shape=(3,))
        ...         self.action_spec = Bounded(-1, 1, shape=(3, 1))
        ...     def _reset(self, tensordict=None, **kwargs):
        ...         return TensorDict(observation=torch.zeros(3, 1), batch_size=self.batch_size)
        ...     def _step(self, tensordict):
        ...         place = tensordict["observation"] + tensordict["action"]
        ...         done = torch.zeros(3, 1, dtype=torch.bool)
        ...         return TensorDict(observation=place, reward=place.abs(), done=done, batch_size=self.batch_size)
        >>> Walk().rollout(4).batch_size, Walk().action_spec.shape
        (torch.Size([3, 4]), torch.Size([3, 1]))
    """

    _given_specs: dict[str, Any]

    def __new__(cls, *args: Any, _batch_locked: bool = True, **kwargs: Any) -> Self:
        """Create an environment from the arguments of its constructor, which TorchRL passes here too."""
        del args, kwargs
        self = super().__new__(cls)
        nn.Module.__init__(self)  # parameters and specs may be assigned before `__init__`
        if not _batch_locked:
            object.__setattr__(self, "batch_locked", False)
        given: dict[str, Any] = {}
        for name in ("_output_spec", "_input_spec"):  # of the class, by a `__new__` of a subclass
            given |= dict(getattr(cls, name, {}).items())
        object.__setattr__(self, "_given_specs", {name: spec.clone() for name, spec in given.items()})
        return self

    def __init__(
        self, *, device: torch.device | str | int | None = None, batch_size: Any = None, **options: Any
    ) -> None:
        UnbatchedEnvBase.__init__(self, device=device, batch_size=() if batch_size is None else batch_size, **options)
        for name, spec in self._given_specs.items():
            setattr(self, name, spec)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.endswith("_spec_unbatched"):
            super().__setattr__(name.removesuffix("_unbatched"), value)
            return
        if name in _SPECS and "_rl" not in vars(self):
            self._given_specs[name] = value
            return
        if name in _SPECS and isinstance(value, TensorSpec):
            value = _one_element(value, self.batch_size)
        super().__setattr__(name, value)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; constructors and a `close` that are written for TorchRL assign it."""
        return super().is_closed

    @is_closed.setter
    def is_closed(self, value: bool) -> None:
        if "_rl" in vars(self):
            self._rl.closed = value

    def to(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, target: torch.device | str | int | torch.dtype
    ) -> Any:
        """Move the environment and its parameters; see `rl.envs.EnvBase.to`."""
        nn.Module.to(self, target)
        return super().to(target)


def gym_backend(submodule: str | None = None) -> Any:
    """Return Gymnasium, the only back end, or one of its modules."""
    return import_module("gymnasium" if submodule is None else f"gymnasium.{submodule}")


class set_gym_backend(ContextDecorator):  # noqa: N801  # TorchRL's name
    """Accept Gymnasium as the back end of `GymEnv`, by name, as a module, or as a function that returns it.

    Raises:
        ArgumentError: If it is another one.

    Example:
        >>> with set_gym_backend("gymnasium"):
        ...     gym_backend().__name__
        'gymnasium'
    """

    def __init__(self, backend: Any) -> None:
        named = backend if isinstance(backend, (str, ModuleType)) else backend()
        one_of(getattr(named, "__name__", named), "set_gym_backend", "backend", ["gymnasium"])

    def set(self) -> None:
        """Leave Gymnasium as it is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End a ``with`` block."""


class _Unchecked(RenamedTransform):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super(RenamedTransform, cls).__init_subclass__(**kwargs)  # which rejects the names of TorchRL's hooks


class Transform(_Unchecked):
    """Base class of transforms that are written for TorchRL: `rl.envs.Transform`, whose hooks have other names.

    Subclasses override ``_apply_transform(value)``, ``_inv_apply_transform(value)``, ``_call(next_tensordict)``,
    ``_reset(tensordict, tensordict_reset)``, ``_step(tensordict, next_tensordict)``, ``_inv_call(tensordict)`` and
    ``transform_*_spec(spec)``, whose specs have the batch of the environment. It is no `torch.nn.Module`: that has
    an ``_apply`` of its own.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> class Double(Transform):
        ...     def _apply_transform(self, obs):
        ...         return 2 * obs
        >>> env = TransformedEnv(PendulumEnv(), Double(in_keys=["reward"]))
        >>> env.rollout(3).batch_size
        torch.Size([3])
    """

    leafwise = False

    def register_buffer(self, name: str, tensor: torch.Tensor | None) -> None:
        """Keep a tensor, which `to` moves."""
        setattr(self, name, tensor)

    # The hooks of TorchRL, with what they do there by default.

    def _apply_transform(self, obs: Any) -> Any:
        return obs

    def _inv_apply_transform(self, state: Any) -> Any:
        return state

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._inv(tensordict)

    def _reset(  # pyright: ignore[reportIncompatibleMethodOverride]  # `_wrap` calls it
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        del tensordict
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:  # pyright: ignore[reportIncompatibleMethodOverride]
        del tensordict
        return self._call(next_tensordict)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        """Map the specs of observations."""
        return observation_spec

    def transform_reward_spec(self, reward_spec: Any) -> Any:
        """Map the specs of rewards."""
        return reward_spec

    def transform_done_spec(self, done_spec: Any) -> Any:
        """Map the specs of done flags."""
        return done_spec

    def transform_action_spec(self, action_spec: Any) -> Any:
        """Map the specs of actions."""
        return action_spec

    def transform_state_spec(self, state_spec: Any) -> Any:
        """Map the specs of other inputs."""
        return state_spec

    def transform_output_spec(self, output_spec: Any) -> Any:
        """Map all specs of outputs, under ``full_observation_spec`` and its like."""
        return self._transform_each(output_spec, "observation", "reward", "done")

    def transform_input_spec(self, input_spec: Any) -> Any:
        """Map all specs of inputs, under ``full_action_spec`` and ``full_state_spec``."""
        return self._transform_each(input_spec, "action", "state")

    def _transform_each(self, specs: Any, *roles: str) -> Any:
        for role in roles:
            specs[f"full_{role}_spec"] = getattr(self, f"transform_{role}_spec")(specs[f"full_{role}_spec"])
        return specs

    # What rl-envs calls.

    def _apply(self, value: Any) -> Any:
        return self._apply_transform(value)

    def _inverse(self, value: Any) -> Any:
        return self._inv_apply_transform(value)

    def _inv(self, root: Any) -> Any:
        return self._inv_call(root)

    def has_inverse(self) -> bool:
        """Whether it maps what the environment reads."""
        return bool(self.in_keys_inv) or type(self)._inv_call is not Transform._inv_call

    def transform_specs(self, specs: Any) -> None:
        """Map the specs of an environment by the hooks of TorchRL; see `rl.envs.Transform`."""
        batch = specs.batch_size
        for name, roles in (("output", ("observation", "reward", "done")), ("input", ("action", "state"))):
            full = {f"full_{role}_spec": getattr(specs, role).expand(batch) for role in roles}
            mapped = getattr(self, f"transform_{name}_spec")(Composite(full, shape=batch))
            for role in roles:
                setattr(specs, role, _one_element(mapped[f"full_{role}_spec"], batch))

    def _wrap(self, reset: Any, step: Any) -> Any:
        def restart(mask: torch.Tensor | None) -> Any:
            fresh = reset(mask)
            given = TensorDict({} if mask is None else {"_reset": mask}, fresh.batch_size, device=fresh.device)
            return self._guarded(self._reset, given, fresh)

        def forward(root: Any) -> Any:
            inner = self._guarded(self._inv_call, root.copy()) if self.has_inverse() else root
            return self._guarded(self._step, root, step(inner))

        return restart, forward


class ObservationTransform(Transform):
    """A transform that also maps what a reset writes."""

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        del tensordict
        return self._call(tensordict_reset)


def _one_element(spec: Any, batch: torch.Size) -> Any:
    """Return a spec without the batch, if it begins with it."""
    return spec[(0,) * len(batch)] if batch and spec.shape[: len(batch)] == batch else spec
