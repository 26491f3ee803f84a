"""Done flags of an environment, their completion and the masks of partial resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ShapeError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import complete_done, done_levels, reset_masks
from rl.core.specs import Composite

__all__ = ["Flags", "Masks"]

Masks = dict[tuple[str, ...], Tensor]
"""Reset masks by level, as `rl.core.mdp.reset_masks` gives them."""


class Flags:
    """The done flags of an environment, by level.

    Args:
        keys: all flags of its done spec.

    Example:
        >>> flags = Flags(["done", "terminated"])
        >>> flags.complete({"terminated": torch.tensor([True])})["done"]
        tensor([True])
    """

    def __init__(self, keys: Sequence[NestedKey]) -> None:
        self.keys = list(keys)
        self.levels = done_levels(keys)
        self.done_keys: list[NestedKey] = [unwrap((*level, "done")) for level in self.levels]
        self.reset_keys: list[NestedKey] = [unwrap((*level, "_reset")) for level in self.levels]
        self._names = [[as_tuple(key)[-1] for key in keys if as_tuple(key)[:-1] == level] for level in self.levels]

    def complete(self, entries: Any, spec: Composite | None = None, owner: str = "the environment") -> Any:
        """Add the flags that a step did not write, by the rules of `rl.core.mdp.complete_done`.

        Args:
            entries: a mapping or a TensorDict; written in place.
            spec: the batched done spec, which says the shape where there is no flag at all.
            owner: name of the environment, for messages.
        """
        if any(entries.get(key, None) is None for key in self.keys):
            for level, done, names in zip(self.levels, self.done_keys, self._names, strict=True):
                shape = None if spec is None else spec[done].shape
                complete_done(entries, level=level, flags=names, shape=shape, owner=owner)
        return entries

    def check(self, entries: Any, owner: str) -> None:
        """Raise a ContractError unless ``done = terminated | truncated`` at each level; all flags must be there."""
        for level in self.levels:
            complete_done(entries, level=level, flags=(), owner=owner)

    def clear(self, entries: Any, spec: Composite) -> Any:
        """Add the flags that a reset did not write: all false."""
        for key in self.keys:
            if entries.get(key, None) is None:
                entries[key] = spec[key].zero()
        return entries

    def take_masks(self, td: Any, spec: Composite, owner: str) -> Masks | None:
        """Remove the ``_reset`` entries from `td` and return them.

        Returns:
            None if there is none: everything is reset.

        Raises:
            ShapeError: if a mask is not bool or does not have the shape of the flag next to it.
        """
        masks = reset_masks(td, self.done_keys)
        for level, mask in masks.items():
            done = unwrap((*level, "done"))
            shape = spec[done].shape if level in self.levels else None
            if mask.dtype != torch.bool or (shape is not None and mask.shape != shape):
                wanted = tuple(mask.shape if shape is None else shape)
                raise ShapeError(
                    f"{owner}.reset was given {key_str((*level, '_reset'))} of {mask.dtype} {tuple(mask.shape)}; it"
                    " must be"
                    f" torch.bool {wanted}, as {key_str(done)}"
                )
        for key in {*self.reset_keys, "_reset"}:
            if td.get(key, None) is not None:
                del td[key]
        return masks or None
