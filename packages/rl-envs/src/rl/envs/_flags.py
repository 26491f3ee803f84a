"""Done flags: which of the three a step left out, and what they then are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, unwrap
from torch import Tensor

__all__ = ["Flags"]


class Flags:
    """The done flags of an environment, in groups that lie side by side.

    Args:
        owner: name of the environment, for messages.
        keys: all flags of its done spec.

    Example:
        >>> flags = Flags("Env", ["done", "terminated"])
        >>> entries = {"terminated": torch.tensor([True])}
        >>> flags.complete(entries)["done"]
        tensor([True])
    """

    def __init__(self, owner: str, keys: Sequence[NestedKey]) -> None:
        self.owner = owner
        self.keys = list(keys)
        groups: dict[tuple[str, ...], set[str]] = {}
        for key in keys:
            *prefix, name = as_tuple(key)
            groups.setdefault(tuple(prefix), set()).add(name)
        self.groups: list[tuple[tuple[str, ...], bool]] = [
            (prefix, "truncated" in names) for prefix, names in groups.items()
        ]
        self.done_keys: list[NestedKey] = [unwrap((*prefix, "done")) for prefix, _ in self.groups]
        self.reset_keys: list[NestedKey] = [unwrap((*prefix, "_reset")) for prefix, _ in self.groups]

    def complete(self, entries: Any) -> Any:
        """Add the flags that a step did not write.

        Of ``terminated`` alone, and of ``terminated`` and ``truncated``, ``done`` is the union; ``done`` alone is
        a termination; a missing ``truncated`` is false.

        Args:
            entries: a mapping or a TensorDict; written in place.

        Raises:
            SpecError: if nothing says whether the episode is over, or only ``done`` and ``truncated`` do.
        """
        for prefix, has_truncated in self.groups:
            self._complete_group(entries, prefix, has_truncated=has_truncated)
        return entries

    def _complete_group(self, entries: Any, prefix: tuple[str, ...], *, has_truncated: bool) -> None:
        names = [unwrap((*prefix, name)) for name in ("done", "terminated", "truncated")]
        done, terminated, truncated = (entries.get(name, None) for name in names)
        if done is None and terminated is None:
            raise SpecError(
                f"{self.owner}._step wrote neither {names[0]!r} nor {names[1]!r}: return at least one of them"
            )
        if terminated is None:
            if truncated is not None:
                raise SpecError(
                    f"{self.owner}._step wrote {names[0]!r} and {names[2]!r} without {names[1]!r}: whether the"
                    " episode terminated cannot be told from them; return it too"
                )
            entries[names[1]] = terminated = done.clone()
        if done is None:
            entries[names[0]] = terminated.clone() if truncated is None else terminated | truncated
        if truncated is None and has_truncated:
            entries[names[2]] = torch.zeros_like(terminated)

    def clear(self, entries: Any, template: Any) -> Any:
        """Add the flags that a reset did not write: all false.

        Args:
            entries: a mapping or a TensorDict; written in place.
            template: the batched done spec.
        """
        for key in self.keys:
            if entries.get(key, None) is None:
                entries[key] = template[key].zero()
        return entries

    def any_done(self, entries: Any) -> Tensor | None:
        """The mask of what is over, ``done`` of each group over all its places; None if nothing is.

        Returns:
            For one group its ``done``; for several the union over each element of the batch.
        """
        if len(self.done_keys) == 1:
            done = entries.get(self.done_keys[0])
            return done if bool(done.any()) else None
        masks = {key: entries.get(key) for key in self.done_keys}
        return masks if any(bool(mask.any()) for mask in masks.values()) else None  # type: ignore[return-value]
