"""The names under which an environment hands out its specs and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Composite, TensorSpec
from rl.envs.base._subclass import FromInit

if TYPE_CHECKING:
    from rl.envs.base._flags import Flags
    from rl.envs.base._specs import EnvSpecs

__all__ = ["SpecNames"]


class SpecNames:
    """Specs by name, with the batch in front; ``*_unbatched`` without it.

    ``action_spec``, ``reward_spec`` and ``state_spec`` give the leaf if there is just one, ``full_*_spec`` always the
    `Composite`. What is handed out is locked: assign a changed clone to change it.
    """

    _rl_specs: EnvSpecs = FromInit()  # pyright: ignore[reportAssignmentType]  # until it is set
    _rl_flags: Flags

    def _rl_assign_spec(self, role: str, spec: TensorSpec | None) -> None:
        raise NotImplementedError

    def _rl_leaf_or_all(self, spec: Composite) -> TensorSpec:
        keys = spec.keys(include_nested=True, leaves_only=True)
        return spec[keys[0]] if len(keys) == 1 else spec

    @property
    def observation_spec(self) -> Composite:
        """What resets and steps write, besides rewards and done flags."""
        return self._rl_specs.batched("observation")

    @observation_spec.setter
    def observation_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("observation", spec)

    @property
    def action_spec(self) -> TensorSpec:
        """What a step reads: the leaf if there is one action."""
        return self._rl_leaf_or_all(self.full_action_spec)

    @action_spec.setter
    def action_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("action", spec)

    @property
    def reward_spec(self) -> TensorSpec:
        """What a step writes as reward: the leaf if there is one."""
        return self._rl_leaf_or_all(self.full_reward_spec)

    @reward_spec.setter
    def reward_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("reward", spec)

    @property
    def done_spec(self) -> Composite:
        """The done flags."""
        return self.full_done_spec

    @done_spec.setter
    def done_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("done", spec)

    @property
    def state_spec(self) -> Composite:
        """What a step reads at the root besides the action."""
        return self.full_state_spec

    @state_spec.setter
    def state_spec(self, spec: TensorSpec | None) -> None:
        self._rl_assign_spec("state", spec)

    @property
    def full_observation_spec(self) -> Composite:
        """The same as `observation_spec`."""
        return self._rl_specs.batched("observation")

    @full_observation_spec.setter
    def full_observation_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("observation", spec)

    @property
    def full_action_spec(self) -> Composite:
        """All actions by key."""
        return self._rl_specs.batched("action")

    @full_action_spec.setter
    def full_action_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("action", spec)

    @property
    def full_reward_spec(self) -> Composite:
        """All rewards by key."""
        return self._rl_specs.batched("reward")

    @full_reward_spec.setter
    def full_reward_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("reward", spec)

    @property
    def full_done_spec(self) -> Composite:
        """All done flags by key."""
        return self._rl_specs.batched("done")

    @full_done_spec.setter
    def full_done_spec(self, spec: TensorSpec) -> None:
        self._rl_assign_spec("done", spec)

    @property
    def full_state_spec(self) -> Composite:
        """All state entries by key."""
        return self._rl_specs.batched("state")

    @full_state_spec.setter
    def full_state_spec(self, spec: TensorSpec | None) -> None:
        self._rl_assign_spec("state", spec)

    @property
    def observation_spec_unbatched(self) -> Composite:
        """`observation_spec` of one element."""
        return self._rl_specs.unbatched("observation")

    @property
    def action_spec_unbatched(self) -> TensorSpec:
        """`action_spec` of one element."""
        return self._rl_leaf_or_all(self._rl_specs.unbatched("action"))

    @property
    def reward_spec_unbatched(self) -> TensorSpec:
        """`reward_spec` of one element."""
        return self._rl_leaf_or_all(self._rl_specs.unbatched("reward"))

    @property
    def done_spec_unbatched(self) -> Composite:
        """`done_spec` of one element."""
        return self._rl_specs.unbatched("done")

    @property
    def state_spec_unbatched(self) -> Composite:
        """`state_spec` of one element."""
        return self._rl_specs.unbatched("state")

    @property
    def full_action_spec_unbatched(self) -> Composite:
        """`full_action_spec` of one element."""
        return self._rl_specs.unbatched("action")

    @property
    def full_reward_spec_unbatched(self) -> Composite:
        """`full_reward_spec` of one element."""
        return self._rl_specs.unbatched("reward")

    @property
    def full_done_spec_unbatched(self) -> Composite:
        """`full_done_spec` of one element."""
        return self._rl_specs.unbatched("done")

    @property
    def observation_keys(self) -> list[NestedKey]:
        """Keys of what is observed."""
        return self._rl_specs.keys("observation")

    @property
    def action_keys(self) -> list[NestedKey]:
        """Keys of the actions."""
        return self._rl_specs.keys("action")

    @property
    def reward_keys(self) -> list[NestedKey]:
        """Keys of the rewards, without the ``next`` under which a step writes them."""
        return self._rl_specs.keys("reward")

    @property
    def done_keys(self) -> list[NestedKey]:
        """Keys of all done flags."""
        return self._rl_specs.keys("done")

    @property
    def state_keys(self) -> list[NestedKey]:
        """Keys of what a step reads at the root besides the action."""
        return self._rl_specs.keys("state")

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Keys of the partial-reset masks, one beside each ``done``."""
        return self._rl_flags.reset_keys

    @property
    def action_key(self) -> NestedKey:
        """The key of the only action."""
        return self._rl_only("action")

    @property
    def reward_key(self) -> NestedKey:
        """The key of the only reward."""
        return self._rl_only("reward")

    @property
    def done_key(self) -> NestedKey:
        """The key of the only ``done``."""
        if len(self._rl_flags.done_keys) != 1:
            raise SpecError(
                f"{type(self).__name__} has {len(self._rl_flags.done_keys)} done keys, not one: use done_keys"
            )
        return self._rl_flags.done_keys[0]

    def _rl_only(self, role: str) -> NestedKey:
        keys = self._rl_specs.keys(role)
        if len(keys) != 1:
            raise SpecError(f"{type(self).__name__} has {len(keys)} {role} keys, not one: use {role}_keys")
        return keys[0]
