"""`check_contract`: a component reads and writes the entries of its contract and no others."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from rl.core.contract import contract_of
from rl.core.keys import NestedKey, leaf_keys
from rl.core.testing._contracts import Tried, require_declared_form, require_kept
from rl.core.testing._report import require

__all__ = ["check_contract"]


def check_contract(component: Any, td: TensorDictBase) -> TensorDictBase:
    """Run `component` on the keys that it reads alone: it must write what it declares, and leave the rest.

    Shapes and dtypes of both are compared with those of the contract's `Key` objects.

    Args:
        component: a callable on TensorDicts with a ``contract``, or with ``in_keys`` and ``out_keys``.
        td: an input that holds at least the keys that are read.

    Returns:
        What the component returned.

    Raises:
        CheckError: an `AssertionError` about the first promise that is broken, the reason first.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> double = TensorDictModule(lambda x: 2 * x, in_keys=["observation"], out_keys=["action"])
        >>> td = TensorDict(observation=torch.ones(3), other=torch.zeros(3), batch_size=[3])
        >>> sorted(check_contract(double, td).keys())
        ['action', 'observation']
    """
    contract, name = contract_of(component), type(component).__name__
    tried = Tried(component, contract, td, name)
    out = tried.out
    require(isinstance(out, TensorDictBase), f"must return a TensorDict, got {type(out).__name__}", name)
    declared, written = set(contract.out_keys), set(leaf_keys(out))
    require(declared <= written, f"{_sorted(declared - written)} is declared and was not written", name)
    for entries in (out, tried.handed):
        undeclared = set(leaf_keys(entries)) - declared - set(leaf_keys(tried.before))
        require(not undeclared, f"{_sorted(undeclared)} was written and is not declared", name)
    require_kept(tried.before, tried.given, (), name)  # nothing in place
    for entries in (out, tried.handed):
        require_kept(tried.before, entries, declared, name)
    letters: dict[str, int] = {}
    require_declared_form(contract.reads, tried.before, td.batch_size, letters, name)
    require_declared_form(contract.writes, out, td.batch_size, letters, name)
    return out


def _sorted(keys: set[NestedKey]) -> list[NestedKey]:
    return sorted(keys, key=str)
