"""The environments of one worker of `ParallelEnv` or `AsyncEnvPool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase

from rl.core.interfaces import Env, Leaves
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.mdp import where_reset
from rl.core.workers import SharedLeaves
from rl.envs.base._specs import leaf_keys
from rl.envs.batched._members import described
from rl.envs.batched._serial import SerialEnv

__all__ = [
    "CALLABLE",
    "HELD",
    "INPUT",
    "MASK",
    "MISSING",
    "OUTPUT",
    "RESET",
    "RESET_ROWS",
    "ROOT",
    "STEP",
    "STEP_AND_RESET",
    "STEP_ROWS",
    "Chunk",
]

STEP, STEP_ROWS, RESET, RESET_ROWS, STEP_AND_RESET = range(5)
"""Numbers of the commands."""
INPUT, OUTPUT, MASK, HELD, ROOT = "input", "output", "mask", "held", "root"
"""First parts of the keys in shared memory: action and state, results, masks of resets, mask of a step, and the root
entries after a step and the resets that follow it."""
CALLABLE, MISSING = "a method", "missing"
"""What `Chunk.attribute` returns besides values."""


class Chunk:
    """Some environments of a `ParallelEnv` or `AsyncEnvPool`, and their rows of the shared memory.

    The root entries stay here: the parent sends actions and state only.

    Args:
        makers: functions that make the environments.
        first: number of the first one.
        shared: memory of all workers; None for messages.
    """

    def __init__(self, makers: Sequence[Callable[[], Env]], first: int, shared: SharedLeaves | None) -> None:
        self.env = SerialEnv(len(makers), makers)
        self._rows = slice(first, first + len(makers))
        self._shared = shared
        self._leaf = self.env.lowered()
        self._rewards = set(self.env.reward_keys)
        self._root: Leaves = _leaves(self.env.observation_spec.zero().update(self.env.full_done_spec.zero()))
        self._parts: dict[str, Leaves] = {}
        self._last: Leaves = {}
        self.commands = (self._step, self._step_rows, self._reset, self._reset_rows, self._step_and_reset)

    # ---- commands, with data in shared memory

    def _step(self) -> None:
        root = {**self._root, **_copies(self._parts[INPUT])}
        outcome = self._outcome(root)
        self._write(outcome)
        self._root = {key: leaf for key, leaf in {**root, **outcome}.items() if key not in self._rewards}

    def _step_rows(self) -> None:
        root = {**self._root, **_copies(self._parts[INPUT])}
        (held,) = _copies(self._parts[HELD]).values()
        outcome = self._outcome({**root, "_step": held})
        self._write(outcome)
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
        self._write(self._root)

    def _reset_rows(self) -> None:
        masks = _copies(self._parts[MASK])
        if self._leaf is None and len(masks) > 1:  # that of the root is the union, and would override them
            del masks["_reset"]
        self._reset_where(masks)
        self._write(self._root)

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
        for key, place in self._parts[ROOT].items():
            if key in self._root:
                place.copy_(self._root[key])

    def _write(self, entries: Leaves) -> None:
        for key, place in self._parts[OUTPUT].items():
            if key in entries:
                place.copy_(entries[key])
        self._last = entries

    def _tensordict(self, leaves: Leaves) -> TensorDict:
        entries: Any = leaves
        return TensorDict(entries, batch_size=self.env.batch_size)

    # ---- messages

    def describe(self) -> dict[str, Any]:
        """Specs and batch of one environment, and whether it has a leaf form."""
        first = self.env.envs[0]
        return {**described(first), "leaf": self._leaf is not None, "name": repr(first)}

    def map(self, layout: Mapping[NestedKey, Any]) -> None:
        """Map the shared memory."""
        assert self._shared is not None
        self._parts = {part: {} for part in (INPUT, OUTPUT, MASK, HELD, ROOT)}
        for (part, *key), leaf in self._shared.map(layout).items():
            self._parts[part][unwrap(tuple(key))] = leaf[self._rows]

    def written(self) -> set[NestedKey]:
        """Keys that the last reset or step wrote."""
        return set(self._last)

    def root_keys(self) -> set[NestedKey]:
        """Keys of the root entries."""
        return set(self._root)

    def reset(self, tensordict: TensorDictBase | None, set_state: bool) -> TensorDictBase:  # noqa: FBT001  # a message
        """Reset the environments."""
        fresh = self.env.reset(tensordict, set_state=set_state)
        self._root = {key: leaf for key, leaf in _leaves(fresh).items() if key not in self.env.action_keys}
        return fresh

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step the environments; return the entries under ``next``."""
        return self.env.step(tensordict).get("next")

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step the environments; return the entries under ``next``, and the root after the resets that follow."""
        stepped, root = self.env.step_and_maybe_reset(tensordict)
        return stepped.get("next"), root

    def set_seed(self, number: int, seed: int) -> int:
        """Seed one environment; return the seed for the next one."""
        return self.env.envs[number].set_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """States of the environments, and the root entries here."""
        return {"envs": self.env.state_dict()["envs"], "root": self._root}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from a state."""
        device = self.env.device or "cpu"  # a file has the root on the CPU
        self._root = {key: leaf.to(device) for key, leaf in state["root"].items()}
        return self.env.load_state_dict(state)

    def attribute(self, name: str) -> list[Any] | str:
        """The attribute of each environment; `CALLABLE` if it is a method, `MISSING` if there is none."""
        try:
            found = [getattr(env, name) for env in self.env.envs]
        except AttributeError:
            return MISSING
        return CALLABLE if callable(found[0]) else found

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
