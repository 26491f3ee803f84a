"""Does a component read and write what its contract says, and nothing else?"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core._explain import contract_of
from rl.core.keys import NestedKey, unwrap

__all__ = ["check_contract"]


def check_contract(component: Any, td: TensorDictBase) -> TensorDictBase:
    """Run `component` on the keys that it reads alone: it must write what it declares, and leave the rest.

    Args:
        component: a callable on TensorDicts with a ``contract``, or with ``in_keys`` and ``out_keys``.
        td: an input that holds at least the keys that are read.

    Returns:
        What the component returned.

    Raises:
        AssertionError: a sentence about the first promise that is broken.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> double = TensorDictModule(lambda x: 2 * x, in_keys=["observation"], out_keys=["action"])
        >>> td = TensorDict(observation=torch.ones(3), other=torch.zeros(3), batch_size=[3])
        >>> sorted(check_contract(double, td).keys())
        ['action', 'observation']
    """
    contract, name = contract_of(component), type(component).__name__
    given = td.select(*[key.name for key in contract.reads if key.name in _leaves(td)])
    missing = [key for key in contract.in_keys if key not in _leaves(given)]
    assert not missing, f"the input of this check must hold {missing}, which {name} reads"
    before = given.clone()
    out = component(given.clone(recurse=False))
    declared, written = set(contract.out_keys), set(_leaves(out))
    assert declared <= written, f"{name} declares {_sorted(declared - written)} and did not write it"
    undeclared = written - declared - set(_leaves(before))
    assert not undeclared, f"{name} wrote {_sorted(undeclared)}, which its contract does not declare"
    for key in _leaves(before):
        same = torch.equal(before[key], given[key])
        assert same, f"{name} changed its input {key!r} in place"
    return out


def _leaves(td: TensorDictBase) -> list[NestedKey]:
    return [unwrap(key) for key in td.keys(include_nested=True, leaves_only=True)]


def _sorted(keys: set[NestedKey]) -> list[NestedKey]:
    return sorted(keys, key=str)
