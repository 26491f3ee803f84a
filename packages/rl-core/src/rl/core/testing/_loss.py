"""Conformance of a `rl.core.interfaces.Loss`."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core._explain import contract_of
from rl.core.contract import Contract
from rl.core.errors import ContractError
from rl.core.keys import TD_ERROR, NestedKey, key_str, unwrap

__all__ = ["check_loss"]


def check_loss(loss: Any, batch: TensorDictBase, *, annotates: Iterable[NestedKey] = (TD_ERROR,)) -> TensorDictBase:
    """Check what trainers and loggers take for granted of a loss.

    The keys that it reads suffice, and each of them that is missing is named by a `ContractError`. It returns exactly
    what it declares: scalars; those whose names start with ``loss`` are finite and carry a gradient that reaches every
    network with trained parameters, the others are detached. The batch stays as it is, but for annotations. Without
    gradients, from a deep copy and from a pickle it returns the same, and a copy has parameters of its own.

    Args:
        loss: has a ``contract``, or ``in_keys`` and ``out_keys``; usually an `torch.nn.Module`.
        batch: holds at least the keys that are read.
        annotates: keys that the loss may add to its input.

    Returns:
        What the loss returned.

    Raises:
        AssertionError: a sentence about the first promise that is broken.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.core.contract import Contract, Key
        >>> class Squared(nn.Module):
        ...     contract = Contract((Key("observation"),), (Key("loss_value"),))
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(3, 1)
        ...     def forward(self, td):
        ...         (x,) = self.contract.read(td, self)
        ...         return TensorDict(loss_value=self.net(x).square().mean())
        >>> Squared.__module__ = "__main__"; import __main__; __main__.Squared = Squared  # a doctest is no module
        >>> out = check_loss(Squared(), TensorDict(observation=torch.randn(4, 3), batch_size=[4]))
        >>> list(out.keys())
        ['loss_value']
    """
    contract, name = contract_of(loss), type(loss).__name__
    given = _declared(contract, batch, name)
    out = _check_output(loss, contract, given, name, [unwrap(key) for key in annotates])
    _check_missing(loss, contract, given, name)
    _check_gradient(loss, out, name)
    with torch.no_grad():
        _check_same(out, _seeded(loss, given), f"{name} under torch.no_grad()")
    copies = {"a deep copy": deepcopy(loss), "a pickle": _pickled(loss, name)}
    for what, copy in copies.items():
        _check_same(out, _seeded(copy, given), f"{what} of {name}")
        _check_independent(loss, copy, given, f"{what} of {name}")
    return out


def _leaves(td: TensorDictBase) -> list[NestedKey]:
    return [unwrap(key) for key in td.keys(include_nested=True, leaves_only=True)]


def _seeded(loss: Any, td: TensorDictBase) -> TensorDictBase:
    """Call the loss on a copy; what it draws is the same at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return loss(td.copy())


def _declared(contract: Contract, batch: TensorDictBase, name: str) -> TensorDictBase:
    there = _leaves(batch)
    missing = [key for key in contract.in_keys if key not in there]
    assert not missing, f"the batch of this check must hold {missing}, which {name} reads"
    return batch.select(*[key.name for key in contract.reads if key.name in there])


def _check_output(
    loss: Any, contract: Contract, given: TensorDictBase, name: str, annotates: list[NestedKey]
) -> TensorDictBase:
    handed, before = given.copy(), given.clone()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = loss(handed)
    written, declared = _leaves(out), contract.out_keys
    assert set(written) == set(declared), f"{name} declares {declared} and returned {written}"
    added = [key for key in _leaves(handed) if key not in _leaves(before) and key not in annotates]
    assert not added, f"{name} wrote {added} into its input"
    for key in _leaves(before):
        if key not in annotates:
            assert torch.equal(before[key], handed[key]), f"{name} changed {key_str(key)} of its input"
    assert any(_is_loss(key) for key in declared), f"{name} returns nothing whose name starts with 'loss'"
    for key in declared:
        value: Tensor = out[key]
        assert value.shape == (), f"{name} returned {key_str(key)} of shape {tuple(value.shape)}; expected a scalar"
        if not _is_loss(key):
            assert not value.requires_grad, f"{name} returned {key_str(key)}, a diagnostic, with a gradient: detach it"
            continue
        assert bool(value.isfinite()), f"{name} returned {key_str(key)} = {value.item()}"
        assert value.requires_grad, f"{name} returned {key_str(key)} without a gradient"
    return out


def _is_loss(key: NestedKey) -> bool:
    return isinstance(key, str) and key.startswith("loss")


def _check_missing(loss: Any, contract: Contract, given: TensorDictBase, name: str) -> None:
    for key in contract.in_keys:
        rest = given.exclude(key)
        before = _leaves(rest)
        try:
            loss(rest)
        except ContractError as error:
            text = str(error)
            assert key_str(key) in text, f"without {key_str(key)} the error of {name} does not name it: {text}"
        else:
            raise AssertionError(f"{name} did without {key_str(key)}, which it declares to read")
        assert _leaves(rest) == before, f"{name} wrote into its input before it missed {key_str(key)}"


def _check_gradient(loss: Any, out: TensorDictBase, name: str) -> None:
    if not isinstance(loss, nn.Module):
        return
    total: Tensor = torch.stack([out[key] for key in _leaves(out) if _is_loss(key)]).sum()
    trained = {path: p for path, p in loss.named_parameters() if p.requires_grad}
    assert trained, f"{name} has no parameters to train"
    gradients: Any = torch.autograd.grad([total], list(trained.values()), allow_unused=True)
    reached = {path: grad for path, grad in zip(trained, gradients, strict=True) if grad is not None}
    for path, grad in reached.items():
        assert bool(grad.isfinite().all()), f"the gradient of {name} in {path} is not finite"
    for child in sorted({path.split(".")[0] for path in trained}):
        moved = any(bool(grad.any()) for path, grad in reached.items() if path.split(".")[0] == child)
        assert moved, f"no gradient of {name} reaches {child}"


def _check_same(out: TensorDictBase, other: TensorDictBase, what: str) -> None:
    for key in _leaves(out):
        value, again = out[key].detach(), other[key].detach()
        same = torch.allclose(value, again, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert same, f"{what} returned {key_str(key)} = {again.item()}, at first it was {value.item()}"


def _pickled(loss: Any, name: str) -> Any:
    try:
        return pickle.loads(pickle.dumps(loss))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"{name} cannot be pickled: {error}") from error


def _check_independent(loss: Any, copy: Any, given: TensorDictBase, what: str) -> None:
    """Parameters of a copy are its own, and they are what it computes with."""
    if not isinstance(copy, nn.Module):
        return
    before = _seeded(loss, given)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(torch.linspace(0.1, 0.3, parameter.numel()).to(parameter).view_as(parameter))
    _check_same(before, _seeded(loss, given), f"after the parameters of {what} changed, the original")
    after = _seeded(copy, given)
    losses = [key for key in _leaves(before) if _is_loss(key)]
    same = all(torch.equal(before[key].detach(), after[key].detach()) for key in losses)
    assert not same, f"{what} does not compute with its own parameters"
