"""`TransformedEnv`: an environment with transforms around it."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import indent
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.core.interfaces import Env, Leaves
from rl.envs import _foreign
from rl.envs.base._adapter import as_env
from rl.envs.base._base import EnvBase
from rl.envs.base._checks import check_result
from rl.envs.base._resume import warn_not_restorable
from rl.envs.transforms._base import Transform
from rl.envs.transforms._compose import Compose, parts_of
from rl.envs.transforms._function import as_transform

__all__ = ["TransformedEnv"]


@_foreign.transformed_env
class TransformedEnv(EnvBase):
    """An environment seen through transforms.

    Its specs follow from those of the environment and the transforms. It has a leaf form if the environment and all
    transforms have one. Whatever else the environment offers (``render``, ...) is reached through it.

    Args:
        env: an `EnvBase`, or any environment of the `rl.core.interfaces.Env` protocol (see `as_env`); closed with this
            one.
        transform: a `Transform`, a function from TensorDict to TensorDict, or None for an empty `Compose`.

    Raises:
        SpecError: if `env` lacks members of the protocol; they are named.
        RLError: if the transform belongs to another environment.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=3))
        >>> env.rollout(10)["step_count"].flatten()
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        env: Env,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
    ) -> None:
        env = self.base_env = as_env(env)
        self.transform = as_transform(transform) if transform is not None else Compose()
        super().__init__(batch_size=env.batch_size, device=env.device)
        self.transform.set_parent(self)
        self.refresh()

    def refresh(self) -> None:
        """Derive the specs anew, after a transform or the specs of the environment changed."""
        base = self.base_env
        self.observation_spec = self.transform.transform_observation_spec(base.observation_spec_unbatched.clone())
        self.action_spec = self.transform.transform_action_spec(base.full_action_spec_unbatched.clone())
        self.reward_spec = self.transform.transform_reward_spec(base.full_reward_spec_unbatched.clone())
        self.done_spec = self.transform.transform_done_spec(base.done_spec_unbatched.clone())
        self.state_spec = self.transform.transform_state_spec(base.state_spec_unbatched.clone())
        self._inverts = any(type(one)._inv is not Transform._inv for one in parts_of(self.transform))

    def append_transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> TransformedEnv:
        """Add a transform at the outer end of this environment, and return it."""
        if not isinstance(self.transform, Compose):
            inner = self.transform
            inner.set_parent(None)
            self.transform = Compose(inner)
            self.transform.set_parent(self)
        self.transform.append(transform)
        return self

    # ---- TensorDict form

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        base = self.base_env
        fresh = base._reset(tensordict)
        check_result(base, fresh, tensordict, "_reset")
        base._rl_flags.clear(fresh, base.full_done_spec)
        if not base._rl_reset_checked:
            base._rl_check_reset(fresh)
        mask = None if tensordict is None else tensordict.get("_reset", None)
        return self.transform._reset(fresh, mask)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        base = self.base_env
        inner = self.transform._inv(tensordict.copy()) if self._inverts else tensordict
        outcome = base._rl_flags.complete(base._step(inner), base.full_done_spec, base._rl_name)
        if not base._rl_step_checked:
            base._rl_check_step(outcome)
        return self.transform._step(tensordict, outcome)

    # ---- leaf form

    def _rl_leafwise(self) -> bool:
        return super()._rl_leafwise() and self.transform.is_leafwise() and self.base_env.lowered() is not None

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        fresh = self.base_env._reset_leaves(mask)
        return self.transform._reset(fresh, mask)

    def _step_leaves(self, root: Leaves) -> Leaves:
        inner = self.transform._inv(dict(root)) if self._inverts else root
        outcome = self.base_env._step_leaves(inner)
        return self.transform._step(root, outcome)

    # ---- the rest goes to the environment

    def set_seed(self, seed: int) -> int:
        return self.base_env.set_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The states of the environment and of the transforms."""
        inner = self.base_env.state_dict()
        return {
            "restorable": bool(inner.get("restorable", False)),
            "env": inner,
            "transform": self.transform.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue where `state` was taken.

        Raises:
            CheckpointError: if `state` is not one of such an environment.
        """
        if not {"env", "transform"} <= set(state):
            if state.get("restorable", True):
                raise CheckpointError(f"{type(self).__name__} cannot load a state with the entries {sorted(state)}")
            warn_not_restorable(type(self).__name__)
            return False
        self.transform.load_state_dict(state["transform"])
        return self.base_env.load_state_dict(state["env"])

    def _close(self) -> None:
        self.base_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in {"base_env", "transform"}:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        env = self.base_env
        while isinstance(env, TransformedEnv):
            env = env.base_env
        try:
            return getattr(env, name)
        except AttributeError as error:
            if hasattr(type(env), name):  # a property that failed: its own error says why
                raise
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, nor has its environment {env._rl_name}",
                name=name,
                obj=self,
            ) from error

    def __repr__(self) -> str:
        parts = f"env={self.base_env!r},\ntransform={self.transform!r}"
        return f"{type(self).__name__}(\n{indent(parts, '    ')})"
