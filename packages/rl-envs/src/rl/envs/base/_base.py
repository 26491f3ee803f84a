"""`EnvBase`: what every environment of ours is, and what an author of one fills in."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import RLError, SpecError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import unwrap
from rl.core.mdp import StepMDP, merge_reset, where_reset
from rl.core.specs import TensorSpec
from rl.envs import _foreign
from rl.envs.base import _checks
from rl.envs.base._checks import check_action, check_batch, check_entries, check_result, entry_keys, refuse_closed
from rl.envs.base._flags import Flags, Masks
from rl.envs.base._leaf_form import LeafForm
from rl.envs.base._rollout import rollout
from rl.envs.base._seeding import next_seed
from rl.envs.base._spec_names import SpecNames
from rl.envs.base._specs import EnvSpecs
from rl.envs.base._subclass import FromInit, overtaken

__all__ = ["EnvBase"]


@_foreign.env
class EnvBase(SpecNames):
    """An environment whose steps go from TensorDict to TensorDict.

    An author calls ``super().__init__(batch_size=..., device=...)``, assigns `observation_spec`, `action_spec` and,
    if they differ from the defaults, `reward_spec` (unbounded ``[1]``), `done_spec` (``done`` and ``terminated``,
    bool ``[1]``) and `state_spec` (what a step reads besides the action), all for *one* element: the batch is added
    here. Then one of two forms:

    - ``_reset(td)`` and ``_step(td)`` return new TensorDicts: the root entries of a new episode, and what a step writes
      under ``next``. In a partial reset ``td`` holds the mask ``_reset``; rows outside it are ignored.
    - ``_reset_leaves(mask)`` and ``_step_leaves(root)`` return the same as dicts of tensors by flat key, freshly made
      each time. This form is the fast one: collectors run it without building a TensorDict. It has to return
      all flags of the done spec.

    and ``_set_seed(seed)``. Flags that the first form leaves out are completed. What is returned is compared with the
    specs at the first reset and the first step; at each one if `debug` is true. A subclass that overrides the first
    form alone, where there is the second, loses the second. Names that begin with ``_rl_`` are taken.

    Args:
        batch_size: how many elements run side by side.
        device: where tensors are made; where the simulator makes them if None.
        debug: compare with the specs at every step.

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
    is_closed: Any = FromInit()
    #: from the current root entries and a mask to all of them after that partial reset, at less cost than
    #: ``_reset_leaves`` and a merge; None if there is no such short cut
    _rl_reset_rows: Callable[[Leaves, Tensor], Leaves] | None = None

    def __init__(
        self,
        *,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        debug: bool = False,
    ) -> None:
        self.batch_size = _checks.as_batch_size(batch_size, type(self).__name__)
        self.device = None if device is None else torch.empty(0, device=device).device  # with its index
        self.debug = debug
        self.is_closed = False
        self._rl_specs = EnvSpecs(type(self).__name__, self.batch_size, self.device)
        self._rl_forget()

    @property
    def _rl_name(self) -> str:
        """What messages call the environment."""
        return type(self).__name__

    def _rl_forget(self) -> None:
        """Drop what was derived from the specs; the next reset and step are checked again."""
        self._rl_reset_checked = self._rl_step_checked = False
        self._rl_flags: Flags = Flags(self._rl_specs.keys("done"))
        self._rl_advance: StepMDP | None = None

    def _rl_assign_spec(self, role: str, spec: TensorSpec | None) -> None:
        self._rl_specs.assign(role, spec)
        self._rl_forget()

    # ---- what an author fills in

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        if type(self)._reset_leaves is EnvBase._reset_leaves:
            raise RLError(f"{type(self).__name__} implements neither _reset(td) nor _reset_leaves(mask)")
        mask = None if tensordict is None else tensordict.get("_reset", None)
        return self._rl_wrap(self._reset_leaves(mask))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if type(self)._step_leaves is EnvBase._step_leaves:
            raise RLError(f"{type(self).__name__} implements neither _step(td) nor _step_leaves(root)")
        return self._rl_wrap(self._step_leaves(tensordict))  # pyright: ignore[reportArgumentType]  # a mapping too

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        raise NotImplementedError

    def _step_leaves(self, root: Leaves) -> Leaves:
        raise NotImplementedError

    def _set_seed(self, seed: int) -> None:
        del seed
        raise RLError(f"{type(self).__name__} implements no _set_seed(seed): it cannot be made repeatable")

    def _close(self) -> None:
        """Release what the environment holds; called once."""

    def _rl_leafwise(self) -> bool:
        """Whether the leaf form exists and is as new as the TensorDict form."""
        return type(self)._step_leaves is not EnvBase._step_leaves and not overtaken(type(self))

    def lowered(self) -> LeafEnv | None:
        """The environment as plain calls on leaves, or None if it has no such form."""
        return LeafForm(self) if self._rl_leafwise() else None

    def _rl_wrap(self, leaves: Leaves) -> TensorDict:
        return TensorDict(leaves, batch_size=self.batch_size, device=self.device)  # pyright: ignore[reportArgumentType]

    # ---- episodes

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start new episodes.

        Args:
            tensordict: root entries. With ``_reset`` (bool, the shape of the done flag beside it) only the marked
                elements start anew, and the others keep the entries that stand here.

        Returns:
            `tensordict`, updated, or a new one: observations, state, and done flags, which are false.

        Raises:
            ShapeError: if the batch or a mask has the wrong shape.
            SpecError: if what the environment returned does not agree with its specs (first reset).
        """
        refuse_closed(self)
        masks = None
        if tensordict is not None:
            check_batch(self, tensordict, "reset")
            masks = self._rl_flags.take_masks(tensordict, self.full_done_spec, self._rl_name)
        if masks is not None and not any(bool(mask.any()) for mask in masks.values()):
            return tensordict if tensordict is not None else TensorDict({}, self.batch_size)
        given = tensordict if masks is None else self._rl_mask_entries(masks)
        fresh = self._reset(given)
        check_result(self, fresh, given, "_reset")
        self._rl_flags.clear(fresh, self.full_done_spec)
        _checks.refuse_done(fresh, self._rl_flags.done_keys, masks, self._rl_name)
        if self.debug or not self._rl_reset_checked:
            self._rl_check_reset(fresh)
        if masks is not None and not all(bool(mask.all()) for mask in masks.values()):
            leaves = {key: fresh.get(key) for key in entry_keys(fresh)}
            fresh = self._rl_wrap(merge_reset(tensordict, leaves, masks))  # pyright: ignore[reportArgumentType]  # has get
        return fresh if tensordict is None else tensordict.update(fresh)

    def _rl_mask_entries(self, masks: Masks) -> TensorDict:
        """What ``_reset`` is given in a partial reset: the masks, and at the root their union."""
        keyed: Any = {unwrap((*level, "_reset")): mask for level, mask in masks.items()}
        if "_reset" not in keyed:
            ndim = len(self.batch_size)
            keyed["_reset"] = torch.stack([mask.flatten(ndim).any(-1) for mask in masks.values()]).any(0).unsqueeze(-1)
        return TensorDict(keyed, batch_size=self.batch_size, device=self.device)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Carry out the action.

        Args:
            tensordict: root entries with the action. Elements that ``_step`` (bool ``[*B]`` or ``[*B, 1]``) excludes
                stay where they are. Entries under ``next`` that the environment does not write are kept.

        Returns:
            `tensordict` itself, with the outcome under ``next``.

        Raises:
            ContractError: if the action is missing (first step).
            SpecError: if the action, or what the environment returned, is not in its spec (first step).
        """
        refuse_closed(self)
        unchecked = self.debug or not self._rl_step_checked
        if unchecked:
            check_batch(self, tensordict, "step")
            check_action(tensordict, self.full_action_spec, who=self._rl_name)
        mask = tensordict.get("_step", None)
        try:
            outcome = self._step(tensordict) if mask is None else self._rl_masked_step(tensordict, mask)
        except Exception:
            check_action(tensordict, self.full_action_spec, who=self._rl_name)  # says more if that is why
            raise
        check_result(self, outcome, tensordict, "_step")
        self._rl_flags.complete(outcome, self.full_done_spec, self._rl_name)
        if unchecked:
            self._rl_check_step(outcome)
        kept = tensordict.get("next", None)
        if kept is not None:
            written = set(entry_keys(outcome))
            for key in entry_keys(kept):
                if key not in written:
                    outcome.set(key, kept.get(key))
        return tensordict.set("next", outcome)

    def _rl_masked_step(self, tensordict: TensorDictBase, mask: Tensor) -> TensorDictBase:
        """A step of some elements: the others get their root entries back, and zeros where the root has none."""
        outcome = self._rl_flags.complete(self._step(tensordict), self.full_done_spec, self._rl_name)
        where = mask if mask.ndim > len(self.batch_size) else mask.unsqueeze(-1)
        for key in entry_keys(outcome):
            new = outcome.get(key)
            old = None if key in self.reward_keys else tensordict.get(key, None)
            outcome.set(key, where_reset(where, new, torch.zeros_like(new) if old is None else old))
        return outcome

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """`step`, then the root of the following step, in which finished episodes have started anew.

        Returns:
            The stepped `tensordict`, whose ``next`` holds the true last observation, and the new root.
        """
        stepped = self.step(tensordict)
        return stepped, self.maybe_reset(self.step_mdp(stepped))

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the following step: ``next`` moved up, without rewards and without the last action."""
        if self._rl_advance is None:
            self._rl_advance = StepMDP(
                reward_keys=self.reward_keys,
                done_keys=self.done_keys,
                action_keys=self.action_keys,
                state_keys=self.state_keys,
                exclude_action=True,
            )
        return self._rl_advance(tensordict)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Start anew what the done flags of `tensordict` call finished; `tensordict` itself if nothing is."""
        done = {key: tensordict.get(key) for key in self._rl_flags.done_keys}
        if not any(bool(flag.any()) for flag in done.values()):
            return tensordict
        for key, flag in zip(self.reset_keys, done.values(), strict=True):
            tensordict.set(key, flag.clone())
        return self.reset(tensordict)

    def _rl_reset_finished(self, root: TensorDictBase) -> TensorDictBase:
        """`root` with the elements reset whose done flags are set; the input itself stays as it is."""
        return self.maybe_reset(self._rl_flags.complete(root.copy(), self.full_done_spec, self._rl_name))

    def rollout(
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
    ) -> TensorDictBase:
        """Run the policy for some steps.

        Gradients are recorded as torch's ambient mode says: wrap the call in ``torch.no_grad()`` if none are needed.

        Args:
            max_steps: at most so many steps, at least 1.
            policy: reads the root entries and writes the action; random actions if None.
            callback: called with the environment and the TensorDict of each step, after it.
            auto_reset: reset first. If false, the rollout continues from `tensordict`, of which finished elements are
                reset.
            break_when_any_done: stop when an element finishes. If false, finished elements are reset and go on.
            break_when_all_done: stop when every element has finished, and hold those that finished early; takes
                the place of `break_when_any_done`.
            return_contiguous: one tensor for each entry; a lazy stack of the steps if false.
            tensordict: root entries to start from; handed to `reset` if `auto_reset`.
            set_truncated: mark the last step as truncated and done.

        Returns:
            ``[*B, T]``; the last dimension is named ``time``.

        Raises:
            RLError: if there is nothing to start from, or no flag for `set_truncated`.
        """
        mode = "all" if break_when_all_done else "any" if break_when_any_done else "never"
        if not auto_reset and tensordict is None:
            raise RLError("rollout(auto_reset=False) has nothing to start from: pass tensordict=env.reset()")
        restart = auto_reset or tensordict is None
        start = self.reset(tensordict) if restart else self._rl_reset_finished(tensordict)
        return rollout(
            self,
            start,
            max_steps,
            policy,
            callback,
            stop=mode,
            contiguous=return_contiguous,
            set_truncated=set_truncated,
        )

    # ---- small things

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write random actions, drawn from the action spec with torch's global generator."""
        td = TensorDict({}, batch_size=self.batch_size, device=self.device) if tensordict is None else tensordict
        return td.update(self.full_action_spec.rand())

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """`step` with random actions, from a reset if nothing is given."""
        return self.step(self.rand_action(self.reset() if tensordict is None else tensordict))

    def fake_tensordict(self) -> TensorDictBase:
        """Zeros in exactly the layout of a step: root entries, actions, and ``next``."""
        root = self.full_action_spec.zero()
        for spec in (self.full_state_spec, self.observation_spec, self.full_done_spec):
            root.update(spec.zero())
        outcome = self.observation_spec.zero()
        outcome.update(self.full_reward_spec.zero()).update(self.full_done_spec.zero())
        return root.set("next", outcome)

    def set_seed(self, seed: int) -> int:
        """Make the resets and steps that follow repeatable, from the next reset on.

        Random *actions* come from torch's global generator: ``torch.manual_seed`` governs those.

        Returns:
            A seed for the next environment.
        """
        self._set_seed(int(seed))
        return next_seed(int(seed))

    def append_transform(self, transform: Any) -> EnvBase:
        """This environment with a transform around it."""
        from rl.envs.transforms._transformed_env import TransformedEnv  # that module builds on this one

        return TransformedEnv(self, transform)

    def check_env_specs(self, *, seed: int | None = None) -> None:
        """Compare a short rollout with the specs, entry by entry. See `rl.core.testing.check_env`."""
        from rl.envs.base._conformance import check_env_specs  # that module builds on this one

        check_env_specs(self, seed=seed)

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs.

        Returns:
            Tensors and plain containers. ``{"restorable": False}`` if the environment cannot say where it stands.
        """
        return {"restorable": False}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue where `state` was taken.

        Returns:
            Whether the environment stands exactly there. If not, a warning said what that means, and the caller
            has to reset before the next step.
        """
        from rl.envs.base._resume import warn_not_restorable

        if state.get("restorable", False):
            raise SpecError(f"{type(self).__name__} cannot load this state: it implements no load_state_dict")
        warn_not_restorable(type(self).__name__)
        return False

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Release what the environment holds. May be called twice.

        Args:
            raise_if_closed: refuse a second call.

        Raises:
            RLError: if the environment is closed and `raise_if_closed` is true.
        """
        if raise_if_closed:
            refuse_closed(self)
        if not self.is_closed:
            self.is_closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={self.batch_size}, device={self.device})"

    # ---- checks

    def _rl_check_reset(self, fresh: Any) -> None:
        specs = [self.observation_spec, self.full_done_spec]
        check_entries(fresh, specs, who=f"{self._rl_name}._reset", allowed=self.state_keys)
        self._rl_reset_checked = True

    def _rl_check_step(self, outcome: Any) -> None:
        specs = [self.observation_spec, self.full_reward_spec, self.full_done_spec]
        check_entries(outcome, specs, who=f"{self._rl_name}._step", allowed=self.state_keys)
        self._rl_flags.check(outcome, self._rl_name)
        self._rl_step_checked = True
