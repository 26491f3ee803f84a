"""Checks of what a component reads and writes, and of modules."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rl.core.contract import Contract, Key, contract_of
from rl.core.keys import NestedKey, key_str, leaf_keys
from rl.core.tensor_functions import as_function
from rl.testing._report import Report, fail, require, same_values


class NoBroadcast(TorchFunctionMode):
    """Raise a `CheckError` where two floating-point tensors ``[B]`` and ``[B, 1]`` are broadcast to ``[B, B]``.

    Args:
        batch_size: Batch size; B is its number of elements or one of its dimensions.
        owner: Component that runs.
    """

    def __init__(self, batch_size: torch.Size, owner: str) -> None:
        super().__init__()
        self._sizes = {*batch_size, batch_size.numel()} - {1}
        self._owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and look at the shapes of its arguments and of its result."""
        kwargs = kwargs or {}
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        pair = self._pair(tensors) if len(tensors) > 1 else None
        name = getattr(func, "__name__", str(func))
        if pair is not None and name.endswith("_loss"):
            self._reject(pair, name)
        out = func(*args, **kwargs)
        if pair is not None and isinstance(out, Tensor) and out.shape == torch.broadcast_shapes(*pair):
            self._reject(pair, name)
        return out

    def _pair(self, tensors: list[Tensor]) -> tuple[torch.Size, torch.Size] | None:
        shapes = [value.shape for value in tensors if value.is_floating_point() and value.ndim]
        for flat in shapes:
            for column in shapes:
                if column == (*flat, 1) and flat[-1] in self._sizes and len(set(flat)) == 1:
                    return flat, column
        return None

    def _reject(self, pair: tuple[torch.Size, torch.Size], name: str) -> None:
        flat, column = pair
        fail(
            f"{name} broadcasts {list(flat)} with {list(column)} to {list(torch.broadcast_shapes(*pair))}: give"
            " both the same shape",
            self._owner,
        )


def seeded(component: Any, td: TensorDictBase) -> Any:
    """Call the component on a shallow copy; what it draws from torch's generator is the same at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return component(td.copy())


class Tried:
    """A component that ran on the declared entries of a batch alone.

    Args:
        component: Callable on TensorDicts.
        contract: Contract of the component.
        batch: Batch with at least the keys that are read.
        owner: Name of the component in messages.

    Raises:
        CheckError: If it reads what it does not declare, or broadcasts ``[B]`` with ``[B, 1]``.
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
        """Check that the result does not depend on entries that are not declared."""
        if not self._extra or not isinstance(self.out, TensorDictBase):
            return
        keys = [key for key in self._contract.out_keys if key in leaf_keys(self.out)]
        if not _same(self.out, seeded(component, self.given), keys):
            return  # results are random beyond the seed: they cannot be compared
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
        keys: Keys of the contract.
        entries: Entries that were read or written.
        batch_size: Sizes of ``*B``.
        letters: Sizes by letter; those that are met for the first time are added.
        owner: Name of the component in messages.
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


def check_contract(component: Any, td: TensorDictBase) -> TensorDictBase:
    """Run `component` on the keys that it reads alone: it must write what it declares, and leave the rest.

    Shapes and dtypes of both are compared with those of the contract's `Key` objects.

    Args:
        component: Callable on TensorDicts with a ``contract``, or with ``in_keys`` and ``out_keys``.
        td: Input that holds at least the keys that are read.

    Returns:
        What the component returned.

    Raises:
        CheckError: An `AssertionError` about the first promise that is broken, the reason first.

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
    require_kept(tried.before, tried.given, (), name)  # the input itself must not change either
    for entries in (out, tried.handed):
        require_kept(tried.before, entries, declared, name)
    letters: dict[str, int] = {}
    require_declared_form(contract.reads, tried.before, td.batch_size, letters, name)
    require_declared_form(contract.writes, out, td.batch_size, letters, name)
    return out


def _sorted(keys: set[NestedKey]) -> list[NestedKey]:
    return sorted(keys, key=str)


def check_module(module: Any, td: TensorDictBase) -> Report:
    """Check a module: what it reads and writes, its parameters, copies, pickle, state_dict and lowered form.

    It passes `check_contract`, nothing that it writes is float64 unless its input or a parameter is, every parameter
    that it computes with is registered, and copies compute with parameters of their own. Its randomness is that of
    torch's generator. The lowered form, if there is one, returns the same numbers.

    Args:
        module: Callable on TensorDicts with ``in_keys`` and ``out_keys``, or a ``contract``.
        td: Input that holds at least the keys that are read.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` with the reason first.

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
    require(repeatable, "the same seed yields two results: it is random in another way, or keeps a state", owner)
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
        require(_agree(before, seeded(copy, td), keys), f"{what} returns another result", owner)
        state = deepcopy(module.state_dict())
        with torch.no_grad():
            for value in copy.parameters():
                value.add_(torch.linspace(0.1, 0.3, value.numel()).to(value).view_as(value))
        own = _agree(before, seeded(module, td), keys)
        require(own, f"{what} shares its parameters with the original", owner)
        copy.load_state_dict(state)
        complete = _agree(before, seeded(copy, td), keys)
        require(complete, f"the state_dict is incomplete: {what} that loads it returns another result", owner)


def _check_lowered(module: nn.Module, td: TensorDictBase, keys: list[NestedKey], report: Report) -> None:
    lowered = as_function(module)
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
            require(same, f"the lowered form returns another {key_str(key)}", report.owner)
