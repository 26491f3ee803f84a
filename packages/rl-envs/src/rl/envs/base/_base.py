"""`EnvBase`: base class of environments that are written from TensorDict to TensorDict."""

# ruff: noqa: SLF001  # environments that consist of others use their rules

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeGuard

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.env_specs import describe_entry
from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError
from rl.core.interfaces import LeafEnv
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import StepMDP, merge_reset, where_reset
from rl.core.specs import Bounded, Composite, Unbounded, set_group_sizes
from rl.envs.base._checks import (
    as_batch_size,
    check_action,
    check_env_specs,
    check_not_done,
    warn_not_restorable,
)
from rl.envs.base._rollout import OpenLoopPolicy, on_its_device, rollout, write_into
from rl.envs.base._rules import StepRules
from rl.envs.base._specs import Masks, SpecNames, infer_specs, leaf_keys

PUBLIC_FORM = ("reset", "step", "step_mdp", "maybe_reset", "step_and_maybe_reset")
"""The methods that an environment with a leaf form derives, and no subclass may override."""


class _Rules:
    """Stands in the class for the attribute that ``EnvBase.__init__`` sets, to report a missing call of it."""

    def __get__(self, instance: Any, owner: type) -> StepRules:
        raise RLError(
            f"{owner.__name__} was used before EnvBase.__init__: begin its __init__ with"
            " super().__init__(batch_size=..., device=...), then assign the specs"
        )


