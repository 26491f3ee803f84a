"""Run of a component on the entries of its contract, compared with the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.keys import NestedKey, key_str, leaf_keys
from rl.core.testing._broadcast import NoBroadcast
from rl.core.testing._report import fail, require, same_values

__all__ = ["Tried", "require_declared_form", "require_kept", "seeded"]


def seeded(component: Any, td: TensorDictBase) -> Any:
    """Call the component on a shallow copy; what it draws from torch's generator is the same at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return component(td.copy())


class Tried:
    """A component that ran on the declared entries of a batch alone.

    Args:
        component: a callable on TensorDicts.
        contract: of the component.
        batch: holds at least the keys that are read.
        owner: name in messages.

    Raises:
        CheckError: if it reads what it does not declare, or broadcasts ``[B]`` with ``[B, 1]``.
    """

    def __init__(self, component: Any, contract: Contract, batch: TensorDictBase, owner: str) -> None:
        there = leaf_keys(batch)
        missing = [key for key in contract.in_keys if key not in there]
        require(not missing, f"the batch of this check must hold {missing}, which is read", owner)
        self.given = batch.select(*[key.name for key in contract.reads if key.name in there])
        self.before = self.given.clone()
        self.handed = self.given.copy()
        declared = {*leaf_keys(self.given), *contract.out_keys}
        self._extra = [key for key in there if key not in declared]
        self._owner, self._contract = owner, contract
        self.out: Any = self._run(component, batch)
        self._require_independent(component, batch)

    def _run(self, component: Any, batch: TensorDictBase) -> Any:
        with torch.random.fork_rng(devices=[]), NoBroadcast(batch.batch_size, self._owner):
            torch.manual_seed(0)
            try:
                return component(self.handed)
            except AssertionError:
                raise
            except Exception as error:
                self._explain(component, batch, error)
                raise

    def _explain(self, component: Any, batch: TensorDictBase, error: Exception) -> None:
        """Raise the error that names undeclared reads, if they are the reason of `error`."""
        whole = _raised(component, batch)
        text = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if whole is None:
            read = [key for key in self._extra if _raised(component, batch.exclude(key)) is not None] or self._extra
            fail(f"reads {read}, which the contract does not declare", self._owner)
        if isinstance(error, KeyError):
            fail(f"reads what neither the contract declares nor the batch holds: {text}", self._owner)
        fail(f"fails on the entries that the contract declares, with {text}", self._owner)

    def _require_independent(self, component: Any, batch: TensorDictBase) -> None:
        """The result does not depend on entries that are not declared."""
        if not self._extra or not isinstance(self.out, TensorDictBase):
            return
        keys = [key for key in self._contract.out_keys if key in leaf_keys(self.out)]
        if not _same(self.out, seeded(component, self.given), keys):
            return  # not repeatable: nothing can be compared
        if _same(self.out, seeded(component, batch), keys):
            return
        read = [key for key in self._extra if not _same(self.out, seeded(component, self._with(batch, key)), keys)]
        fail(f"reads {read}, which the contract does not declare: the result depends on it", self._owner)

    def _with(self, batch: TensorDictBase, key: NestedKey) -> TensorDictBase:
        return batch.select(*leaf_keys(self.given), key)


def _raised(component: Callable[[Any], Any], batch: TensorDictBase) -> Exception | None:
    try:
        seeded(component, batch)
    except Exception as error:  # noqa: BLE001  whether there is one is the question
        return error
    return None


def _same(one: TensorDictBase, two: Any, keys: list[NestedKey]) -> bool:
    return isinstance(two, TensorDictBase) and all(
        two.get(key, None) is not None and _close(one.get(key), two.get(key)) for key in keys
    )


def _close(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor) and one.shape == two.shape and one.is_floating_point():
        return torch.allclose(one, two, rtol=1e-5, atol=1e-6, equal_nan=True)
    return same_values(one, two)


def require_kept(before: TensorDictBase, after: TensorDictBase, but: Iterable[NestedKey], owner: str) -> None:
    """Raise unless `after` holds the entries of `before`, but for those that may be written."""
    allowed, present = set(but), set(leaf_keys(after))
    for key in leaf_keys(before):
        if key in present and key not in allowed:
            kept = same_values(before.get(key), after.get(key))
            require(kept, f"changed the entry {key_str(key)} of its input, which the contract does not declare", owner)


def require_declared_form(
    keys: Sequence[Key], entries: TensorDictBase, batch_size: torch.Size, letters: dict[str, int], owner: str
) -> None:
    """Raise unless entries have the shapes and dtypes that the contract declares.

    Args:
        keys: of the contract.
        entries: what was read or written.
        batch_size: what stands for ``*B``.
        letters: sizes by letter; those that are met for the first time are added.
        owner: name in messages.
    """
    for key in keys:
        value = entries.get(key.name, None)
        if not isinstance(value, Tensor):
            continue
        name = key_str(key.name)
        if key.dtype is not None:
            require(value.dtype == key.dtype, f"{name} is declared {key.dtype}, it is {value.dtype}", owner)
        if key.shape is None:
            continue
        lead = list(batch_size) if key.batched else []
        declared = "[" + ", ".join([*(["*B"] * key.batched), *map(str, key.shape)]) + "]"
        rest = list(value.shape)[len(lead) :]
        fits = list(value.shape)[: len(lead)] == lead and len(rest) == len(key.shape)
        for size, wanted in zip(rest, key.shape, strict=False):
            fits = fits and size == (letters.setdefault(wanted, size) if isinstance(wanted, str) else wanted)
        known = {letter: letters[letter] for letter in key.shape if isinstance(letter, str) and letter in letters}
        where = f" where {known}" if known else ""
        require(
            fits,
            f"{name} is declared {declared}, it is {list(value.shape)} in a batch {list(batch_size)}{where}",
            owner,
        )
