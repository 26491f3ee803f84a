"""`SimulatorEnv`: base class of environments that step simulators which hold their own state."""

# ruff: noqa: SLF001  # a class compares its own hooks with those of a subclass

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, SpecError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import as_tuple, key_str
from rl.core.specs import Composite, TensorSpec
from rl.envs.base._base import EnvBase
from rl.envs.base._checks import check_private
from rl.envs.base._leaf import LeafCalls, LeafEnvBase
from rl.envs.base._specs import FLAGS, flag_spec
from rl.envs.gym._stepping import Codec, GymLeaves


class SimulatorEnv(LeafEnvBase):
    """Environment on `GymLeaves`; a subclass calls `_use` at the end of its constructor."""

    _sim: Any  # GymLeaves, or an object with its methods
    _rename: str = "rename it in the simulator"
    """Remedy for an observation with a reserved name."""

    def _use(self, sim: Any, frame: TensorSpec | None) -> None:
        """Step `sim` from now on, and assign the specs of its codec.

        Args:
            sim: A `GymLeaves`, or an object with its methods.
            frame: Spec of ``pixels``; None without them.

        Raises:
            SpecError: If an observation has a reserved name.
        """
        self._sim, codec = sim, sim.codec
        seen = Composite({})
        for place in codec.observations:
            if as_tuple(place.key)[0] in {"action", "reward", "next", *FLAGS}:
                raise SpecError(
                    f"{type(self).__name__}: the simulator has an observation {key_str(place.key)}, which is a reserved"
                    f" name: {self._rename}"
                )
            check_private(place.key, type(self).__name__, self._rename)
            seen[place.key] = place.spec
        for name, spec in codec.infos.items():
            if seen.get(name, None) is not None:
                raise ArgumentError(f"{type(self).__name__}: info_keys has {name!r}, which is an observation already")
            check_private(name, type(self).__name__, "leave it out, or rename it with a gymnasium.Wrapper")
            seen[name] = spec
        if frame is not None:
            seen["pixels"] = frame
        self.observation_spec = seen
        for place in codec.actions:
            check_private(place.key, type(self).__name__, self._rename)
        self.action_spec = Composite({place.key: place.spec for place in codec.actions})
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in FLAGS})
        self._has_text = any(place.spec.dtype is None for place in (*codec.observations, *codec.actions))

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        return self._sim.reset(mask)

    def _step_leaves(self, root: Leaves) -> Leaves:
        return self._sim.step(root)

    def _reset_rows(self, current: Leaves, mask: Tensor) -> Leaves | None:
        if type(self)._reset_leaves is not SimulatorEnv._reset_leaves:
            return None  # a subclass that changes resets changes partial ones too
        return self._sim.reset_rows(current, mask)

    def _play_leaves(self, root: Leaves, actions: Leaves, *, stop: bool) -> tuple[Leaves, Leaves] | None:
        kind = type(self)
        changed = kind._reset_leaves, kind._step_leaves, kind.lowered
        own = SimulatorEnv._reset_leaves, SimulatorEnv._step_leaves, SimulatorEnv.lowered
        if changed != own or not isinstance(self._sim, GymLeaves):
            return None
        return self._sim.play(root, actions, stop=stop)

    @classmethod
    def _step_together(cls, envs: Sequence[Any]) -> LeafCalls | None:
        if (cls._reset_leaves, cls._step_leaves) != (SimulatorEnv._reset_leaves, SimulatorEnv._step_leaves):
            return None
        parts: list[GymLeaves] = []
        for env in envs:
            if env.batch_size or env._has_text or not isinstance(env._sim, GymLeaves) or not envs[0]._is_like(env):
                return None
            parts.append(env._sim)
        together = GymLeaves.together(parts)
        return LeafCalls(together.reset, together.step, together.reset_rows)

    def _is_like(self, other: Any) -> bool:
        """Whether the codec of this environment is right for the simulator of another one."""
        raise NotImplementedError

    @property
    def from_pixels(self) -> bool:
        """Whether a rendered frame is written under ``pixels``."""
        return self._sim.pixels

    def lowered(self) -> LeafEnv | None:
        """Return the leaf form; None if an entry is text, which is no tensor."""
        return None if self._has_text else super().lowered()

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        """Move the tensors to a device; the simulator stays where it is. See `EnvBase.to`."""
        moved = super().to(target)
        if moved is self:
            old = self._sim.codec
            more: dict[str, Any] = {"batched": old.batched, "device": self.device, "owner": old.owner}
            self._sim.use(Codec(old.observations, old.actions, old.infos, **more))
        return moved

    def compile(self, **kwargs: Any) -> Self:
        """Raise an error: a simulator is not written in torch."""
        EnvBase.compile(self, **kwargs)
        return self

    def _set_seed(self, seed: int) -> None:
        if seed < 0:
            raise ArgumentError(f"{type(self).__name__}.set_seed: the simulator takes seeds from 0 on, got {seed}")
        self._sim.seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return how each episode began (its seed, or the simulator's generator) and its actions.

        Returns:
            Tensors and plain containers; ``{"restorable": False}`` for vector environments, and for simulators
            without a known generator.
        """
        return self._sim.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Repeat the actions of the episodes in `state`.

        Returns:
            Whether each simulator was restored exactly. If not, a warning was issued, and the caller must reset.

        Raises:
            CheckpointError: If the number of environments differs.
        """
        return self._sim.load_state_dict(state, repr(self))

    def _close(self) -> None:
        self._sim.close()
