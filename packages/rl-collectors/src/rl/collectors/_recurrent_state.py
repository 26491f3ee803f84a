"""Recurrent states of a policy in the collector: initial values, updates, and ``is_init``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.errors import CheckpointError, ContractError, SpecError
from rl.core.interfaces import Env, Leaves
from rl.core.keys import DONE, IS_INIT, NEXT, NestedKey, as_tuple, key_str, leaf_keys, next_key, unwrap
from rl.core.recurrent import State, states_of
from rl.core.sequences import any_of_step, check_sequences


class RecurrentStates:
    """Recurrent states of a policy, and those of them that the collector writes because the environment does not.

    Args:
        env: Environment; with the transforms `InitTracker` or `TensorDictPrimer` it writes them itself.
        policy: Any policy; see `rl.core.states_of`.

    Raises:
        ContractError: If the policy declares a state and does not write it under ``next``, or writes one undeclared.
        SpecError: If the environment has no ``done`` at its root.
    """

    def __init__(self, env: Env, policy: Any) -> None:
        self.states = states_of(policy)
        self.own: tuple[State, ...] = ()
        self.marks = False
        self._ended: Tensor | None = None
        self._checked = not self.states
        written = [*leaf_keys(env.observation_spec), *_state_keys(env)]
        _check_declared(policy, self.states, written)
        if not self.states:
            return
        _check_written(policy, self.states)
        if DONE not in leaf_keys(env.full_done_spec):
            raise SpecError(
                f"the policy has the recurrent state {key_str(self.states[0].name)}, which is reset where"
                f" {key_str(DONE)} is true; {type(env).__name__} has no such flag at its root (done keys:"
                f" {leaf_keys(env.full_done_spec)}), and a state and {key_str(IS_INIT)} belong to the entire step, not"
                f" to one agent. Let the environment also write {key_str(DONE)} [*B, 1], true where the episode ends"
                " for all agents"
            )
        self.own = tuple(state for state in self.states if state.name not in written)
        self.marks = IS_INIT not in written

    @property
    def contract(self) -> Contract:
        """Keys that the collector writes at the root."""
        keys = [Key(state.name, state.shape, "recurrent state of the policy", dtype=state.dtype) for state in self.own]
        if self.marks:
            keys.append(Key(IS_INIT, (1,), "first step of an episode", dtype=torch.bool))
        return Contract(writes=tuple(keys))

    def check_continued(self, root: Leaves | None) -> None:
        """Check that a saved root has the recurrent states of the policy.

        Raises:
            CheckpointError: If a state is not in it, or has another shape or dtype.
        """
        if root is None:
            return
        for state in self.states:
            found = root.get(state.name)
            expected = f"{state.dtype} [*B, {', '.join(map(str, state.shape))}]"
            subject = f"{state.owner or 'the policy'} has the recurrent state {key_str(state.name)}, {expected}"
            if found is None:
                raise CheckpointError(
                    f"{subject}, and the collector that was saved did not (it saved {', '.join(map(key_str, root))}):"
                    " load it with the same policy, or start without load_state_dict"
                )
            if found.dtype is not state.dtype or found.shape[found.ndim - len(state.shape) :] != state.shape:
                raise CheckpointError(
                    f"{subject}, and the collector that was saved has {found.dtype} {list(found.shape)} there: continue"
                    " with a policy of the same sizes and dtype"
                )

    def check(self, batch: TensorDictBase, *, starts: bool, cut: bool = False) -> None:
        """Check ``is_init`` and the recurrent states of a batch; every batch until an episode ends inside one.

        Args:
            batch: Collected batch.
            starts: Whether it begins with a reset.
            cut: Whether its last step is marked as truncated by the collector.

        Raises:
            ContractError: If ``is_init`` or a state disagrees with the begin of an episode.
        """
        if self._checked:
            return
        is_init: Tensor = batch.get(IS_INIT)
        time = batch.batch_dims - 1
        begins = any_of_step(is_init, time + 1)
        done: Tensor = any_of_step(batch.get((NEXT, DONE)), time + 1)
        first = begins.select(time, 0)
        before = torch.ones_like(first) if starts else self._ended
        if before is not None and bool((before & ~first).any()):
            what = "the collector began with a reset" if starts else "an episode ended with the batch before"
            raise ContractError(
                f"{what}, and {key_str(IS_INIT)} is false at the first step: its writer does not see resets."
                " Use InitTracker(), or leave it to the collector"
            )
        check_sequences(batch, self.states, "Collector")
        self._check_starts(batch, begins)
        self._ended = None if cut else done.select(time, -1)
        self._checked = bool(done.narrow(time, 0, done.shape[time] - 1).any())

    def _check_starts(self, batch: TensorDictBase, begins: Tensor) -> None:
        for state in self.states:
            stored: Tensor = batch.get(state.name)
            if bool((stored[begins] != state.initial).any()):
                raise ContractError(
                    f"{key_str(state.name)} is not {state.initial} where an episode begins ({key_str(IS_INIT)} is"
                    " true): the environment writes it and does not reset it with the episode. Leave it to the"
                    " collector, or use the transform that policy.make_tensordict_primer() returns"
                )


def _state_keys(env: Env) -> list[NestedKey]:
    spec = getattr(env, "full_state_spec", None)
    return [] if spec is None else leaf_keys(spec)


def _check_declared(policy: Any, states: Sequence[State], written: Sequence[NestedKey]) -> None:
    """Reject a policy that reads a key that it writes under ``next`` and declares no recurrent state."""
    reads, writes = ({as_tuple(key) for key in getattr(policy, name, None) or ()} for name in ("in_keys", "out_keys"))
    known = {as_tuple(key) for key in written} | {as_tuple(state.name) for state in states}
    recurrent = sorted(key for key in reads - known if (NEXT, *key) in writes)
    if recurrent:
        raise ContractError(
            f"the policy ({type(policy).__name__}) reads {', '.join(key_str(unwrap(key)) for key in recurrent)} and"
            " writes the same under 'next', so it is recurrent, and declares no state: pass the"
            " module itself, pass an object around it states = rl.core.states_of(module), or a module of your own"
            " states = (rl.core.State(key, shape), ...)"
        )


def _check_written(policy: Any, states: Sequence[State]) -> None:
    out_keys = getattr(policy, "out_keys", None)
    if out_keys is None:
        return
    written = {as_tuple(key) for key in out_keys}
    for state in states:
        if as_tuple(next_key(state.name)) not in written:
            raise ContractError(
                f"{state.owner or type(policy).__name__} has the recurrent state {key_str(state.name)}, and the"
                f" policy ({type(policy).__name__}) does not write {key_str(next_key(state.name))} (it writes"
                f" {', '.join(key_str(key) for key in out_keys)}): keep it among the policy's out_keys"
            )
