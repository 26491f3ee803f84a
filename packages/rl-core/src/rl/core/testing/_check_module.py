"""Conformance of a module: a network, policy or critic on named entries."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.contract import contract_of
from rl.core.keys import NestedKey, key_str, leaf_keys
from rl.core.lowering import lower
from rl.core.testing._check_contract import check_contract
from rl.core.testing._contracts import seeded
from rl.core.testing._report import Report, fail, require, same_values

__all__ = ["check_module"]


def check_module(module: Any, td: TensorDictBase) -> Report:
    """Check a module: what it reads and writes, its parameters, copies, pickle, state_dict and lowered form.

    It passes `check_contract`, nothing that it writes is float64 unless its input or a parameter is, every parameter
    that it computes with is registered, and copies compute with parameters of their own. Its randomness is that of
    torch's generator. The lowered form, if there is one, gives the same numbers.

    Args:
        module: a callable on TensorDicts with ``in_keys`` and ``out_keys``, or a ``contract``.
        td: an input that holds at least the keys that are read.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` with the reason first.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> td = TensorDict(observation=torch.ones(2, 3), batch_size=[2])
        >>> check_module(TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"]), td)
        Report(owner='TensorDictModule', not_exercised=[])
    """
    owner = type(module).__name__
    report = Report(owner)
    out = check_contract(module, td)
    keys = contract_of(module).out_keys
    _check_dtypes(module, td, out, keys, owner)
    repeatable = _agree(seeded(module, td), seeded(module, td), keys)
    require(repeatable, "the same seed gives two results: it is random in another way, or keeps a state", owner)
    if not isinstance(module, nn.Module):
        report.skip("parameters, copies and states: it is no torch.nn.Module")
        return report.warn()
    _check_registered(module, td, keys, owner)
    _check_copies(module, td, keys, owner)
    _check_lowered(module, td, keys, report)
    return report.warn()


def _agree(one: TensorDictBase, two: TensorDictBase, keys: list[NestedKey]) -> bool:
    for key in keys:
        left, right = one.get(key), two.get(key)
        if isinstance(left, Tensor) and left.is_floating_point():
            if left.shape != right.shape or not torch.allclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True):
                return False
        elif not same_values(left, right):
            return False
    return True


def _check_dtypes(module: Any, td: TensorDictBase, out: TensorDictBase, keys: list[NestedKey], owner: str) -> None:
    sources = [*td.values(include_nested=True, leaves_only=True)]
    sources += [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else []
    if any(getattr(value, "dtype", None) is torch.float64 for value in sources):
        return
    for key in keys:
        value = out.get(key)
        wide = isinstance(value, Tensor) and value.dtype is torch.float64
        require(not wide, f"{key_str(key)} is float64, although nothing that is read is: expected float32", owner)


def _check_registered(module: nn.Module, td: TensorDictBase, keys: list[NestedKey], owner: str) -> None:
    """Every tensor that gradients accumulate in is a parameter of the module, or one of its inputs."""
    out = seeded(module, td)
    known = {id(p) for p in module.parameters()} | {id(td.get(key)) for key in leaf_keys(td)}
    edges = [value.grad_fn for key in keys if isinstance(value := out.get(key), Tensor) and value.grad_fn is not None]
    seen: set[Any] = set()
    while edges:
        node: Any = edges.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        registered = variable is None or id(variable) in known
        shape = [] if variable is None else list(variable.shape)
        require(registered, f"a parameter of shape {shape} is not registered: no optimizer and no state has it", owner)
        edges += [following for following, _ in node.next_functions]


def _check_copies(module: nn.Module, td: TensorDictBase, keys: list[NestedKey], owner: str) -> None:
    before = seeded(module, td)
    try:
        pickled = pickle.loads(pickle.dumps(module))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fail(f"cannot be pickled: {error}", owner)
    for what, copy in (("a deep copy", deepcopy(module)), ("a pickle", pickled)):
        require(_agree(before, seeded(copy, td), keys), f"{what} gives another result", owner)
        state = deepcopy(module.state_dict())
        with torch.no_grad():
            for value in copy.parameters():
                value.add_(torch.linspace(0.1, 0.3, value.numel()).to(value).view_as(value))
        own = _agree(before, seeded(module, td), keys)
        require(own, f"{what} shares its parameters with the original", owner)
        copy.load_state_dict(state)
        complete = _agree(before, seeded(copy, td), keys)
        require(complete, f"the state_dict is incomplete: {what} that loads it gives another result", owner)


def _check_lowered(module: nn.Module, td: TensorDictBase, keys: list[NestedKey], report: Report) -> None:
    lowered = lower(module)
    if lowered is None:
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        leaves = lowered(*[td.get(key) for key in lowered.in_keys])
    with torch.no_grad():
        out = seeded(module, td)
    for key, leaf in zip(lowered.out_keys, leaves, strict=True):
        if key in keys:
            same = torch.allclose(leaf.float(), out.get(key).float(), rtol=1e-5, atol=1e-6, equal_nan=True)
            require(same, f"the lowered form gives another {key_str(key)}", report.owner)
