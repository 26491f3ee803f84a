"""Leaves of TensorDicts and specs by flat key, and the types of functions on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import DONE, NestedKey
from rl.core.specs import Composite, group_sizes, set_group_sizes

LeafAct = Callable[[Leaves], Leaves | None]
"""Policy on leaves: writes its root entries into the root, and returns its entries under ``next``, or None."""

LeafStep = Callable[[Leaves], Leaves]
"""`LeafEnv.step_leaves`, possibly with checks or a clock."""

TensorDictAct = Callable[[TensorDictBase], TensorDictBase]
"""Policy that returns its argument, or another TensorDict, with the actions."""

TensorDictStep = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]
"""`Env.step_and_maybe_reset`, possibly with checks or a clock."""


def leaves_of(tensordict: TensorDictBase) -> Leaves:
    """Return the entries by flat key, including non-tensor data."""
    entries: Any = tensordict.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return dict(entries)


def groups_of(env: Any) -> dict[NestedKey, torch.Size]:
    """Return the batch sizes of the groups of an environment."""
    specs = [getattr(env, f"full_{part}_spec", None) for part in ("state", "action", "reward", "done")]
    return group_sizes(spec for spec in (env.observation_spec, *specs) if isinstance(spec, Composite))


def tensordict_of(leaves: Leaves, batch_size: Any, groups: Mapping[NestedKey, torch.Size]) -> TensorDict:
    """Return the TensorDict of leaves, with the batch sizes of `groups`: the inverse of `leaves_of`."""
    nested: dict[str, Any] = {}
    for key, leaf in leaves.items():
        if isinstance(key, str):
            nested[key] = leaf
            continue
        place = nested
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = leaf
    out = TensorDict(nested, batch_size=batch_size)
    set_group_sizes(out, groups)
    return out


Around = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Wraps a function that is timed under a name; see `Clock.around`."""


def _as_it_is(_: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class LeafLoop:
    """Loop over a `LeafEnv` that keeps the root of the next step; None stands for a reset.

    Args:
        env: Leaf form of the environment.
        rewards: Reward keys; they are written under ``next`` and not copied to the root.
        around: Function that adds a clock to resets.
        acts: Action keys, if the other root entries of the policy are copied to the next root, as `rl.core.step_mdp`
            does; None for a policy of known inputs, which does not need them.
        done: Key of the flag of elements that are reset.
        asks: Whether to reset only after steps at which an element is done, which reads a value of the device. If
            false, every step resets, with a mask that may be empty.
    """

    def __init__(
        self,
        env: LeafEnv,
        rewards: Iterable[NestedKey],
        around: Around = _as_it_is,
        acts: Iterable[NestedKey] | None = None,
        done: NestedKey = DONE,
        *,
        asks: bool = True,
    ) -> None:
        self.root: Leaves | None = None
        self.reset = around("env", env.reset_leaves)
        self._rewards, self._done = list(rewards), done
        self._acts = None if acts is None else list(acts)
        # reading one flag is eight times cheaper than a reduction
        self._any: Callable[[Tensor], Any] = _itself if env.batch_size.numel() == 1 else Tensor.any
        if not asks:
            self._any = _always

    def run(self, steps: int, act: LeafAct, step: LeafStep, roots: list[Leaves], nexts: list[Leaves]) -> None:
        """Take `steps` steps and append their entries to `roots` and `nexts`.

        Args:
            steps: Number of steps.
            act: Policy.
            step: Step of the environment.
            roots: List for one dict a step: observations, flags, policy outputs.
            nexts: List for one dict a step: entries under ``next``.
        """
        root = self.reset() if self.root is None else self.root
        self.root = None  # after an exception the environment is at an unknown step
        rewards, any_of, reset, acts, key_done = self._rewards, self._any, self.reset, self._acts, self._done
        known, constants = list(root), None
        for _ in range(steps):
            extra = act(root)
            roots.append(root)
            nxt = step(root)
            if extra:
                nxt = {**extra, **nxt}
            nexts.append(nxt)
            if constants is None:  # entries that only a reset writes are constant
                kept = known if acts is None else [*known, *[key for key in root if key not in (*known, *acts)]]
                constants = [key for key in kept if key not in nxt]
            following = nxt.copy()
            for key in rewards:
                del following[key]
            for key in constants:
                following[key] = root[key]
            done = nxt[key_done]
            if any_of(done):
                following.update(reset(following, done))
            root = following
        self.root = root


def _itself(done: Tensor) -> Tensor:
    return done


def _always(_: Tensor) -> bool:
    return True
