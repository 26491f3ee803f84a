"""Conformance of losses and of value estimators."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from copy import deepcopy
from functools import reduce
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract, contract_of
from rl.core.errors import CheckError, ContractError
from rl.core.interfaces import Estimator
from rl.core.keys import TD_ERROR, NestedKey, as_tuple, key_str, leaf_keys, unwrap
from rl.testing._component import Tried, check_contract, require_declared_form, require_kept, seeded
from rl.testing._report import Report, fail, require


def check_loss(
    loss: Any,
    batch: TensorDictBase,
    *,
    annotates: Iterable[NestedKey] = (TD_ERROR,),
    frozen: Iterable[NestedKey] | None = None,
    detached: Iterable[NestedKey] = (),
) -> TensorDictBase:
    """Check what trainers and loggers take for granted of a loss.

    - The keys that it reads suffice, and each of them that is missing is named by a `ContractError`. Shapes and dtypes
      are those of the contract.
    - It returns exactly what it declares: scalars, none of them float64 unless the batch or a parameter is. Those
      whose names start with ``loss`` are finite and carry a gradient that reaches every network with trained
      parameters, the others are detached.
    - No gradient reaches what is `frozen`, and nothing broadcasts ``[B]`` with ``[B, 1]``.
    - The batch stays as it is, but for annotations.
    - Without gradients, from a deep copy and from a pickle it returns the same; a copy has parameters of its own.

    Args:
        loss: Loss with a ``contract``, or ``in_keys`` and ``out_keys``; usually a `torch.nn.Module`.
        batch: Batch with at least the keys that are read.
        annotates: Keys that the loss may add to its input.
        frozen: Parts that no gradient may reach: attributes of the loss, such as ``"target_network"``, and keys of the
            batch, such as ``("next", "observation")`` where the bootstrapped target is a constant. None issues a
            `NotExercisedWarning` if the loss has something of that kind.
        detached: Outputs whose names start with ``loss`` and that are parts of another one, without gradient.

    Returns:
        What the loss returned.

    Raises:
        CheckError: An `AssertionError` about the first promise that is broken, the reason first.

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
    report = Report(name)
    tried = Tried(loss, contract, batch, name)
    given, out = tried.given, tried.out
    _check_output(loss, contract, tried, name, [unwrap(key) for key in annotates], [unwrap(key) for key in detached])
    if batch.batch_size.numel() < 2:
        report.skip("broadcasts of [B] with [B, 1]: the batch has one element")
    _check_missing(loss, contract, given, name)
    frozen = None if frozen is None else [unwrap(entry) for entry in frozen]
    _check_gradient(loss, out, [entry for entry in frozen or () if entry not in leaf_keys(given)], name)
    _check_frozen(loss, contract, given, frozen, report)
    with torch.no_grad():
        _check_same(out, seeded(loss, given), "torch.no_grad()", name)
    copies = {"a deep copy": deepcopy(loss), "a pickle": _pickled(loss, name)}
    for what, copy in copies.items():
        _check_same(out, seeded(copy, given), what, name)
        _check_independent(loss, copy, given, what, name)
    report.warn()
    return out


def _check_output(
    loss: Any, contract: Contract, tried: Tried, name: str, annotates: list[NestedKey], detached: list[NestedKey]
) -> None:
    out, before = tried.out, tried.before
    require(isinstance(out, TensorDictBase), f"must return a TensorDict, got {type(out).__name__}", name)
    written, declared = leaf_keys(out), contract.out_keys
    require(set(written) == set(declared), f"returned {written}, declared is {declared}", name)
    added = [key for key in leaf_keys(tried.handed) if key not in leaf_keys(before) and key not in annotates]
    require(not added, f"wrote {added} into its input", name)
    for entries in (tried.given, tried.handed):
        require_kept(before, entries, annotates, name)
    require(any(_is_loss(key) for key in declared), "returns nothing whose name starts with 'loss'", name)
    _check_scalars(loss, contract, out, before, name, detached)
    letters: dict[str, int] = {}
    require_declared_form(contract.reads, before, before.batch_size, letters, name)
    scalars = [key for key in contract.writes if not key.batched]
    require_declared_form(scalars, out, torch.Size(()), letters, name)


