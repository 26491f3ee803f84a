"""`Contract`: the entries that a component reads and writes, checked before a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from rl.core.errors import ContractError
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, nearest, unwrap

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase
    from torch import Tensor

__all__ = ["Contract", "Key", "MissingKey", "missing_key_message", "missing_keys_message"]


@dataclass(frozen=True)
class Key:
    """One entry that a component reads or writes.

    Args:
        name: a string or a tuple of strings.
        shape: dimensions behind the batch, letters or numbers: ``("O",)``, ``(1,)``, ``()``; None if it
            is not known. Of an entry of a group of agents, ``("agents", "action")``, those behind the agents.
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
        parts = (self.name,) if isinstance(self.name, str) else self.name
        if not isinstance(parts, list | tuple) or not parts or not all(isinstance(part, str) for part in parts):
            raise ContractError(f"a key is a string or a tuple of strings, got {self.name!r}")
        object.__setattr__(self, "name", unwrap(self.name))


@dataclass(frozen=True)
class MissingKey:
    """A key that is read and that nothing wrote before.

    Args:
        owner: the component that reads it.
        key: what is read.
        present: what was written before.
    """

    owner: str
    key: Key
    present: tuple[NestedKey, ...]

    @property
    def hint(self) -> str:
        """The nearest key that exists, as a question; empty if none is near."""
        close = nearest(self.key.name, self.present)
        return f" Did you mean {key_str(close)}?" if close is not None else ""


def missing_key_message(owner: str, key: Key, present: Iterable[NestedKey], where: str = "this batch") -> str:
    """The sentence that names a missing key, its reader, the keys that are present, and the remedy."""
    return missing_keys_message([MissingKey(owner, key, tuple(present))], where)


def missing_keys_message(missing: Sequence[MissingKey], where: str = "this batch") -> str:
    """One message about one or several missing keys: a line for each reader and remedy, what is there once."""
    groups: dict[tuple[str, str, str], list[MissingKey]] = {}
    for one in missing:
        groups.setdefault((one.owner, one.hint, one.key.remedy), []).append(one)
    present = dict.fromkeys(one.present for one in missing)
    alone = len(groups) == 1
    lines: list[str] = []
    for (owner, hint, remedy), ones in groups.items():
        listed = f" ({_listed(ones[0].present)})" if alone or len(present) > 1 else ""
        names = " and ".join(key_str(one.key.name) for one in ones)
        lines.append(
            f"{owner} reads {names}, which nothing in {where} wrote{listed}.{hint}{f' {remedy}' if remedy else ''}"
        )
    if not alone and len(present) == 1:
        lines.append(f"({_listed(missing[0].present)})")
    return "\n".join(lines)


def _listed(present: Iterable[NestedKey]) -> str:
    return f"keys: {', '.join('.'.join(as_tuple(key)) for key in present) or 'none'}"


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
        for role, keys in (("reads", self.reads), ("writes", self.writes)):
            if not isinstance(keys, tuple) or not all(isinstance(key, Key) for key in keys):
                raise ContractError(f"{role} of a Contract is a tuple of Key objects, got {keys!r}")
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

    def refuse(self, td: TensorDictBase, name: NestedKey, owner: object) -> NoReturn:
        """Raise the error about the absent key `name`; it also names all others that are required and absent.

        Raises:
            ContractError: always.
        """
        key = next((key for key in self.reads if key.name == name), Key(name))
        who = owner if isinstance(owner, str) else type(owner).__name__
        present = tuple(leaf_keys(td))
        others = [k for k in self.reads if k.name != name and not k.optional and td.get(k.name, None) is None]
        raise ContractError(missing_keys_message([MissingKey(who, k, present) for k in (key, *others)]))
