"""Checks of the first step, and of every step with ``debug=True``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.collectors._loops.leaves import LeafAct, LeafStep, TensorDictAct, TensorDictStep, leaves_of
from rl.collectors._pipeline import name_of
from rl.core.contract import Contract, Key, missing_key_message
from rl.core.errors import ContractError, SpecError
from rl.core.interfaces import Env, Leaves
from rl.core.keys import NEXT, NestedKey, key_str, leaf_keys, next_key, unwrap


class StepChecks:
    """Checks of the entries that a policy and an environment write against the environment's specs.

    Args:
        env: Environment with the specs.
        policy: Policy that messages about actions name.
    """

    def __init__(self, env: Env, policy: object) -> None:
        self._env = env
        self._policy_name = "the random policy" if policy is None else f"the policy ({name_of(policy)})"
        contract = getattr(policy, "contract", None)  # knows which keys may be absent
        needs = contract.in_keys if isinstance(contract, Contract) else getattr(policy, "in_keys", None) or ()
        self._in_keys = [unwrap(key) for key in needs]

    def actions(self, root: Leaves) -> None:
        """Check keys, shapes, dtypes and domain of the actions.

        Raises:
            ContractError: If the policy wrote no action.
            SpecError: If an action is not in its spec.
        """
        for key, spec in _specs(self._env.full_action_spec):
            action = root.get(key)
            if action is None:
                key_ = Key(key, remedy=f"{self._policy_name} must write it: add it to out_keys")
                where = "the policy's output"
                raise ContractError(missing_key_message(name_of(self._env), key_, root, where=where))
            self._form(key, action, spec, self._policy_name)
            try:
                spec.assert_is_in(action)
            except SpecError as error:
                raise SpecError(
                    f"{self._policy_name} wrote {key_str(key)} outside its spec: {error}; use a head with these bounds"
                    " (TanhNormal for a box, QValueActor(..., spec=env.action_spec) for choices), or project it"
                    " (env.action_spec.project)"
                ) from None

    def inputs(self, root: Leaves) -> None:
        """Check that the root has the keys that the policy reads.

        Raises:
            ContractError: If a key is missing.
        """
        for key in self._in_keys:
            if key not in root:
                where = "the environment's root"
                raise ContractError(missing_key_message(self._policy_name, Key(key), root, where=where))

    def outcome(self, nxt: Leaves) -> None:
        """Check keys, shapes and dtypes of the entries under ``next``.

        Raises:
            ContractError: If the environment did not write a key of its specs.
            SpecError: If an entry has another shape or dtype than its spec.
        """
        owner, env = name_of(self._env), self._env
        for composite in (env.observation_spec, env.full_reward_spec, env.full_done_spec):
            for key, spec in _specs(composite):
                if key not in nxt:
                    raise ContractError(
                        f"{owner}.step did not write {key_str(next_key(key))}, which its specs promise (it wrote under"
                        f" 'next': {', '.join(map(key_str, nxt)) or 'nothing'}). Write it, or"
                        " take it out of the specs"
                    )
                self._form(next_key(key), nxt[key], spec, f"{owner}.step")

    def restart(self, root: Leaves) -> None:
        """Check shapes and dtypes of the root entries of a reset.

        Raises:
            SpecError: If an entry has another shape or dtype than its spec.
        """
        for composite in (self._env.observation_spec, self._env.full_done_spec):
            for key, spec in _specs(composite):
                if key in root:
                    self._form(key, root[key], spec, f"{name_of(self._env)}.reset")

    def find_fault(self, roots: Sequence[Leaves], nexts: Sequence[Leaves]) -> None:
        """Check steps after an operation on them failed, in their order; nothing if they agree with the specs.

        Args:
            roots: Roots of the steps, with actions; one more than `nexts` if the last step failed.
            nexts: Entries under ``next``.

        Raises:
            ContractError: If the environment did not write a key of its specs.
            SpecError: If an entry or an action is not in its spec.
        """
        for root, nxt in zip_longest(roots, nexts):
            if root is not None:
                self.restart(root)
                self.actions(root)
            if nxt is not None:
                self.outcome(nxt)

    def leaf_act(self, act: LeafAct) -> LeafAct:
        """Return `act` with checks before and after."""

        def checked(root: Leaves) -> Leaves | None:
            self.inputs(root)
            extra = act(root)
            self.actions(root)
            return extra

        return checked

    def leaf_step(self, step: LeafStep) -> LeafStep:
        """Return `step` with a check after it."""

        def checked(root: Leaves) -> Leaves:
            nxt = step(root)
            self.outcome(nxt)
            return nxt

        return checked

    def tensordict_act(self, act: TensorDictAct) -> TensorDictAct:
        """Return `act` with checks before and after."""

        def checked(td: TensorDictBase) -> TensorDictBase:
            self.inputs(leaves_of(td))
            out = act(td)
            self.actions(leaves_of(out))
            return out

        return checked

    def tensordict_step(self, step: TensorDictStep) -> TensorDictStep:
        """Return `step` with a check after it."""

        def checked(td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
            stepped, root = step(td)
            nxt = stepped.get(NEXT, None)
            if nxt is None:
                raise ContractError(f"{name_of(self._env)}.step_and_maybe_reset wrote nothing under 'next'")
            self.outcome(leaves_of(nxt))
            return stepped, root

        return checked

    def _form(self, key: NestedKey, value: Any, spec: Any, owner: str) -> None:
        if not isinstance(value, Tensor):
            if spec.dtype is None:
                return
            raise SpecError(
                f"{owner} wrote {key_str(key)} as {type(value).__name__}, expected a tensor {_dtype(spec.dtype)}"
                f" {tuple(spec.shape)} ({type(spec).__name__}): write it at every step"
            )
        if value.shape != spec.shape:
            raise SpecError(
                f"{owner} wrote {key_str(key)} with shape {tuple(value.shape)}, expected {tuple(spec.shape)}"
                f" ({type(spec).__name__}, environment batch {tuple(self._env.batch_size)}){_shape_hint(value, spec)}"
            )
        if spec.dtype is not None and value.dtype != spec.dtype:
            raise SpecError(
                f"{owner} wrote {key_str(key)} as {_dtype(value.dtype)}, expected {_dtype(spec.dtype)}"
                f" ({type(spec).__name__}): convert it, or author the spec with that dtype"
            )


def _specs(composite: Any) -> list[tuple[NestedKey, Any]]:
    return [(key, composite[key]) for key in leaf_keys(composite)]


def _shape_hint(value: Tensor, spec: Any) -> str:
    if value.shape == (*spec.shape, 1):
        return ": drop the last dimension (squeeze(-1))"
    if (*value.shape, 1) == tuple(spec.shape):
        return ": keep a last dimension of 1 (unsqueeze(-1))"
    return ": the last layer's width or the out_keys do not fit this environment"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