def _check_scalars(
    loss: Any, contract: Contract, out: TensorDictBase, before: TensorDictBase, name: str, detached: list[NestedKey]
) -> None:
    sources = [*before.values(include_nested=True, leaves_only=True)]
    sources += [*loss.parameters(), *loss.buffers()] if isinstance(loss, nn.Module) else []
    double = any(getattr(value, "dtype", None) is torch.float64 for value in sources)
    for key in contract.out_keys:
        value, text = out[key], key_str(key)
        require(value.shape == (), f"{text} has shape {tuple(value.shape)}, expected a scalar", name)
        wide = value.dtype is torch.float64 and not double
        require(not wide, f"{text} is float64, although nothing that is read is: expected float32", name)
        if not _is_loss(key) or key in detached:
            require(not value.requires_grad, f"{text}, a diagnostic, has a gradient: detach it", name)
            continue
        require(bool(value.isfinite()), f"{text} is {value.item()}", name)
        require(value.requires_grad, f"{text} has no gradient", name)


def _is_loss(key: NestedKey) -> bool:
    return isinstance(key, str) and key.startswith("loss")


def _check_missing(loss: Any, contract: Contract, given: TensorDictBase, name: str) -> None:
    for key in contract.in_keys:
        rest, text = given.exclude(key), key_str(key)
        before = leaf_keys(rest)
        try:
            loss(rest)
        except ContractError as error:
            require(text in str(error), f"without {text}, the error does not name it: {error}", name)
        except Exception as error:
            raised = f"{type(error).__name__} ({error})"
            raise CheckError(
                f"without {text}, which it reads, it raises {raised}: read through the contract, which raises a"
                f" ContractError that names the key ({name})"
            ) from error
        else:
            fail(f"did without {text}, which the contract declares as read: make it optional", name)
        require(leaf_keys(rest) == before, f"wrote into its input before it missed {text}", name)


def _total(out: TensorDictBase) -> Tensor:
    return torch.stack([out[key] for key in leaf_keys(out) if _is_loss(key)]).sum()


def _check_gradient(loss: Any, out: TensorDictBase, frozen: list[NestedKey], name: str) -> None:
    """Check that the gradient reaches every network with trained parameters, except those that are frozen."""
    if not isinstance(loss, nn.Module):
        return
    still = {id(p) for entry in frozen for p in _parameters(loss, entry, name)}
    trained = {path: p for path, p in loss.named_parameters() if p.requires_grad and id(p) not in still}
    require(bool(trained), "has no parameters to train", name)
    gradients: Any = torch.autograd.grad([_total(out)], list(trained.values()), allow_unused=True, retain_graph=True)
    reached = {path: grad for path, grad in zip(trained, gradients, strict=True) if grad is not None}
    for path, grad in reached.items():
        require(bool(grad.isfinite().all()), f"the gradient in {path} is not finite", name)
    for child in sorted({path.split(".")[0] for path in trained}):
        moved = any(bool(grad.any()) for path, grad in reached.items() if path.split(".")[0] == child)
        require(moved, f"no gradient reaches {child}", name)


def _check_frozen(
    loss: Any, contract: Contract, given: TensorDictBase, frozen: list[NestedKey] | None, report: Report
) -> None:
    """No gradient reaches what is frozen."""
    if frozen is None:
        parts = loss.parameters() if isinstance(loss, nn.Module) else ()
        if any(not p.requires_grad for p in parts) or any(as_tuple(key)[0] == "next" for key in contract.in_keys):
            report.skip(
                "gradients into target networks and bootstrapped targets: name them in `frozen=`, for example"
                " frozen=['target_network', ('next', 'observation')]"
            )
        return
    fed, tensors = given.clone(), dict[str, list[Tensor]]()
    for entry in frozen:
        if entry in leaf_keys(fed):
            if not fed[entry].is_floating_point():
                report.skip(f"the gradient into {key_str(entry)}: it holds no floating-point numbers")
                continue
            tensors[key_str(entry)] = [fed[entry].requires_grad_()]
        else:
            tensors[key_str(entry)] = [p for p in _parameters(loss, entry, report.owner) if p.requires_grad]
    flat = [tensor for ones in tensors.values() for tensor in ones]
    if not flat:
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        total = _total(loss(fed))
    gradients: Any = iter(torch.autograd.grad([total], flat, allow_unused=True))
    for name, ones in tensors.items():
        found = [grad for grad in (next(gradients) for _ in ones) if grad is not None]
        reason = f"the gradient reaches {name}, which is frozen: detach the target, or compute it under torch.no_grad()"
        require(not any(bool(grad.any()) for grad in found), reason, report.owner)


