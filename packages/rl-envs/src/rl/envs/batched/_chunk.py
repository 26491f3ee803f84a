"""The environments of one worker of `ParallelEnv` or `AsyncEnvPool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl.core.interfaces import Env, Leaves
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.mdp import where_reset
from rl.core.specs import set_group_sizes
from rl.core.workers import SharedLeaves, write_leaves
from rl.envs.base._rules import partial_root
from rl.envs.base._specs import leaf_keys, mask_shapes
from rl.envs.batched._members import check_same_keys, described
from rl.envs.batched._serial import SerialEnv

# ruff: noqa: SLF001  # the environments of a worker share their rules with it

STEP, STEP_ROWS, RESET, RESET_ROWS, STEP_AND_RESET = range(5)
"""Numbers of the commands."""
INPUT, OUTPUT, MASK, HELD, ROOT, LEGAL = "input", "output", "mask", "held", "root", "legal"
"""First parts of the keys in shared memory: action and state, results, masks of resets, mask of a step, the root
entries after a step and the resets that follow it, and masks of legal actions."""
CALLABLE, MISSING = "a method", "missing"
"""What `Chunk.attribute` returns besides values."""


class Chunk:
    """Some environments of a `ParallelEnv` or `AsyncEnvPool`, and their rows of the shared memory.

    The root entries stay here: the parent sends actions and state only.

    Args:
        makers: Functions that create the environments.
        first: Number of the first one.
        shared: Memory of all workers; None for messages.
    """

    def __init__(self, makers: Sequence[Callable[[], Env]], first: int, shared: SharedLeaves | None) -> None:
        self.env = SerialEnv(len(makers), makers)
        self._rows = slice(first, first + len(makers))
        self._shared = shared
        self._leaf = self.env.lowered()
        self._rewards = set(self.env.reward_keys)
        self._states = set(self.env.state_keys)
        name = type(self.env.envs[0]).__name__
        self._names = {True: f"{name}.step", False: f"{name}.reset"}
        self._root: Leaves = {}
        if not self.env._rl.members:
            self._root = _leaves(self.env.observation_spec.zero().update(self.env.full_done_spec.zero()))
        self._parts: dict[str, Leaves] = {}
        self._written: dict[bool, set[NestedKey]] = {}  # keys of a step, and of a reset
        self.commands = (self._step, self._step_rows, self._reset, self._reset_rows, self._step_and_reset)

    # ---- commands, with data in shared memory

    def _step(self) -> None:
        root = {**self._root, **_copies(self._parts[INPUT])}
        outcome = self._outcome(root)
        self._write(outcome, step=True)
        self._root = {key: leaf for key, leaf in {**root, **outcome}.items() if key not in self._rewards}

    def _step_rows(self) -> None:
        root = {**self._root, **_copies(self._parts[INPUT])}
        (held,) = _copies(self._parts[HELD]).values()
        outcome = self._outcome({**root, "_step": held})
        self._write(outcome, step=True)
        for key, leaf in outcome.items():
            if key not in self._rewards:
                root[key] = where_reset(held, leaf, root[key]) if key in root else leaf
        self._root = root

    def _outcome(self, root: Leaves) -> Leaves:
        if self._leaf is not None:
            return self._leaf.step_leaves(root)
        return _leaves(self.env.step(self._tensordict(root)).get("next"))

    def _reset(self) -> None:
        self._root = _leaves(self.env.reset()) if self._leaf is None else self._leaf.reset_leaves()
        self._write(self._root, step=False)

    def _reset_rows(self) -> None:
        masks = _copies(self._parts[MASK])
        if self._leaf is None and len(masks) > 1:  # that of the root is the union, and would override them
            del masks["_reset"]
        self._reset_where(masks)
        self._write(self._root, step=False)

    def _reset_where(self, masks: Leaves) -> None:
        if self._leaf is not None:
            self._root = self._leaf.reset_leaves(self._root, masks["_reset"])
        else:
            self._root = _leaves(self.env.reset(self._tensordict({**self._root, **masks})))

    def _step_and_reset(self) -> None:
        self._step()
        done = [self._root[key] for key in self.env.done_keys if as_tuple(key)[-1] == "done"]
        if any(bool(flag.any()) for flag in done):
            self._reset_where({key: flag.clone() for key, flag in zip(self.env.reset_keys, done, strict=True)})
            self._write_legal()
        write_leaves(self._parts[ROOT], self._root, self._names[False])

    def _write(self, entries: Leaves, *, step: bool) -> None:
        written = {key for key in self._parts[OUTPUT] if key in entries and (step or key not in self._rewards)}
        first = self._written.setdefault(step, written)
        if step:
            check_same_keys(first, written, self._rows.start, "step", self._names[step])
        else:  # a partial reset also has state entries that only a step writes
            check_same_keys(first - self._states, written - self._states, self._rows.start, "reset", self._names[step])
        write_leaves(self._parts[OUTPUT], entries, self._names[step])
        self._write_legal()

    def _write_legal(self) -> None:
        for key, place in self._parts[LEGAL].items():
            mask = self.env.full_action_spec[key].mask
            if mask is not None:
                place.copy_(mask)

    def _tensordict(self, leaves: Leaves) -> TensorDict:
        entries: Any = leaves
        out = TensorDict(entries, batch_size=self.env.batch_size)
        set_group_sizes(out, self.env._rl.groups)
        return out

    # ---- messages

    def describe(self) -> list[dict[str, Any]]:
        """Batch and specs of one environment, and whether all have a leaf form; of each one if their specs differ."""
        first, leaf = self.env.envs[0], self._leaf is not None
        if self.env._rl.members:
            return [{**described(env), "leaf": False, "name": repr(env)} for env in self.env.envs]
        return [{**described(self.env), "batch_size": first.batch_size, "leaf": leaf, "name": repr(first)}]

    def map(self, layout: Mapping[NestedKey, Any]) -> None:
        """Map the shared memory."""
        assert self._shared is not None
        self._parts = {part: {} for part in (INPUT, OUTPUT, MASK, HELD, ROOT, LEGAL)}
        for (part, *key), leaf in self._shared.map(layout).items():
            self._parts[part][unwrap(tuple(key))] = leaf[self._rows]

    def written_keys(self, step: bool) -> set[NestedKey]:  # noqa: FBT001  # a message
        """Keys that a step or a reset writes."""
        return self._written[step]

    def root_keys(self) -> set[NestedKey]:
        """Keys of the root entries."""
        return set(self._root)

    def reset(
        self,
        tensordict: TensorDictBase | None,
        set_state: bool,  # noqa: FBT001  # a message
        options: Mapping[str, Any] | None,
    ) -> TensorDictBase:
        """Reset the environments, all or those that the masks of `tensordict` mark."""
        masks = [key for key in _leaves(tensordict) if as_tuple(key)[-1] == "_reset"] if tensordict is not None else []
        root = tensordict if set_state else None
        if tensordict is not None and masks:
            known = self._tensordict(self._root) if self._parts else tensordict.exclude(*masks)
            root = partial_root(self.env, tensordict.select(*masks)).update(known.exclude(*self.env.action_keys))
            root.update(tensordict.select(*self.env.state_keys, strict=False))
        fresh = self.env.reset(root, set_state=set_state, options=options)
        self._root = {key: leaf for key, leaf in _leaves(fresh).items() if key not in self.env.action_keys}
        return self._with_legal(fresh)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step the environments; return the entries under ``next``."""
        return self._with_legal(self.env.step(tensordict).get("next"))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step the environments; return the entries under ``next``, and the root after the resets that follow."""
        stepped, root = self.env.step_and_maybe_reset(tensordict)
        return stepped.get("next"), self._with_legal(root)

    def run_members(
        self,
        method: str,
        parts: Mapping[int, Any],
        set_state: bool,  # noqa: FBT001  # a message
        options: Mapping[str, Any] | None,
    ) -> dict[int, tuple[TensorDictBase, Leaves]]:
        """Reset or step some environments whose specs differ; return their entries and masks of legal actions."""
        rows = self.env._run_members(method, parts, set_state=set_state, options=options)
        return {number: (row, self.env._member_masks(number)) for number, row in rows.items()}

    def _with_legal(self, found: TensorDictBase) -> TensorDictBase:
        """Return a result with the masks of legal actions below `LEGAL`; a mask that allows nothing stands for none."""
        masks: Any = {
            key: torch.zeros(shape, dtype=torch.bool) if (mask := self.env.full_action_spec[key].mask) is None else mask
            for key, shape in mask_shapes(self.env.full_action_spec).items()
        }
        return found.copy().set(LEGAL, TensorDict(masks, self.env.batch_size)) if masks else found

    def set_seed(self, number: int, seed: int, static_seed: bool) -> int:  # noqa: FBT001  # a message
        """Seed one environment; return the seed for the next one."""
        return self.env.set_member_seed(number, seed, static_seed=static_seed)

    def state_dict(self) -> dict[str, Any]:
        """States of the environments, and the root entries here, without actions: those after a reset have none."""
        root = {key: leaf for key, leaf in self._root.items() if key not in self.env.action_keys}
        return {"envs": self.env.state_dict()["envs"], "root": root if self._parts else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from a state."""
        device = self.env.device or "cpu"  # a file has the root on the CPU
        self._root = {key: leaf.to(device) for key, leaf in state["root"].items()}
        exact = self.env.load_state_dict(state)
        return exact and bool(self._root or not self._parts)  # a state without shared memory has no root

    def attribute(self, name: str) -> list[Any] | str:
        """Return the attribute of each environment, maybe a dotted path.

        Returns:
            A list; `CALLABLE` if it is a method, `MISSING` if there is none.
        """
        try:
            found = [attrgetter(name)(env) for env in self.env.envs]
        except AttributeError:
            return MISSING
        return CALLABLE if callable(found[0]) else found

    def assign(self, name: str, value: Any) -> str:
        """Set an attribute of each environment.

        Returns:
            Nothing; `MISSING` if there is no such attribute, or the reason why it is rejected.
        """
        try:
            inside = all(hasattr(env, name) for env in self.env.envs)
            for env in self.env.envs if inside else ():
                setattr(env, name, value)
        except AttributeError as error:
            return str(error)
        return "" if inside else MISSING

    def run(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Call a method of each environment."""
        return [getattr(env, name)(*args, **kwargs) for env in self.env.envs]

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def _leaves(td: Any) -> Leaves:
    return {key: td.get(key) for key in leaf_keys(td)}


def _copies(leaves: Leaves) -> Leaves:
    """Tensors of their own: an environment may keep what it is given."""
    return {key: leaf.clone() for key, leaf in leaves.items()}
