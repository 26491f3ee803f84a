"""`LeafEnvBase`: base class of environments that are written on tensors by key, and their fast form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError
from rl.core.interfaces import Env, LeafEnv, Leaves, missing_env_members
from rl.core.keys import key_str
from rl.core.mdp import merge_reset
from rl.core.specs import Composite
from rl.core.tensor_functions import as_tensor_env
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._checks import check_action
from rl.envs.base._rules import partial_root
from rl.envs.base._specs import FLAGS, leaf_keys

# ruff: noqa: SLF001  # the parts of an environment share its rules, which users do not see


def _no_rows(current: Leaves, mask: Tensor) -> Leaves | None:
    del current, mask


def can_write_rows(current: Mapping[Any, Tensor], keys: Iterable[Any]) -> bool:
    """Whether `write_rows` can write `keys`: the entries are on the CPU and need no gradient.

    Raises:
        ContractError: If one is missing.
    """
    for key in keys:
        if key not in current:
            raise ContractError(
                f"a partial reset reads {key_str(key)} of what is not reset, which is not in the input (keys:"
                f" {list(current)}); pass the data of the last step along with the mask"
            )
    return all(current[key].is_cpu and not current[key].requires_grad for key in keys)


def write_rows(current: Mapping[Any, Tensor], mask: Tensor, chosen: Any, fresh: Mapping[Any, Any]) -> Leaves:
    """Return the root entries after a partial reset: copies of those before it, with the rows of the new episodes.

    Args:
        current: Entries before the reset, ``[*B, ...]``.
        mask: Mask bool ``[*B, 1]`` of the elements that are reset; their done flags become false.
        chosen: Indices of these elements in the flattened batch.
        fresh: Entries of their new episodes, arrays ``[len(chosen), ...]``; values are not read if `chosen` is empty.
    """
    if current["done"] is mask:  # every episode that ended is reset: no flag is left
        arrays = [np.zeros(mask.shape, np.bool_) for _ in FLAGS]
    else:
        kept = ~mask.numpy()
        arrays = [current[name].numpy() & kept for name in FLAGS]
    leaves: Leaves = {name: torch.from_numpy(array) for name, array in zip(FLAGS, arrays, strict=True)}
    for key, rows in fresh.items():
        array = np.array(current[key].numpy(), order="C")
        if len(chosen):
            array.reshape(mask.numel(), *rows.shape[1:])[chosen] = rows
        leaves[key] = torch.from_numpy(array)
    return leaves


@dataclass(frozen=True)
class LeafCalls:
    """The functions of a leaf form; see `LeafEnvBase` for each.

    Args:
        reset: Method ``_reset_leaves``.
        step: Method ``_step_leaves``.
        reset_rows: Method ``_reset_rows``.
    """

    reset: Callable[[Tensor | None], Leaves]
    step: Callable[[Leaves], Leaves]
    reset_rows: Callable[[Leaves, Tensor], Leaves | None] = _no_rows


class LeafEnvBase(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Base class of environments that are written on tensors by flat key, without TensorDicts.

    The constructor and the specs are those of `EnvBase`. The author writes two methods, which return fresh tensors:

    - ``_reset_leaves(mask)`` returns the root entries of new episodes, done flags included. `mask` (bool
      ``[*B, 1]``) marks the elements of a partial reset, None means all; rows outside the mask are ignored.
    - ``_step_leaves(root)`` returns the entries under ``next``: observations, rewards and done flags.

    `reset`, `step` and everything else that takes TensorDicts is derived from them and final: a subclass that
    overrides it raises an RLError when the class is created. Collectors call the two methods without building a
    TensorDict.

    Four methods are optional:

    - ``_set_state_leaves(state)`` returns the root entries of episodes that begin in `state`, the entries of
      `state_spec` by key; done flags may be left out. ``reset(td, set_state=True)`` calls it.

    - ``_reset_rows(current, mask)`` returns all root entries after a partial reset, or None for the general path
      (``_reset_leaves``, then a merge with `current`). It must not change the tensors of `current`.
    - ``_play_leaves(root, actions, stop)`` takes a step with each of the `actions` ``[T, ...]``, with resets in
      between, or up to the first end of an episode if `stop`. It returns the root entries without actions and the
      entries under ``next`` of the steps that were taken, ``[T, ...]``, or None for the general path, step by step.
      `rollout` calls it for random actions of an environment without a batch.
    - ``_step_together(envs)``, a class method, returns `LeafCalls` that step several environments of the class at
      once, as batch ``[n, *B]``, or None. `SerialEnv` calls it.

    Args:
        batch_size: Number of elements in each batch dimension.
        device: Device of all tensors; that of the simulator if None.
        debug: Whether to compare every reset and step with the specs, not only the first.

    Raises:
        RLError: When a subclass is created that overrides the derived form.

    Example:
        >>> from rl.core.specs import Bounded, Composite, Unbounded
        >>> class Walk(LeafEnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.observation_spec = Composite(observation=Unbounded(1))
        ...         self.action_spec = Bounded(-1, 1, shape=(1,))
        ...     def _reset_leaves(self, mask):
        ...         over = torch.zeros(1, dtype=torch.bool)
        ...         return {"observation": torch.zeros(1), "done": over, "terminated": over}
        ...     def _step_leaves(self, root):
        ...         place = root["observation"] + root["action"]
        ...         over = place.abs() > 3
        ...         return {"observation": place, "reward": -place.abs(), "done": over, "terminated": over}
        >>> Walk().rollout(5)["next", "reward"].shape
        torch.Size([5, 1])
    """

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask
        raise RLError(f"{type(self).__name__} does not implement _reset_leaves(mask)")

    def _step_leaves(self, root: Leaves) -> Leaves:
        del root
        raise RLError(f"{type(self).__name__} does not implement _step_leaves(root)")

    def _reset_rows(self, current: Leaves, mask: Tensor) -> Leaves | None:
        return _no_rows(current, mask)

    def _play_leaves(self, root: Leaves, actions: Leaves, *, stop: bool) -> tuple[Leaves, Leaves] | None:
        del root, actions, stop

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        del state
        raise RLError(
            f"{type(self).__name__} cannot begin in a given state: it implements no _set_state_leaves(state). Continue"
            " from a saved one with load_state_dict(state) instead"
        )

    @classmethod
    def _step_together(cls, envs: Sequence[Any]) -> LeafCalls | None:
        del envs

    def lowered(self) -> LeafEnv | None:
        """Return the leaf form."""
        step = self._rl.compiled or self._step_leaves
        return LeafForm(self, LeafCalls(self._reset_leaves, step, self._reset_rows))

    def compile(self, **kwargs: Any) -> Self:
        self._rl.compile(torch.compile(self._step_leaves, **kwargs), kwargs)
        return self

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return self._rl.tensordict(self._reset_leaves(None if tensordict is None else tensordict.get("_reset")))

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rl.tensordict(self._set_state_leaves({key: tensordict.get(key) for key in self.state_keys}))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._rl.compiled is None:
            leaves: Any = self._step_leaves(tensordict)  # pyright: ignore[reportArgumentType]  # a mapping too
        else:
            leaves = self._rl.compiled({key: tensordict.get(key) for key in leaf_keys(tensordict)})
        return self._rl.tensordict(leaves)