def _parameters(loss: Any, name: NestedKey, owner: str) -> list[Tensor]:
    try:
        part: Any = reduce(getattr, ".".join(as_tuple(name)).split("."), loss)
    except AttributeError:
        fail(f"frozen={key_str(name)} is neither an attribute of the loss nor a key that it reads", owner)
    if isinstance(part, nn.Module):
        return list(part.parameters())
    if isinstance(part, TensorDictBase):
        values: Any = part.values(include_nested=True, leaves_only=True)
        return list(values)
    return [part] if isinstance(part, Tensor) else list(part)


def _check_same(out: TensorDictBase, other: TensorDictBase, what: str, name: str) -> None:
    for key in leaf_keys(out):
        value, again = out[key].detach(), other[key].detach()
        same = torch.allclose(value, again, rtol=1e-5, atol=1e-6, equal_nan=True)
        require(same, f"{key_str(key)} is {again.item()} with {what}, it was {value.item()}", name)


def _pickled(loss: Any, name: str) -> Any:
    try:
        return pickle.loads(pickle.dumps(loss))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        fail(f"cannot be pickled: {error}", name)


def _check_independent(loss: Any, copy: Any, given: TensorDictBase, what: str, name: str) -> None:
    """Parameters of a copy are its own, and they are what it computes with."""
    if not isinstance(copy, nn.Module):
        return
    before = seeded(loss, given)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(torch.linspace(0.1, 0.3, parameter.numel()).to(parameter).view_as(parameter))
    _check_same(before, seeded(loss, given), f"{what} whose parameters changed", name)
    after = seeded(copy, given)
    losses = [key for key in leaf_keys(before) if _is_loss(key)]
    same = all(torch.equal(before[key].detach(), after[key].detach()) for key in losses)
    require(not same, f"{what} does not compute with its own parameters", name)


_FLAGS = ("done", "terminated", "truncated")


def check_estimator(estimator: Estimator, batch: TensorDictBase) -> Report:
    """Check a value estimator on a batch ``[*B, T]`` in time order.

    It passes `check_contract`; what it writes is finite and in the dtype of the reward. Trajectories do not depend on
    each other: neither on other rows of the batch, nor on what follows the end of an episode. Nothing is bootstrapped
    after a terminated step, and something is after a truncated one.

    Args:
        estimator: Callable with a ``contract``.
        batch: Batch with the keys that are read; several rows, with ends of both kinds inside, exercise everything.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` with the reason first.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.core.contract import Contract, Key
        >>> class RewardAlone:
        ...     contract = Contract((Key(("next", "reward"), (1,)),), (Key("advantage", (1,)),))
        ...     def __call__(self, td):
        ...         return td.set("advantage", td["next", "reward"])
        >>> ends = torch.tensor([[False, True, False, False]] * 2).unsqueeze(-1)
        >>> after = TensorDict(reward=torch.randn(2, 4, 1), done=ends, terminated=ends, batch_size=[2, 4])
        >>> check_estimator(RewardAlone(), TensorDict(next=after, batch_size=[2, 4])).not_exercised
        ['bootstraps after a truncated step: the batch has none']
    """
    owner = type(estimator).__name__
    report = Report(owner)
    out = check_contract(estimator, batch)
    written = estimator.contract.out_keys
    _check_values(out, batch, written, owner)
    shifted = _Shifted(estimator, batch, written, report)
    shifted.check_rows()
    shifted.check_ends()
    shifted.check_bootstraps()
    return report.warn()


def _check_values(out: TensorDictBase, batch: TensorDictBase, written: list[NestedKey], owner: str) -> None:
    rewards = [key for key in leaf_keys(batch) if as_tuple(key)[-1] == "reward"]
    for key in written:
        value = out.get(key)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        require(bool(value.isfinite().all()), f"{key_str(key)} is not finite", owner)
        if rewards:
            dtype = batch.get(rewards[0]).dtype
            require(value.dtype == dtype, f"{key_str(key)} is {value.dtype}, the reward is {dtype}", owner)


