"""`TransformedEnv`: an environment with transforms."""

# ruff: noqa: SLF001  # an environment calls the hooks of its transforms, which users do not call

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from textwrap import indent
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError, RLError, SpecError
from rl.core.interfaces import Env, LeafEnv
from rl.core.keys import NestedKey
from rl.envs import _foreign
from rl.envs.base._adapter import as_env
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._checks import warn_not_restorable
from rl.envs.base._leaf import LeafCalls, LeafForm, reset_where
from rl.envs.base._rules import partial_root, start_at
from rl.envs.base._specs import mask_shapes
from rl.envs.transforms._base import Transform
from rl.envs.transforms._compose import Compose
from rl.envs.transforms._function import as_transform
from rl.envs.transforms._specs import Specs

__all__ = ["TransformedEnv"]


@_foreign.transformed_env
class TransformedEnv(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Environment with transforms of its entries and actions.

    Its specs follow from those of the environment and the transforms. It has a leaf form if the environment has one
    and all transforms are leafwise. Other attributes (``render``, ...) are looked up in the environment. Assigning to
    ``transform`` replaces it; reset the environment then.

    Args:
        base_env: an `EnvBase`, or any environment of the `rl.core.interfaces.Env` protocol (see `as_env`); closed with
            this one.
        transform: a `Transform`, a function from TensorDict to TensorDict, or None for an empty `Compose`.

    Raises:
        SpecError: if `base_env` lacks members of the protocol; they are named.
        RLError: if the transform belongs to another environment.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=3))
        >>> env.rollout(10)["step_count"].flatten()
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        base_env: Env,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        inner: EnvBase = as_env(base_env)
        self.transform = Compose() if transform is None else as_transform(transform)
        if type(inner) is TransformedEnv:
            taken, inner = inner.transform, inner.base_env
            taken.set_parent(None)
            self.transform = Compose(taken, self.transform)
        self.base_env: EnvBase = inner
        self.transform.set_parent(self)
        self._masks: TensorDictBase | None = None
        self._start: TensorDictBase | None = None
        self.refresh()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: ``transform`` takes effect at once, and those of the environment inside are set there.

        Raises:
            RLError: for ``base_env``, or if a transform belongs to another environment.
            SpecError: if a transform does not fit the environment; it keeps the one that it has.
        """
        if name == "transform" and "_rl" in vars(self):
            self._replace_transform(as_transform(value))
        elif name == "base_env" and "_rl" in vars(self):
            raise RLError("base_env of TransformedEnv cannot be assigned: make TransformedEnv(env, transform.clone())")
        elif "_rl" in vars(self) and self._is_of_base_env(name):
            setattr(self.base_env, name, value)
        else:
            super().__setattr__(name, value)

    def _is_of_base_env(self, name: str) -> bool:
        own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        return not own and hasattr(self.base_env, name)

    def _replace_transform(self, transform: Transform) -> None:
        old = self.transform
        if transform is not old:
            transform.set_parent(self)
            old.set_parent(None)
        vars(self)["transform"] = transform
        try:
            self.refresh()
        except Exception:
            transform.set_parent(None)
            old.set_parent(self)
            vars(self)["transform"] = old
            self.refresh()
            raise

    def refresh(self) -> None:
        """Derive the specs again, after a transform or the specs of the environment changed."""
        base = self.base_env
        specs = Specs(
            observation=base.observation_spec_unbatched.clone(),
            action=base.full_action_spec_unbatched.clone(),
            reward=base.full_reward_spec_unbatched.clone(),
            done=base.done_spec_unbatched.clone(),
            state=base.state_spec_unbatched.clone(),
            batch_size=base.batch_size,
            device=base.device,
        )
        self.transform.transform_specs(specs)
        super().__init__(batch_size=specs.batch_size, device=specs.device)
        self.observation_spec = specs.observation
        self.action_spec = specs.action
        self.reward_spec = specs.reward
        self.done_spec = specs.done
        self.state_spec = specs.state
        self.batch_locked = base.batch_locked
        self._rl.legal_actions = TransformedEnv._legal_actions
        inner, own = base.full_action_spec, self.full_action_spec
        choices = mask_shapes(own)  # those of the environment, not of a transform that changes their number
        self._masked = [
            key
            for key, shape in mask_shapes(inner).items()
            if choices.get(key) == shape and inner[key].shape == own[key].shape
        ]
        self._reset_through, self._step_through = self.transform._wrap(self._reset_base, self._step_base)

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        changed = set(self.transform.in_keys_inv) & set(self.base_env.state_keys)
        self._start = self.transform._inv(tensordict.copy()) if changed else tensordict  # `inv` is for stored batches
        try:
            return self._reset(tensordict if tensordict.get("_reset", None) is not None else None)
        finally:
            self._start = None

    def _reset_base(self, mask: Tensor | None) -> TensorDictBase:
        if self._start is not None:
            start, self._start = self._start, None
            return start_at(self.base_env, start)
        if mask is None:
            return self.base_env.reset()
        masks = self._masks
        if masks is None or masks.get("_reset") is not mask:  # asked for by a transform
            masks = TensorDict({"_reset": mask}, self.base_env.batch_size)
        return self.base_env.reset(partial_root(self.base_env, masks))

    def _step_base(self, root: TensorDictBase) -> TensorDictBase:
        return self.base_env.step(root.exclude("next")).get("next")  # exclude: a shallow copy

    def append_transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> TransformedEnv:
        """Append a transform to this environment, and return the environment."""
        return self.insert_transform(len(self._chain()), transform)

    def insert_transform(
        self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]
    ) -> TransformedEnv:
        """Insert a transform before the one at `index`, 0 being nearest to the environment; return the environment."""
        self._chain().insert(index, transform)
        return self

    def _chain(self) -> Compose:
        if not isinstance(self.transform, Compose):
            inner = self.transform
            inner.set_parent(None)
            chain = vars(self)["transform"] = Compose(inner)  # with the same effect: the specs stay
            chain.set_parent(self)
            return chain
        return self.transform

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self._masks = tensordict
        return self._reset_through(None if tensordict is None else tensordict.get("_reset", None))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._step_through(tensordict)

    def with_batch(self, batch_size: Iterable[int]) -> TransformedEnv:
        size = torch.Size(batch_size)
        other = self._rl.other_batch.get(size)
        if other is None:
            if _is_stateful(self.transform.state_dict()):
                raise SpecError(
                    f"{self.transform!r} keeps a state of its own and needs a fixed batch: make the environment with"
                    f" batch_size={list(size)}"
                )
            other = TransformedEnv(self.base_env.with_batch(size), self.transform.clone())
            self._rl.other_batch = {size: other}  # the last one
        return other

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        if isinstance(target, torch.dtype):
            return super().to(target)
        self.base_env.to(target)
        self.transform.to(target)
        self.refresh()
        return self

    def compile(self, **kwargs: Any) -> TransformedEnv:
        """Compile the step of the environment inside; the transforms stay as they are."""
        self.base_env.compile(**kwargs)
        return self

    def eager(self) -> TransformedEnv:
        self.base_env.eager()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"base_env": self.base_env, "transform": self.transform}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _masks=None, _start=None)
        self.refresh()

    def lowered(self) -> LeafEnv | None:
        inner = self.base_env.lowered()
        if inner is None or not self.transform.is_leafwise():
            return None
        return LeafForm(self, LeafCalls(*self.transform._wrap(reset_where(self.base_env, inner), inner.step_leaves)))

    # ---- delegated to the environment

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        self.transform.set_seed(seed)
        more = {"static_seed": True} if static_seed else {}  # an override may not have it
        return self.base_env.set_seed(seed, **more)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the environment and of the transforms."""
        inner = self.base_env.state_dict()
        return {
            "restorable": bool(inner.get("restorable", False)),
            "env": inner,
            "transform": self.transform.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Raises:
            CheckpointError: if `state` was not saved by a `TransformedEnv`.
        """
        if not {"env", "transform"} <= set(state):
            if state.get("restorable", True):
                raise CheckpointError(f"{type(self).__name__} cannot load a state with the entries {sorted(state)}")
            warn_not_restorable(type(self).__name__)
            return False
        self.transform.load_state_dict(state["transform"])
        return self.base_env.load_state_dict(state["env"])

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self.base_env._set_options(options)

    def _legal_actions(self) -> Mapping[NestedKey, Tensor]:
        masks = {key: self.base_env.full_action_spec[key].mask for key in self._masked}
        return {key: mask for key, mask in masks.items() if mask is not None}

    def _close(self) -> None:
        self.base_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in {"base_env", "transform"}:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        env = self.base_env
        try:
            return getattr(env, name)
        except AttributeError as error:
            if hasattr(type(env), name):  # a property that failed: its own error says why
                raise
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, nor has its environment {env._rl.owner}",
                name=name,
                obj=self,
            ) from error

    def __repr__(self) -> str:
        parts = f"env={self.base_env!r},\ntransform={self.transform!r}"
        return f"{type(self).__name__}(\n{indent(parts, '    ')})"


def _is_stateful(state: Any) -> bool:
    """Whether a state holds anything but empty containers."""
    if isinstance(state, Mapping):
        return any(map(_is_stateful, state.values()))
    return any(map(_is_stateful, state)) if isinstance(state, list) else state is not None