class LeafForm:
    """Leaf form of an environment; see `rl.core.interfaces.LeafEnv`.

    The first reset and the first step are compared with the specs; each one if the environment's `debug` is true.

    Args:
        env: The environment, for its specs.
        calls: Functions that reset and step it.
    """

    __slots__ = ("_env", "_flag_shape", "_reset", "_rows", "_rules", "_step", "batch_size")

    def __init__(self, env: EnvBase, calls: LeafCalls) -> None:
        self._env, self._rules = env, env._rl
        self._reset, self._step, self._rows = calls.reset, calls.step, calls.reset_rows
        self.batch_size: torch.Size = env.batch_size
        done = env.full_done_spec.get("done", None)
        self._flag_shape = torch.Size((*self.batch_size, 1)) if done is None else done.shape

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """Return the root entries after a reset of all elements, or of those where `mask` is true.

        Args:
            current: Root entries of the elements that are not reset; needed with `mask`.
            mask: Mask bool ``[*B, 1]`` of the elements to reset; all if None.

        Raises:
            RLError: If there is a mask and no `current`, or the environment is closed.
            ShapeError: If the mask is not bool, or has not the shape of ``done``.
            ContractError: If `current` lacks an entry.
        """
        rules = self._rules
        rules.check_open()
        if mask is not None and current is None:
            raise RLError(f"{rules.owner}: reset_leaves(mask=...) needs current=, the entries of the others")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != self._flag_shape):
            raise ShapeError(
                f"{rules.owner}: reset_leaves was given a mask of {mask.dtype} {tuple(mask.shape)}; it must be"
                f" torch.bool {tuple(self._flag_shape)}, as 'done'"
            )
        checked = rules.reset_checked and not self._env.debug
        leaves = self._merge_reset(current, mask, checked=checked)
        if rules.masked or mask is None or not checked:
            rules.update_masks(self._env, look=True)
        return leaves

    def _merge_reset(self, current: Leaves | None, mask: Tensor | None, *, checked: bool) -> Leaves:
        rules = self._rules
        if checked and mask is not None and current is not None and not rules.completes:
            rows = self._rows(current, mask)
            if rows is not None:
                return rows
        fresh = self._reset(mask)
        if not checked:
            rules.completes = any(key not in fresh for key in rules.flags.keys)
        if rules.completes:
            rules.flags.clear(fresh, self._env.full_done_spec)
        if not checked:
            rules.check_reset(fresh, None if mask is None else {(): mask})
        # A device with a queue is not asked: the answer would wait for all work before it.
        if mask is None or current is None or (not mask.is_cuda and bool(mask.all())):
            return fresh
        return merge_reset(current, fresh, {(): mask})

    def step_leaves(self, root: Leaves) -> Leaves:
        """Return the entries that a step writes under ``next``, keyed without the ``next``."""
        rules = self._rules
        if rules.step_checked and not self._env.debug:
            try:
                outcome = self._step(root)
            except Exception:
                check_action(root, self._env.full_action_spec, owner=rules.owner)  # says more if that is the cause
                raise
            if rules.masked:
                rules.update_masks(self._env, look=False)
            return self._complete(outcome) if rules.completes else outcome
        check_action(root, self._env.full_action_spec, owner=rules.owner)
        outcome = self._step(root)
        rules.completes = any(key not in outcome for key in rules.flags.keys)
        if rules.completes:
            outcome = self._complete(outcome)
        rules.check_step(outcome)
        rules.update_masks(self._env, look=True)
        return outcome

    def _complete(self, outcome: Leaves) -> Leaves:
        return self._rules.flags.complete(outcome, self._env.full_done_spec, self._rules.owner)


