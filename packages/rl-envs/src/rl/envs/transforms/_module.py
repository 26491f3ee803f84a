"""Transform of a module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Self

import torch
from tensordict import TensorDict
from torch import nn

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, SpecError
from rl.core.keys import key_str
from rl.core.specs import Composite, Unbounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

SpecChange = Composite | Callable[[Composite], Composite]


@foreign_arguments()
class ModuleTransform(Transform):
    """Runs a module on what an environment writes, or on what it reads.

    The module reads its ``in_keys`` and writes its ``out_keys`` at the root after a reset and under ``next`` after a
    step; where one of its ``in_keys`` is missing, as a reward after a reset, it does not run. What it writes gets
    unbounded specs, of the shape and dtype of a run on zeros, unless they are given. With `inverse` it runs on the
    root before the environment reads its action; then it may read observations too.

    The parameters are those of the module: clones of the transform share them, and they are no part of the state of
    the environment.

    Args:
        module: Module on TensorDicts, with ``in_keys`` and ``out_keys``.
        module_factory: Function that creates the module, in place of `module`.
        no_grad: Whether it runs without gradients.
        inverse: Whether it maps what the environment reads.
        device: Device of the module, if it is another one: entries move there and back.
        observation_spec_transform: Specs of the observations of one element, or a function from those of the
            environment; those of a run on zeros if None.
        action_spec_transform: The same for the actions of the caller; those of the environment if None.
        reward_spec_transform: The same for the rewards; those of a run on zeros if None.
        done_spec_transform: The same for the flags; those of the environment if None.
        state_spec_transform: The same for the state; those of the environment if None.

    Raises:
        ArgumentError: If there is not either a module or a factory, or the module has no keys.
        SpecError: If the environment lacks an entry.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> encoder = TensorDictModule(torch.nn.Linear(3, 8), ["observation"], ["features"])
        >>> env = TransformedEnv(PendulumEnv(), ModuleTransform(module=encoder, no_grad=True))
        >>> env.rollout(2)["next", "features"].shape
        torch.Size([2, 8])
    """

    leafwise: ClassVar[bool] = False

    def __init__(
        self,
        *,
        module: Any = None,
        module_factory: Callable[[], Any] | None = None,
        no_grad: bool = False,
        inverse: bool = False,
        device: torch.device | str | int | None = None,
        observation_spec_transform: SpecChange | None = None,
        action_spec_transform: SpecChange | None = None,
        reward_spec_transform: SpecChange | None = None,
        done_spec_transform: SpecChange | None = None,
        state_spec_transform: SpecChange | None = None,
    ) -> None:
        if (module is None) == (module_factory is None):
            raise ArgumentError("ModuleTransform takes either module= or module_factory=")
        self.module = module if module_factory is None else module_factory()
        if not hasattr(self.module, "in_keys") or not hasattr(self.module, "out_keys"):
            raise ArgumentError(
                f"ModuleTransform runs a module with in_keys and out_keys, got {type(self.module).__name__}: wrap it in"
                " tensordict.nn.TensorDictModule(module, in_keys, out_keys)"
            )
        keys = self.module.in_keys, self.module.out_keys
        super().__init__(*(() if inverse else keys), *(((), (), *reversed(keys)) if inverse else ()))
        self.no_grad, self.inverse, self.device = no_grad, inverse, device
        self._changes: dict[str, SpecChange | None] = {
            "observation": observation_spec_transform,
            "action": action_spec_transform,
            "reward": reward_spec_transform,
            "done": done_spec_transform,
            "state": state_spec_transform,
        }

    def has_inverse(self) -> bool:
        """Whether it maps what the environment reads."""
        return self.inverse

    def to(self, device: torch.device | str | int) -> Self:
        """Move the module to a device, unless it has one of its own, and return the transform."""
        if self.device is None and isinstance(self.module, nn.Module):
            self.module.to(device)
        return self

    def _call(self, entries: Any) -> Any:
        return entries if self.inverse else self._run(entries)

    def _inv(self, root: Any) -> Any:
        return self._run(root) if self.inverse else root

    def _run(self, entries: Any) -> Any:
        values = [entries.get(key, None) for key in self.module.in_keys]
        if any(value is None for value in values):
            return entries
        given = entries.select(*self.module.in_keys)
        with torch.no_grad() if self.no_grad else nullcontext():
            out = self.module(given if self.device is None else given.to(self.device)).select(*self.module.out_keys)
        return entries.update(out if self.device is None else out.to(values[0].device))

    def transform_specs(self, specs: Specs) -> None:
        """Derive the specs of what the module writes, or take the given ones."""
        if self.inverse:
            for key in self.in_keys_inv:
                specs.read(key, self)
        else:
            self._derive(specs)
        for role, change in self._changes.items():
            if change is not None:
                spec = change if isinstance(change, Composite) else change(getattr(specs, role).clone())
                if not isinstance(spec, Composite):
                    raise ArgumentError(
                        f"{self!r}: {role}_spec_transform must return a Composite, got {type(spec).__name__}"
                    )
                setattr(specs, role, spec)
        known = (specs.action, specs.state, specs.observation)
        for key in self.out_keys_inv:
            if all(spec.get(key, None) is None for spec in known):
                raise SpecError(f"{self!r} reads {key_str(key)}, which has no spec: pass action_spec_transform=")

    def _derive(self, specs: Specs) -> None:
        for key in self.in_keys:
            specs.written(key, self)
        parts = (specs.observation, specs.reward, specs.done)
        zeros = TensorDict({}, [1])  # a batch of one: some modules cannot run without
        for part in parts:
            zeros.update(part.zero((1,)))
        with torch.no_grad():
            out = self._run(zeros)
        for key in self.out_keys:
            value = out.get(key)[0]
            owner = next((part for part in parts if part.get(key, None) is not None), specs.observation)
            if owner is not specs.done:
                owner[key] = Unbounded(value.shape, dtype=value.dtype, device=value.device)

    def __repr__(self) -> str:
        return f"ModuleTransform(module={type(self.module).__name__}, inverse={self.inverse})"
