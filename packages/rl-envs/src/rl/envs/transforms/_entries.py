"""Entries of TensorDicts and of plain dicts, for transforms that reset or step the environment themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.mdp import where_reset
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._specs import Specs

__all__ = ["check_root_done", "element_mask", "entry_keys", "following_root", "merged", "step_mask"]


def entry_keys(entries: Any) -> list[NestedKey]:
    """The keys of entries; of a TensorDict those of its leaves."""
    return list(entries) if isinstance(entries, dict) else leaf_keys(entries)


def merged(mask: Tensor, fresh: Any, current: Any) -> Any:
    """`fresh` where the mask is set, else `current`; entries that `current` lacks are those of `fresh`.

    Args:
        mask: bool ``[*B, 1]``.
        fresh: entries, which are not written.
        current: entries of the same form.
    """
    out = fresh.copy()
    for key in entry_keys(fresh):
        old = current.get(key, None)
        if old is not None:
            out[key] = where_reset(mask, fresh[key], old)
    return out


def following_root(root: Any, outcome: Any) -> Any:
    """The root of another step with the same action: `root` with the entries of `outcome`."""
    following = root.copy()
    following.update(outcome)
    return following


def step_mask(root: Any, done: Tensor) -> Tensor:
    """The elements that a step moves, bool in the shape of `done`: ``_step``, or all."""
    given = root.get("_step", None)
    return torch.ones_like(done) if given is None else given.reshape(done.shape)


def check_root_done(specs: Specs, owner: object) -> None:
    """Raise a SpecError unless episodes end at the root alone."""
    if specs.done_levels() != [()]:
        raise SpecError(f"{owner!r} needs a 'done' at the root, the environment has {specs.done_levels()}")


def element_mask(given: Any, done: Tensor, owner: object) -> Tensor:
    """A condition as a mask in the shape of `done`.

    Raises:
        SpecError: if it has neither one value nor one for each element.
    """
    mask = torch.as_tensor(given, device=done.device)
    if mask.dtype != torch.bool or mask.numel() not in {1, done.numel()}:
        raise SpecError(
            f"the condition of {owner!r} must be bool with one value for each element, got {mask.dtype}"
            f" {tuple(mask.shape)} for done {tuple(done.shape)}"
        )
    return mask.reshape(done.shape) if mask.numel() == done.numel() else mask.reshape(()).expand(done.shape)
