"""Detection of policies and environments that reuse their output memory.

The leaf loop keeps the outputs of policy and environment and stacks them later. A policy that writes into the same
memory at every step (a CUDA graph, a preallocated buffer) would overwrite them. The first two steps detect this; the
reused entries are then copied at every step.
"""

from __future__ import annotations

import torch

from rl.collectors._loops.leaves import LeafAct, LeafStep
from rl.core.errors import ContractError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, key_str, next_key

__all__ = ["ActProbe", "StepProbe"]


class ActProbe:
    """Wrapper of a policy that copies its outputs and records their memory.

    Args:
        act: the policy.
    """

    def __init__(self, act: LeafAct) -> None:
        self._act = act
        self._seen: list[Leaves] = []

    def __call__(self, root: Leaves) -> Leaves | None:
        before = root.copy()
        extra = self._act(root) or {}
        written = {key: leaf for key, leaf in root.items() if before.get(key) is not leaf}
        self._seen.append({**written, **{next_key(key): leaf for key, leaf in extra.items()}})
        root.update({key: leaf.clone() for key, leaf in written.items()})
        return {key: leaf.clone() for key, leaf in extra.items()} or None

    def settle(self) -> LeafAct | None:
        """Return, after two steps, the policy itself, or with copies of reused entries; None before."""
        if len(self._seen) < 2:
            return None
        reused = _same_memory(*self._seen[-2:])
        act = self._act
        if not reused:
            return act

        def copying(root: Leaves) -> Leaves | None:
            extra = act(root)
            for key in reused:
                if key in root:
                    root[key] = root[key].clone()
            return extra and {k: leaf.clone() if next_key(k) in reused else leaf for k, leaf in extra.items()}

        return copying


class StepProbe:
    """Wrapper of a step that refuses an environment whose leaf form returns the same memory twice.

    Args:
        step: `LeafEnv.step_leaves`.
        owner: name of the environment, for messages.
    """

    def __init__(self, step: LeafStep, owner: str) -> None:
        self._step, self._owner = step, owner
        self._last: Leaves = {}
        self._copies: Leaves = {}

    def __call__(self, root: Leaves) -> Leaves:
        nxt = self._step(root)
        kept = self._last
        # constants (flags that are rarely set) may share memory: what counts is that kept values stay
        reused = [key for key in _same_memory(kept, nxt) if not torch.equal(kept[key], self._copies[key])]
        if reused:
            raise ContractError(
                f"{self._owner}.step_leaves returned {', '.join(map(key_str, reused))} in the memory of the previous"
                " step, which the collector still holds: return new tensors (clone them), or offer no lowered()"
            )
        self._last, self._copies = nxt, {key: leaf.clone() for key, leaf in nxt.items()}
        return nxt


def _same_memory(one: Leaves, other: Leaves) -> list[NestedKey]:
    return [
        key for key, leaf in other.items() if key in one and leaf.numel() and leaf.data_ptr() == one[key].data_ptr()
    ]
