"""`EnvAdapter`: an environment of the `rl.core.interfaces.Env` protocol as an `EnvBase`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core.errors import RLError, SpecError
from rl.core.interfaces import Env, LeafEnv, missing_env_members
from rl.core.lowering import lower_env
from rl.core.specs import Composite
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._leaf import LeafCalls, LeafForm, reset_where
from rl.envs.base._rules import partial_root

__all__ = ["EnvAdapter", "as_env"]


class EnvAdapter(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Adapter that makes an environment of the `rl.core.interfaces.Env` protocol an `EnvBase`.

    `TransformedEnv`, `SerialEnv` and `EnvBase.rollout` work with it.

    Specs, steps, seeds, states and, if the environment has one, the leaf form are those of the environment. Done flags
    that it does not write are filled in by `rl.core.mdp.complete_done`. Public attributes that an `EnvBase` lacks are
    looked up in the environment. `as_env` applies the adapter where it is needed.

    Args:
        env: the environment; closed with this one.

    Raises:
        SpecError: if `env` lacks members of the protocol, or its specs do not begin with its batch size.

    Example:
        >>> from rl.core.testing import CountingEnv  # written against rl-core alone
        >>> from rl.envs import StepCounter
        >>> env = EnvAdapter(CountingEnv(length=5)).append_transform(StepCounter(max_steps=2))
        >>> env.rollout(10)["next", "truncated"].flatten()
        tensor([False,  True])
    """

    def __init__(self, env: Env) -> None:
        _check_protocol(env)
        self._name = type(env).__name__
        super().__init__(batch_size=env.batch_size, device=getattr(env, "device", None))
        self._rl.rename(self._name)
        self.base_env: Any = env
        self.observation_spec = self._of_one_element("observation_spec")
        self.action_spec = self._of_one_element("full_action_spec")
        self.reward_spec = self._of_one_element("full_reward_spec")
        self.done_spec = self._of_one_element("full_done_spec")
        if getattr(env, "full_state_spec", None) is not None:
            self.state_spec = self._of_one_element("full_state_spec")

    def _of_one_element(self, name: str) -> Composite:
        spec = getattr(self.base_env, name)
        if not isinstance(spec, Composite) or spec.shape != self.batch_size:
            got = f"one of shape {tuple(spec.shape)}" if isinstance(spec, Composite) else type(spec).__name__
            raise SpecError(
                f"{self._name}.{name} must be a Composite of shape {tuple(self.batch_size)}, the batch_size of the"
                f" environment, got {got}"
            )
        return spec[(0,) * len(self.batch_size)] if self.batch_size else spec

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        masks = () if tensordict is None else tensordict.values(include_nested=True, leaves_only=True)
        if tensordict is None or all(bool(mask.all()) for mask in masks):
            return self.base_env.reset().clone()
        return self.base_env.reset(partial_root(self.base_env, tensordict)).clone()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        stepped = self.base_env.step(tensordict.exclude("next", "_step"))
        return stepped.get("next").clone()  # the environment may write into the same memory at every step

    def lowered(self) -> LeafEnv | None:
        leaf = lower_env(self.base_env)
        if leaf is None:
            return None
        return LeafForm(self, LeafCalls(reset_where(self.base_env, leaf), leaf.step_leaves, leaf.reset_leaves))

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        if not isinstance(target, torch.dtype):
            if getattr(self.base_env, "to", None) is None:
                raise RLError(f"{self._name} cannot move to {target}: it has no method to(device)")
            self.base_env.to(target)
        return super().to(target)

    # ---- delegated to the environment

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        following = self.base_env.set_seed(seed)
        return seed if static_seed else following

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the environment, if it has one."""
        if getattr(self.base_env, "state_dict", None) is None:
            return {"restorable": False}
        return {"restorable": True, "env": self.base_env.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`."""
        if "env" not in state or getattr(self.base_env, "load_state_dict", None) is None:
            return super().load_state_dict(state)
        return self.base_env.load_state_dict(state["env"]) is not False

    def _close(self) -> None:
        self.base_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "base_env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        return getattr(self.base_env, name)

    def __repr__(self) -> str:
        return f"EnvAdapter({self.base_env!r})"


def as_env(env: Any) -> EnvBase:
    """Return `env` itself if it is an `EnvBase`, else an `EnvAdapter` around it.

    Args:
        env: an environment of the `rl.core.interfaces.Env` protocol.

    Raises:
        SpecError: if `env` lacks members of the protocol; they are named.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> as_env(CountingEnv())
        EnvAdapter(...)
        >>> from rl.envs import PendulumEnv
        >>> env = PendulumEnv()
        >>> as_env(env) is env
        True
    """
    return env if isinstance(env, EnvBase) else EnvAdapter(env)


def _check_protocol(env: Any) -> None:
    lacking = missing_env_members(env)
    if isinstance(env, type):
        raise SpecError(f"expected an environment, got the class {env.__name__}: pass {env.__name__}(...)")
    if lacking:
        raise SpecError(
            f"{type(env).__name__} is no environment: it lacks {', '.join(lacking)}. Inherit EnvBase or add the missing"
            " members of rl.core.interfaces.Env; wrap a Gymnasium environment as GymWrapper(env)"
        )