def reset_where(env: Any, leaf: LeafEnv) -> Callable[[Tensor | None], Leaves]:
    """Return `leaf.reset_leaves` as a function of the mask alone, whose rows outside the mask mean nothing.

    Args:
        env: The environment of `leaf`.
        leaf: A leaf form.
    """
    blank: Leaves = {}

    def reset(mask: Tensor | None) -> Leaves:
        if mask is None:
            return leaf.reset_leaves()
        if not blank:
            zeros = partial_root(env, TensorDict({}, env.batch_size))
            blank.update({key: zeros.get(key) for key in leaf_keys(zeros)})
        return leaf.reset_leaves(blank, mask)

    return reset


class EnvAdapter(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Adapter that makes an environment of the `rl.core.interfaces.Env` protocol an `EnvBase`.

    `TransformedEnv`, `SerialEnv` and `EnvBase.rollout` work with it.

    Specs, steps, seeds, states and, if the environment has one, the leaf form are those of the environment. Done flags
    that it does not write are filled in by `rl.core.mdp.complete_done`. Public attributes that an `EnvBase` lacks are
    looked up in the environment. `as_env` applies the adapter where it is needed.

    Args:
        env: The environment; closed with this one.

    Raises:
        ArgumentError: If `env` lacks members of the protocol.
        SpecError: If its specs do not begin with its batch size.

    Example:
        >>> from rl.testing import CountingEnv  # written against rl-core alone
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
        leaf = as_tensor_env(self.base_env)
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
        env: An environment of the `rl.core.interfaces.Env` protocol.

    Raises:
        ArgumentError: If `env` lacks members of the protocol; they are named.

    Example:
        >>> from rl.testing import CountingEnv
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
        raise ArgumentError(f"expected an environment, got the class {env.__name__}: pass {env.__name__}(...)")
    if lacking:
        raise ArgumentError(
            f"{type(env).__name__} is no environment: it lacks {', '.join(lacking)}. Inherit EnvBase or add the missing"
            " members of rl.core.interfaces.Env; wrap a Gymnasium environment as GymWrapper(env)"
        )
