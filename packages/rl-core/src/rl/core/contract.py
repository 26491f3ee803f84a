"""What a component reads and writes, as data that can be checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rl.core.errors import ContractError
from rl.core.keys import NestedKey, key_str, nearest, unwrap

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase
    from torch import Tensor

__all__ = ["Contract", "Key", "missing_key_message"]


@dataclass(frozen=True)
class Key:
    """One entry that a component reads or writes.

    Args:
        name: a string or a tuple of strings.
        shape: dimensions behind the batch, letters or numbers: ``("O",)``, ``(1,)``, ``()``; None if it
            is not known.
        doc: what it is, with unit or range.
        dtype: None if any.
        optional: a reader does without it.
        remedy: what to do when nothing writes it; ends up in the error message.
        batched: whether the batch stands in front of `shape`; false for the scalars of a loss.
    """

    name: NestedKey
    shape: tuple[str | int, ...] | None = None
    doc: str = ""
    dtype: torch.dtype | None = None
    optional: bool = False
    remedy: str = ""
    batched: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", unwrap(self.name))


def missing_key_message(owner: str, key: Key, present: Iterable[NestedKey], where: str = "this batch") -> str:
    """The sentence that names a missing key, its reader, what is there, and what to do."""
    present = list(present)
    listed = ", ".join(".".join(k) if isinstance(k, tuple) else k for k in present) or "none"
    close = nearest(key.name, present)
    hint = f" Did you mean {key_str(close)}?" if close is not None else ""
    remedy = f" {key.remedy}" if key.remedy else ""
    return f"{owner} reads {key_str(key.name)}, which nothing in {where} wrote (keys: {listed}).{hint}{remedy}"


@dataclass(frozen=True)
class Contract:
    """Keys read and keys written, in the order in which they are documented.

    Args:
        reads: what the component takes from its input.
        writes: what it adds, or returns.

    Example:
        >>> contract = Contract(reads=(Key("reward", (1,)),), writes=(Key("advantage", (1,)),))
        >>> contract.rename({"reward": ("agents", "reward")}).in_keys
        [('agents', 'reward')]
    """

    reads: tuple[Key, ...] = ()
    writes: tuple[Key, ...] = ()
    _names: tuple[list[NestedKey], list[NestedKey]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        required = [key.name for key in self.reads if not key.optional]
        object.__setattr__(self, "_names", (required, [key.name for key in self.writes]))

    @property
    def in_keys(self) -> list[NestedKey]:
        """Names of the keys that must be there."""
        return list(self._names[0])

    @property
    def out_keys(self) -> list[NestedKey]:
        """Names of the keys that are written."""
        return list(self._names[1])

    def rename(self, names: Mapping[NestedKey, NestedKey]) -> Contract:
        """The same contract under other names.

        Raises:
            ContractError: if a name to be replaced is not in the contract.
        """
        known = {key.name for key in (*self.reads, *self.writes)}
        for old in names:
            if unwrap(old) not in known:
                close = nearest(old, known)
                hint = f"; did you mean {key_str(close)}?" if close is not None else ""
                raise ContractError(f"cannot rename {key_str(old)}: the contract has no such key{hint}")
        table = {unwrap(old): unwrap(new) for old, new in names.items()}

        def renamed(keys: tuple[Key, ...]) -> tuple[Key, ...]:
            return tuple(replace(key, name=table.get(key.name, key.name)) for key in keys)

        return Contract(reads=renamed(self.reads), writes=renamed(self.writes))

    def read(self, td: TensorDictBase, owner: object) -> list[Tensor]:
        """The tensors under `in_keys`, in order.

        Raises:
            ContractError: if one is absent; the message names the key, the reader and the nearest key.
        """
        values: list[Any] = [td.get(name, None) for name in self._names[0]]
        for value, name in zip(values, self._names[0], strict=True):
            if value is None:
                self.refuse(td, name, owner)
        return values

    def refuse(self, td: TensorDictBase, name: NestedKey, owner: object) -> None:
        """Raise the error about the absent key `name`.

        Raises:
            ContractError: always.
        """
        key = next((key for key in self.reads if key.name == name), Key(name))
        who = owner if isinstance(owner, str) else type(owner).__name__
        present = list(td.keys(include_nested=True, leaves_only=True))
        raise ContractError(missing_key_message(who, key, present))