class _Shifted:
    """An estimator on a batch of which some entries are changed, compared with its results before."""

    def __init__(self, estimator: Any, batch: TensorDictBase, written: list[NestedKey], report: Report) -> None:
        self._estimator, self._batch, self._written, self._report = estimator, batch, written, report
        self._first = self._run(batch)
        flags = batch.get("next", None)
        self._done, self._terminated, self._truncated = (self._flag(flags, name) for name in _FLAGS)

    def _flag(self, flags: Any, name: str) -> Tensor | None:
        """Return a flag as ``[*B, T]``."""
        value = None if flags is None else flags.get(name, None)
        return None if value is None else value.reshape(*self._batch.batch_size, -1).any(-1)

    def _run(self, batch: TensorDictBase) -> TensorDictBase:
        with torch.no_grad():
            return seeded(self._estimator, batch).select(*self._written)

    def _changed(self, mask: Tensor, part: str) -> Tensor:
        """Where results differ, ``[*B, T]``, if floating-point entries are shifted where `mask` is true.

        Args:
            mask: Bool ``[*B, T]``.
            part: ``"next"`` for what is known of the following state, without rewards; ``"all"`` for all entries.
        """
        other = self._batch.clone()
        for key in leaf_keys(other):
            value, path = other.get(key), as_tuple(key)
            following = path[0] == "next" and path[-1] != "reward"
            if isinstance(value, Tensor) and value.is_floating_point() and (part == "all" or following):
                wide = mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
                other.set(key, torch.where(wide, value + 0.5, value))
        again, differs = self._run(other), torch.zeros_like(mask)
        for key in leaf_keys(again):
            one, two = self._first.get(key), again.get(key)
            far = ~torch.isclose(one, two, rtol=1e-5, atol=1e-6)
            differs |= far.flatten(mask.ndim).any(-1) if far.ndim > mask.ndim else far
        return differs

    def check_rows(self) -> None:
        """Another row has no influence."""
        batch_size = self._batch.batch_size
        if len(batch_size) < 2 or batch_size[:-1].numel() < 2:
            self._report.skip("independence of the rows of a batch: it has one row")
            return
        mask = torch.zeros(batch_size, dtype=torch.bool)
        mask.view(-1, batch_size[-1])[0] = True
        leaked = bool((self._changed(mask, "all") & ~mask).any())
        require(not leaked, "the results of a row depend on another row of the batch", self._report.owner)

    def check_ends(self) -> None:
        """Check that steps after the end of an episode have no influence on it."""
        done = self._done
        if done is None or not bool(done[..., :-1].any()):
            self._report.skip("ends of episodes: the batch has none before its last step")
            return
        ended = done.int().cumsum(-1) - done.int()  # number of ends before each step
        mask = ended >= 1
        leaked = bool((self._changed(mask, "all") & ~mask).any())
        reason = "what follows the end of an episode has an influence on the results before it"
        require(not leaked, reason, self._report.owner)

    def check_bootstraps(self) -> None:
        """Check that the value of the following state is used after a truncated step, not after a terminated one."""
        if self._terminated is None or not bool(self._terminated.any()):
            self._report.skip("bootstraps after a terminated step: the batch has none")
        else:
            differs = bool(self._changed(self._terminated, "next").any())
            reason = "a terminated step is bootstrapped: the value of the state after it has an influence"
            require(not differs, reason, self._report.owner)
        reads = [as_tuple(key) for key in self._estimator.contract.in_keys]
        done = torch.zeros(self._batch.batch_size, dtype=torch.bool) if self._done is None else self._done
        cut = done if self._terminated is None else done & ~self._terminated
        if not bool(cut.any()):
            self._report.skip("bootstraps after a truncated step: the batch has none")
            return
        if any(path[0] == "next" and path[-1] not in ("reward", *_FLAGS) for path in reads):
            differs = bool((self._changed(cut, "next") & cut).any())
            reason = "a truncated step is not bootstrapped: the value of the state after it has no influence"
            require(differs, reason, self._report.owner)