@foreign_arguments()
class EnvBase(SpecNames):
    """Base class of environments that are written from TensorDict to TensorDict.

    The author calls ``super().__init__(batch_size=..., device=...)`` and assigns `observation_spec`, `action_spec`
    and, where they differ from the defaults, `reward_spec` (unbounded ``[1]``), `done_spec` (``done`` and
    ``terminated``, bool ``[1]``) and `state_spec` (entries that a step reads besides the action). All specs are for
    *one* element: the environment adds its batch. Then three methods:

    - ``_reset(td)`` returns a new TensorDict with the root entries of new episodes. In a partial reset ``td`` holds
      the mask ``_reset``; rows outside it are ignored.
    - ``_step(td)`` returns a new TensorDict with the entries under ``next``. Missing done flags are completed.
    - ``_set_seed(seed)`` seeds the simulator.

    An environment whose state is in the TensorDict may offer ``_set_state(td)``: the root entries of episodes that
    begin in the state entries of `td`; ``reset(td, set_state=True)`` calls it. A wrapper of a simulator that
    takes options may offer ``_set_options(options)``: ``reset(options=options)`` calls it before the reset, and with
    None after it.

    The results of the first two are compared with the specs at the first reset and the first step; at each one if
    `debug` is true. Inherit `LeafEnvBase` instead for an environment that collectors step without TensorDicts. The
    attribute ``_rl`` is reserved.

    Args:
        batch_size: Number of elements in each batch dimension.
        device: Device of all tensors; that of the simulator if None.
        debug: Whether to compare every reset and step with the specs, not only the first.

    Example:
        >>> from rl.core.specs import Composite, Unbounded, Bounded
        >>> class Walk(EnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.observation_spec = Composite(observation=Unbounded(1))
        ...         self.action_spec = Bounded(-1, 1, shape=(1,))
        ...     def _reset(self, td):
        ...         return TensorDict(observation=torch.zeros(1))
        ...     def _step(self, td):
        ...         place = td["observation"] + td["action"]
        ...         return TensorDict(observation=place, reward=-place.abs(), terminated=place > 3)
        >>> Walk().rollout(5).batch_size
        torch.Size([5])
    """

    batch_size: torch.Size
    device: torch.device | None
    debug: bool
    batch_locked: bool = True
    """Whether inputs must have `batch_size`. An environment without a batch that sets it to False takes TensorDicts of
    any batch, and runs as many copies; its methods read ``self.batch_size``."""
    __final: ClassVar[Mapping[str, Any]] = {}
    _rl: StepRules = _Rules()  # pyright: ignore[reportAssignmentType]  # until the constructor sets it

    def __init_subclass__(cls, *, final: Sequence[str] = (), **kwargs: Any) -> None:
        """Reject a subclass that overrides a method which its base class derives.

        Args:
            final: Names of the methods that subclasses of this class must not override.
            kwargs: Arguments for the next class.

        Raises:
            RLError: If the class overrides one.
        """
        super().__init_subclass__(**kwargs)
        for name, method in cls.__final.items():
            if getattr(cls, name) is not method:
                raise RLError(
                    f"{cls.__name__} overrides {name}, which its base class derives: override _reset_leaves or"
                    " _step_leaves of a LeafEnvBase, or wrap the environment with a Transform"
                )
        cls.__final = {**cls.__final, **{name: getattr(cls, name) for name in final}}

    def __init__(
        self,
        *,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        debug: bool = False,
    ) -> None:
        self.__fix("batch_size", as_batch_size(batch_size, type(self).__name__))
        self.__fix("device", None if device is None else torch.empty(0, device=device).device)  # with its index
        self.debug = debug
        self._rl = StepRules(type(self).__name__, self.batch_size, self.device)

    def __fix(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in {"batch_size", "device"} and "_rl" in vars(self):  # the specs have them too
            remedy = "pass it to the constructor" if name == "batch_size" else "call env.to(device)"
            raise RLError(f"{name} of {type(self).__name__} cannot be assigned: {remedy}")
        super().__setattr__(name, value)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._rl.closed

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Keys of the masks of a partial reset, one next to each ``done``."""
        return self._rl.flags.reset_keys

    # ---- written by the author

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        del tensordict
        raise RLError(f"{type(self).__name__} does not implement _reset(td); for _reset_leaves inherit LeafEnvBase")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        del tensordict
        raise RLError(f"{type(self).__name__} does not implement _step(td); for _step_leaves inherit LeafEnvBase")

    def _set_seed(self, seed: int) -> None:
        del seed
        raise RLError(f"{type(self).__name__} implements no _set_seed(seed): it cannot be made repeatable")

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        del tensordict
        raise RLError(
            f"{type(self).__name__} cannot begin in a given state: it implements no _set_state(td). Continue from a"
            " saved one with load_state_dict(state) instead"
        )

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        """Pass `options` to the resets of the simulator until it is called with None."""
        if options is not None:
            raise RLError(
                f"{self._rl.owner}.reset takes no options: pass them to the constructor, or to the simulator's own"
                " reset in a wrapper of it"
            )

    def _close(self) -> None:
        """Release the resources of the environment; called once."""

    def lowered(self) -> LeafEnv | None:
        """Return the leaf form of the environment, or None if it has none."""
        return None

    # ---- episodes

    def reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        set_state: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> TensorDictBase:
        """Start new episodes.

        Args:
            tensordict: Root entries. With ``_reset`` (bool, the shape of the done flag next to it) only the marked
                elements are reset, and the others keep the entries of `tensordict`.
            set_state: Whether to begin in the state entries (`state_keys`) of `tensordict`, in environments whose state
                is in the TensorDict.
            options: Argument of the simulator's own ``reset(options=)``, in this reset alone; `GymEnv` and `GymWrapper`
                take it, also inside of a `TransformedEnv`, and of a `SerialEnv`, `ParallelEnv` or `AsyncEnvPool`, which
                hand it to each of their environments.

        Returns:
            `tensordict`, updated, or a new one: observations, state, and done flags, which are false.

        Raises:
            ShapeError: If the batch or a mask has the wrong shape.
            SpecError: If the result of ``_reset`` does not agree with the specs (first reset).
            ContractError: If `set_state` is true and a state entry is missing.
            RLError: If the environment takes no options.
        """
        rules = self._rl
        rules.check_open()
        if options is not None:
            try:
                self._set_options(options)
                return self.reset(tensordict, set_state=set_state)
            finally:
                self._set_options(None)
        if self.__takes(tensordict):
            return self.with_batch(tensordict.batch_size).reset(tensordict, set_state=set_state)
        state = self.__given_state(tensordict) if set_state else None
        masks = None
        if tensordict is not None:
            rules.check_batch(tensordict, "reset")
            masks = rules.flags.take_masks(tensordict, self.full_done_spec, rules.owner)
        if masks is not None and not any(bool(mask.any()) for mask in masks.values()):
            return tensordict if tensordict is not None else TensorDict({}, self.batch_size)
        unchecked = self.debug or not rules.reset_checked
        given = tensordict if masks is None else self.__mask_entries(masks)
        if state is None:
            fresh = self._reset(given)
        else:
            fresh = self._set_state(state if given is None or masks is None else state.update(given))
        rules.check_result(fresh, given, "_reset")
        rules.flags.clear(fresh, self.full_done_spec)
        set_group_sizes(fresh, rules.groups)
        check_not_done(fresh, rules.flags.done_keys, masks, rules.owner)
        if unchecked:
            rules.check_reset(fresh, masks)
        rules.update_masks(self, look=unchecked or masks is None)
        if masks is not None and not all(bool(mask.all()) for mask in masks.values()):
            leaves: Any = {key: fresh.get(key) for key in leaf_keys(fresh)}
            current: Any = tensordict
            merged = merge_reset(current, leaves, {(): self.__any_mask(masks), **masks})
            fresh = rules.tensordict(merged)
        return fresh if tensordict is None else tensordict.update(fresh)

    def __given_state(self, tensordict: TensorDictBase | None) -> TensorDict:
        """Return a copy of the state entries of `tensordict`."""
        found = {key: None if tensordict is None else tensordict.get(key, None) for key in self.state_keys}
        if not found:
            raise RLError(
                f"{self._rl.owner}.reset(set_state=True): the state of this environment is not in the TensorDict, it"
                " has no state_keys. Continue from a saved one with load_state_dict(state) instead"
            )
        missing = [key_str(key) for key, value in found.items() if value is None]
        if missing:
            raise ContractError(
                f"{self._rl.owner}.reset(set_state=True) reads its state entries ({self.state_keys}) from the"
                f" TensorDict, which lacks {', '.join(missing)}: take them from an earlier root"
            )
        entries: Any = {key: value.clone() for key, value in found.items() if value is not None}
        for key, value in entries.items():
            wanted = self.full_state_spec[key].shape
            if value.shape != wanted:
                raise ShapeError(
                    f"{self._rl.owner}.reset(set_state=True): {key_str(key)} must be {list(wanted)}, got"
                    f" {list(value.shape)}: a state has the batch of the TensorDict in front"
                )
        return self._rl.tensordict(entries)

    def __takes(self, tensordict: TensorDictBase | None) -> TypeGuard[TensorDictBase]:
        """Whether `tensordict` has another batch than this environment, which takes any."""
        return not self.batch_locked and tensordict is not None and tensordict.batch_size != self.batch_size

    def with_batch(self, batch_size: Iterable[int]) -> Self:
        """Return this environment with another batch: the same parameters and random numbers.

        Inputs with another batch than `batch_size` are given to it.

        Raises:
            SpecError: If the environment has a fixed batch (`batch_locked`).
        """
        size = as_batch_size(batch_size, self._rl.owner)
        if self.batch_locked:
            raise SpecError(
                f"{self._rl.owner} runs {list(self.batch_size)} copies only: create another with {list(size)}"
            )
        other = self._rl.other_batch.get(size)
        if other is None:
            other = copy.copy(self)
            other.__fix("batch_size", size)
            other._rl = self._rl.with_batch(size)
            if self._rl.compile_options is not None:
                other.compile(**self._rl.compile_options)
            self._rl.other_batch = {size: other}  # the last one
        return other

    def __mask_entries(self, masks: Masks) -> TensorDict:
        """Return the masks by key, for ``_reset``; at the root their union."""
        keyed: Any = {unwrap((*level, "_reset")): mask for level, mask in masks.items()}
        keyed.setdefault("_reset", self.__any_mask(masks))
        return self._rl.tensordict(keyed)

    def __any_mask(self, masks: Masks) -> Tensor:
        """Elements of which any part is reset, ``[*B, 1]``."""
        ndim = len(self.batch_size)
        return torch.stack([mask.flatten(ndim).any(-1) for mask in masks.values()]).any(0).unsqueeze(-1)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take a step with the action of `tensordict`.

        Args:
            tensordict: Root entries with the action. Elements that ``_step`` (bool ``[*B]`` or ``[*B, 1]``) excludes
                are not stepped. Entries under ``next`` that the environment does not write are kept.

        Returns:
            `tensordict` itself, with the outcome under ``next``.

        Raises:
            ContractError: If the action is missing (first step).
            SpecError: If the action, or the result of ``_step``, is not in its spec (first step).
        """
        rules = self._rl
        rules.check_open()
        if self.__takes(tensordict):
            return self.with_batch(tensordict.batch_size).step(tensordict)
        unchecked = self.debug or not rules.step_checked
        if unchecked:
            rules.check_batch(tensordict, "step")
            check_action(tensordict, self.full_action_spec, owner=rules.owner)
        mask = tensordict.get("_step", None)
        try:
            outcome = self._step(tensordict)
        except Exception:
            check_action(tensordict, self.full_action_spec, owner=rules.owner)  # says more if that is the cause
            raise
        rules.check_result(outcome, tensordict, "_step")
        rules.flags.complete(outcome, self.full_done_spec, rules.owner)
        set_group_sizes(outcome, rules.groups)
        if mask is not None:
            self.__hold(tensordict, outcome, mask)
        if unchecked:
            rules.check_step(outcome)
        rules.update_masks(self, look=unchecked)
        kept = tensordict.get("next", None)
        if kept is not None:
            written = set(leaf_keys(outcome))
            for key in leaf_keys(kept):
                if key not in written:
                    outcome.set(key, kept.get(key))
        return tensordict.set("next", outcome)

    def __hold(self, root: TensorDictBase, outcome: TensorDictBase, mask: Tensor) -> None:
        """Give elements outside the mask their root entries back, and zeros where the root has none of that shape.

        A transform that changes a shape wrote the root entry; its own environment returns it.
        """
        where = mask if mask.ndim > len(self.batch_size) else mask.unsqueeze(-1)
        for key in leaf_keys(outcome):
            new = outcome.get(key)
            old = None if key in self.reward_keys else root.get(key, None)
            known = old is not None and old.shape == new.shape
            outcome.set(key, where_reset(where, new, old if known else torch.zeros_like(new)))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, and return the root of the following step, with done elements reset.

        Returns:
            The stepped `tensordict`, whose ``next`` holds the terminal observation, and the new root.
        """
        stepped = self.step(tensordict)
        return stepped, self.maybe_reset(self.step_mdp(stepped))

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the root of the following step: the entries under ``next``, without rewards and actions."""
        rules = self._rl
        if rules.step_mdp is None:
            rules.step_mdp = StepMDP(
                reward_keys=self.reward_keys,
                done_keys=self.done_keys,
                action_keys=self.action_keys,
                state_keys=self.state_keys,
                exclude_action=True,
            )
        return rules.step_mdp(tensordict)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the elements whose done flags are set; return `tensordict` itself if there are none."""
        done = {key: tensordict.get(key) for key in self._rl.flags.done_keys}
        if not any(bool(flag.any()) for flag in done.values()):
            return tensordict
        for key, flag in zip(self.reset_keys, done.values(), strict=True):
            tensordict.set(key, flag.clone())
        return self.reset(tensordict)

    @foreign_arguments()
    def rollout(  # noqa: PLR0913  # TorchRL's arguments
        self,
        max_steps: int,
        policy: Callable[[TensorDictBase], TensorDictBase] | None = None,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
        *,
        auto_reset: bool = True,
        break_when_any_done: bool = True,
        break_when_all_done: bool = False,
        return_contiguous: bool = True,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        actions: TensorDictBase | Tensor | Iterable[Any] | None = None,
        out: TensorDictBase | None = None,
        storing_device: torch.device | str | int | None = None,
        auto_cast_to_device: bool = False,
    ) -> TensorDictBase:
        """Run the policy for some steps.

        Gradients are recorded as torch's ambient mode says: wrap the call in ``torch.no_grad()`` if none are needed.

        Args:
            max_steps: Maximum number of steps, at least 1.
            policy: Function that reads the root entries and writes the action; random actions if None.
            callback: Function that is called after each step with the environment and the TensorDict of the step.
            auto_reset: Whether to reset first. If false, the rollout continues from `tensordict`, of which done
                elements are reset.
            break_when_any_done: Whether to stop when an element is done. If false, done elements are reset.
            break_when_all_done: Whether to stop when every element has finished, and hold those that finished early;
                takes the place of `break_when_any_done`.
            return_contiguous: Whether to return one tensor for each entry; a lazy stack of the steps otherwise.
            tensordict: Root entries to start from; handed to `reset` if `auto_reset`.
            set_truncated: Whether to mark the last step as truncated and done.
            actions: The action of each step instead of a policy: a tensor ``[*B, T, ...]`` for the only action, a
                TensorDict ``[*B, T]`` with all of them, or an iterable, such as a list, of those of single steps. The
                rollout has at most T steps.
            out: A TensorDict ``[*B, T]`` with the entries of the rollout, T at least the number of steps; its first
                steps are overwritten.
            storing_device: Device of the result; that of the environment if None.
            auto_cast_to_device: Whether to move the policy's input to the device of its first parameter, and its output
                back.

        Returns:
            ``[*B, T]``; the last dimension is named ``time``. With `out`, a view of what was written.

        Raises:
            RLError: If there is nothing to start from, no flag for `set_truncated`, or both a policy and actions.
            ShapeError: If `actions` or `out` has another batch, or `out` is shorter than the rollout.
            ContractError: If `out` has other entries.
        """
        if self.__takes(tensordict):
            return self.with_batch(tensordict.batch_size).rollout(
                max_steps,
                policy,
                callback,
                auto_reset=auto_reset,
                break_when_any_done=break_when_any_done,
                break_when_all_done=break_when_all_done,
                return_contiguous=return_contiguous,
                tensordict=tensordict,
                set_truncated=set_truncated,
                actions=actions,
                out=out,
                storing_device=storing_device,
                auto_cast_to_device=auto_cast_to_device,
            )
        mode = "all" if break_when_all_done else "any" if break_when_any_done else "never"
        max_steps = as_integer(max_steps, "rollout", "max_steps", 1)
        if not auto_reset and tensordict is None:
            raise RLError("rollout(auto_reset=False) has nothing to start from: pass tensordict=env.reset()")
        if actions is not None:
            if policy is not None:
                raise RLError("rollout takes a policy or actions, and was given both: leave one out")
            policy = OpenLoopPolicy(self, actions, max_steps)
            max_steps = min(max_steps, policy.steps)
        elif policy is not None and (isinstance(policy, type) or not callable(policy)):
            raise ArgumentError(
                f"{self._rl.owner}.rollout: policy is a function from TensorDict to TensorDict, got {policy!r:.100}."
                " Give known actions as rollout(n, actions=...)"
            )
        elif policy is not None and auto_cast_to_device:
            policy = on_its_device(policy, self.device)
        if auto_reset or tensordict is None:
            start = self.reset(tensordict)
        else:
            start = self.maybe_reset(self._rl.flags.complete(tensordict.copy(), self.full_done_spec, self._rl.owner))
        found = rollout(
            self,
            start,
            max_steps,
            policy,
            callback,
            stop=mode,
            contiguous=return_contiguous,
            set_truncated=set_truncated,
            storing_device=storing_device,
        )
        return found if out is None else write_into(out, found)

    # ---- utilities

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write random actions, sampled from the action spec with torch's global generator."""
        if self.__takes(tensordict):
            return self.with_batch(tensordict.batch_size).rand_action(tensordict)
        td = TensorDict({}, batch_size=self.batch_size, device=self.device) if tensordict is None else tensordict
        return td.update(self.full_action_spec.rand())

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Return every action, ``[n, *B]``, for an environment whose actions are all discrete.

        Args:
            tensordict: Data whose entries are repeated next to each action; actions alone if None.

        Raises:
            SpecError: If an action is continuous, or there are too many of them.

        Example:
            >>> from rl.envs import CartPoleEnv
            >>> CartPoleEnv(categorical_action_encoding=True).all_actions()["action"]
            tensor([0, 1])
        """
        actions_of_one = self.full_action_spec_unbatched
        for key in self.action_keys:
            if isinstance(actions_of_one[key], (Bounded, Unbounded)):
                raise SpecError(
                    f"{self._rl.owner}.all_actions: {key_str(key)} is continuous,"
                    f" {describe_entry(actions_of_one[key])}, and cannot be listed: choose among some values with"
                    " ActionDiscretizer"
                )
        each = actions_of_one.enumerate()
        count = each.batch_size[0]
        batch = len(self.batch_size)
        actions = TensorDict(
            {
                key: each.get(key).reshape(count, *[1] * batch, *spec.shape[batch:]).expand(count, *spec.shape)
                for key in self.action_keys
                for spec in [self.full_action_spec[key]]
            },  # pyright: ignore[reportArgumentType]  # nested keys
            batch_size=(count, *self.batch_size),
            device=self.device,
        )
        set_group_sizes(actions, self._rl.groups, 0)
        return actions if tensordict is None else tensordict.expand(count, *self.batch_size).clone().update(actions)

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Step with random actions, from a reset if `tensordict` is None."""
        return self.step(self.rand_action(self.reset() if tensordict is None else tensordict))

    def fake_tensordict(self) -> TensorDictBase:
        """Return zeros in the layout of a step: root entries, actions, and ``next``."""
        root = self.full_action_spec.zero()
        for spec in (self.full_state_spec, self.observation_spec, self.full_done_spec):
            root.update(spec.zero())
        outcome = self.observation_spec.zero()
        outcome.update(self.full_reward_spec.zero()).update(self.full_done_spec.zero())
        return root.set("next", outcome)

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        """Seed the environment, from the next reset on.

        Random *actions* come from torch's global generator: seed them with ``torch.manual_seed``.

        Args:
            seed: An integer.
            static_seed: Whether the seed for the next environment is `seed` itself, so that all environments of a batch
                have the same one.

        Returns:
            A seed for the next environment.
        """
        number = as_integer(seed, f"{type(self).__name__}.set_seed", "seed")
        self._set_seed(number)
        return number if static_seed else _next_seed(number)

    def share_memory(self) -> Self:
        """Move the tensors of the environment to memory that processes share; data of steps is not concerned."""
        for value in vars(self).values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, EnvBase):
                    one.share_memory()
                elif isinstance(one, Tensor):
                    one.share_memory_()
        return self

    def append_transform(self, transform: Any) -> EnvBase:
        """Return a `TransformedEnv` of this environment."""
        import rl.envs  # finds the class by its public name: transforms build on this module

        return rl.envs.TransformedEnv(self, transform)

    def insert_transform(self, index: int, transform: Any) -> EnvBase:
        """Return a `TransformedEnv` of this environment; `index` 0 is nearest to the environment."""
        import rl.envs  # finds the classes by their public names: transforms build on this module

        return rl.envs.TransformedEnv(self, rl.envs.Compose().insert(index, transform))

    # ---- specs, device, compilation

    @property
    def output_spec(self) -> Composite:
        """What the environment writes: ``full_observation_spec``, ``full_reward_spec`` and ``full_done_spec``."""
        return self.__composite("full_observation_spec", "full_reward_spec", "full_done_spec")

    @property
    def input_spec(self) -> Composite:
        """What the environment reads: ``full_action_spec`` and ``full_state_spec``."""
        return self.__composite("full_action_spec", "full_state_spec")

    @property
    def specs(self) -> Composite:
        """All specs: `output_spec` and `input_spec`."""
        return self.__composite("output_spec", "input_spec")

    def __composite(self, *names: str) -> Composite:
        return Composite({name: getattr(self, name) for name in names}, shape=self.batch_size).lock_()

    def auto_specs_(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase] | None = None,
        *,
        tensordict: TensorDictBase | None = None,
        action_key: NestedKey | Sequence[NestedKey] = "action",
        observation_key: NestedKey | Sequence[NestedKey] | None = None,
        reward_key: NestedKey | Sequence[NestedKey] = "reward",
        done_key: NestedKey | Sequence[NestedKey] | None = None,
    ) -> Self:
        """Assign the specs that a reset and a step show: shapes and dtypes, without bounds.

        Entries under ``next`` are done flags by name (``done``, ``terminated``, ``truncated``), rewards by
        `reward_key`, and observations otherwise. Booleans become `Binary`. An action spec that is assigned already
        stays.

        Args:
            policy: Function that writes the action; random actions of the assigned action spec if None.
            tensordict: Input of the reset.
            action_key: Entries that the policy writes for the environment.
            observation_key: Observations; every other entry if None.
            reward_key: Rewards; entries of the same last name at any level.
            done_key: Done flags; by name if None.

        Returns:
            The environment.

        Raises:
            ArgumentError: If there is neither a policy nor an action spec.
            SpecError: If a key is not written.
        """
        found = infer_specs(self, policy, tensordict, action_key, observation_key, reward_key, done_key)
        for role, spec in found.items():
            setattr(self, f"{role}_spec", spec)
        return self

    def add_truncated_keys(self) -> Self:
        """Add the flag ``truncated`` next to every ``done``, false unless the environment writes it."""
        spec = self.done_spec_unbatched.clone()
        for key in self._rl.flags.done_keys:
            flag = unwrap((*as_tuple(key)[:-1], "truncated"))
            if spec.get(flag, None) is None:
                spec[flag] = spec[key].clone()
        self.done_spec = spec
        return self

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        """Move the environment to a device, or convert its floating-point entries.

        Args:
            target: A device: specs, tensors and random generators of this environment move there (generators with
                another seed). A dtype: observations and rewards are converted to it, actions and state from it.

        Returns:
            This environment; for a dtype a `TransformedEnv` of it.

        Raises:
            ArgumentError: If `target` is a dtype of integers.
        """
        if isinstance(target, torch.dtype):
            if not target.is_floating_point:
                raise ArgumentError(
                    f"{self._rl.owner}.to(dtype) converts floating-point entries and takes a floating-point dtype, got"
                    f" {target}: convert single entries with DTypeCastTransform"
                )
            return self.__cast(target)
        device = torch.empty(0, device=target).device  # with its index
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
            elif isinstance(value, torch.Generator) and value.device != device:
                seed = int(torch.randint(1 << 62, (), generator=value, device=value.device))
                setattr(self, name, torch.Generator(device).manual_seed(seed))
        self.__fix("device", device)
        self._rl.to(device)
        return self

    def __cast(self, dtype: torch.dtype) -> EnvBase:
        import rl.envs  # finds the classes by their public names: transforms build on this module

        specs = [self.observation_spec, self.full_reward_spec, self.full_action_spec, self.full_state_spec]
        found = {spec[key].dtype for spec in specs for key in leaf_keys(spec)}
        others = sorted((one for one in found if one is not None and one.is_floating_point and one != dtype), key=str)
        return rl.envs.TransformedEnv(
            self, rl.envs.Compose(*[rl.envs.DTypeCastTransform(one, dtype) for one in others])
        )

    def compile(self, **kwargs: Any) -> Self:  # noqa: ARG002  # for subclasses
        """Compile the step with `torch.compile`, for a `LeafEnvBase` written in torch; `eager` undoes it.

        Args:
            kwargs: Arguments of `torch.compile`.

        Returns:
            The environment.

        Raises:
            RLError: If the environment is not written in torch, or on TensorDicts.
        """
        raise RLError(
            f"{self._rl.owner} cannot be compiled: its step is not a function of tensors in torch. Write it as a"
            " LeafEnvBase, or compile what it computes inside of its own step"
        )

    def eager(self) -> Self:
        """Step without compilation again."""
        self._rl.compile(None, None)
        return self

    @classmethod
    @foreign_arguments()
    def register_gym(
        cls,
        id: str,  # noqa: A002  # Gymnasium's name
        *,
        entry_point: Callable[..., EnvBase] | None = None,
        transform: Any = None,
        info_keys: Iterable[NestedKey] = (),
        reward_threshold: float | None = None,
        nondeterministic: bool = False,
        max_episode_steps: int | None = None,
        order_enforce: bool = True,
        disable_env_checker: bool = False,
        **kwargs: Any,
    ) -> None:
        """Register the environment with Gymnasium, so that ``gymnasium.make(id)`` creates it.

        Args:
            id: The id, such as ``"Mine-v0"``.
            entry_point: Function that creates the environment; this class if None.
            transform: Appended to it; each environment gets a clone.
            info_keys: Observations that go into ``info``.
            reward_threshold: See `gymnasium.register`, as for the following ones.
            nondeterministic: Whether one seed may yield several trajectories.
            max_episode_steps: Time limit.
            order_enforce: Whether to reject a step before a reset.
            disable_env_checker: Whether to leave out Gymnasium's check of the first steps.
            kwargs: Arguments of the environment.

        Example:
            >>> import gymnasium
            >>> from rl.envs import PendulumEnv
            >>> PendulumEnv.register_gym("SwingUp-v0", info_keys=["th", "thdot"], max_episode_steps=200)
            >>> gymnasium.make("SwingUp-v0").reset(seed=0)[0].shape
            (3,)
        """
        import rl.envs  # finds the function by its public name: it builds on this module

        rl.envs.register_gym_env(
            id,
            cls if entry_point is None else entry_point,
            transform=transform,
            info_keys=info_keys,
            kwargs=kwargs,
            reward_threshold=reward_threshold,
            nondeterministic=nondeterministic,
            max_episode_steps=max_episode_steps,
            order_enforce=order_enforce,
            disable_env_checker=disable_env_checker,
        )

    def check_env_specs(self, *, seed: int | None = None) -> None:
        """Compare a short rollout with the specs, entry by entry. See `rl.testing.check_env`."""
        check_env_specs(self, seed=seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that an exact continuation needs.

        Returns:
            Tensors and plain containers. ``{"restorable": False}`` if the environment has no state to save.
        """
        return {"restorable": False}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Returns:
            Whether the state was restored exactly. If not, a warning was issued, and the caller must reset before the
            next step.
        """
        if state.get("restorable", False):
            raise SpecError(f"{type(self).__name__} cannot load this state: it implements no load_state_dict")
        warn_not_restorable(type(self).__name__)
        return False

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Release the resources of the environment. May be called twice.

        Args:
            raise_if_closed: Whether to reject a second call.

        Raises:
            RLError: If the environment is closed and `raise_if_closed` is true.
        """
        if raise_if_closed:
            self._rl.check_open()
        if not self._rl.closed:
            self._rl.closed = True
            self._close()

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        state["_rl"] = self._rl.uncompiled()
        return state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, device={self.device})"


def _next_seed(seed: int) -> int:
    """Apply the splitmix64 finalizer, cut to 31 bits: a seed that is unrelated to `seed`.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, fig. 14.
    """
    bits = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & bits
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & bits
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & bits
    return (z ^ (z >> 31)) >> 33
