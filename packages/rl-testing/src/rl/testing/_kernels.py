"""Conformance of kernels: linear recurrences, row gathers and steps of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl.core import ExplorationType, set_exploration_type
from rl.core.errors import CheckError
from rl.core.interfaces import LinearRecurrence, LoweredModule, RowGather
from rl.core.keys import NestedKey, key_str
from rl.testing._report import fail, naming

_SHAPES = (((5,), 0), ((5,), -1), ((1,), 0), ((3, 7, 1), 1), ((3, 7, 1), -2), ((2, 3, 65, 2), 2), ((130, 4), 0))


def _reference(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    adds, weights = d.double().movedim(time_dim, 0), c.double().movedim(time_dim, 0)
    following, rows = torch.zeros_like(adds[0]), []
    for t in range(len(adds) - 1, -1, -1):
        following = adds[t] + weights[t] * following
        rows.append(following)
    return torch.stack(rows[::-1]).movedim(0, time_dim)


def check_linear_recurrence(
    recurrence: LinearRecurrence,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
    gradients: bool = True,
) -> None:
    """Compare ``x_t = d_t + c_t * x_{t+1}``, ``x_T = 0`` with a loop in float64.

    Covers time dimensions from either end, one step, zero and one as weights, memory that is not contiguous,
    gradients in both arguments, and that the arguments stay as they were.

    Args:
        recurrence: Implementation that is checked.
        device: Device of the values.
        dtype: Dtype of the tensors.
        tolerance: Relative and absolute tolerance.
        gradients: Whether gradients are compared; false for a part that is never called where one is needed.

    Raises:
        CheckError: An `AssertionError` that says what is wrong.

    Example:
        >>> from rl.testing import toy_linear_recurrence
        >>> check_linear_recurrence(toy_linear_recurrence)
    """
    with naming(getattr(recurrence, "__name__", type(recurrence).__name__)):
        generator = torch.Generator().manual_seed(0)
        for shape, time_dim in _SHAPES:
            d = torch.randn(shape, generator=generator)
            random = torch.rand(shape, generator=generator)
            cut = torch.where(random < 0.3, torch.zeros(()), random)  # d = 0 where an episode ends
            for name, c in {
                "random weights": cut,
                "weights of one": torch.ones(shape),
                "no weight": torch.zeros(shape),
            }.items():
                where = f"shape {shape}, time_dim {time_dim}, {name}"
                _compare_recurrence(recurrence, d.to(device, dtype), c.to(device, dtype), time_dim, tolerance, where)
        d, c = torch.randn(4, 6, generator=generator), torch.rand(4, 6, generator=generator)
        d, c = d.to(device, dtype).t(), c.to(device, dtype).t()
        _compare_recurrence(recurrence, d, c, 0, tolerance, "transposed memory")
        if gradients:
            _compare_recurrence_gradients(recurrence, d, c, tolerance)


def _compare_recurrence_gradients(recurrence: LinearRecurrence, d: Tensor, c: Tensor, tolerance: float) -> None:
    """Gradients in both arguments; that in the weights is what a detached weight loses."""
    given = [d.detach().clone().requires_grad_(), c.detach().clone().requires_grad_()]
    weights = torch.linspace(0.5, 2.0, d.numel()).reshape(d.shape).to(d)
    try:
        found = torch.autograd.grad((recurrence(given[0], given[1], 0) * weights).sum(), given, allow_unused=True)
    except RuntimeError as error:
        raise CheckError(f"its gradient cannot be computed: {error}") from error
    expected = torch.autograd.grad((_reference(given[0], given[1], 0) * weights.double()).sum(), given)
    for name, got, wanted in zip(("d", "c"), found, expected, strict=True):
        if got is None:  # pyright: ignore[reportUnnecessaryComparison]  # allow_unused
            fail(f"no gradient reaches {name}: it must be differentiable in both arguments")
        error = (got.double() - wanted.double()).abs().max().item()
        bound = tolerance * (1 + wanted.abs().max().item())
        if not error <= bound:
            fail(f"the gradient in {name} differs from that of the loop by {error:.3g}, more than {bound:.3g}")


def _compare_recurrence(
    recurrence: LinearRecurrence, d: Tensor, c: Tensor, time_dim: int, tolerance: float, where: str
) -> None:
    given = d.clone(), c.clone()
    out = recurrence(d, c, time_dim)
    expected = _reference(d, c, time_dim)
    if out.shape != d.shape:
        fail(f"{where}: returned the shape {tuple(out.shape)}, expected {tuple(d.shape)}")
    if out.dtype != d.dtype:
        fail(f"{where}: returned {out.dtype}, expected {d.dtype}")
    if out.device != d.device:
        fail(f"{where}: returned a tensor on {out.device}, expected {d.device}")
    if not (torch.equal(d, given[0]) and torch.equal(c, given[1])):
        fail(f"{where}: changed its arguments")
    error = (out.double() - expected).abs().max().item()
    bound = tolerance * (1 + expected.abs().max().item())
    if not error <= bound:
        fail(f"{where}: differs from the loop by {error:.3g}, more than {bound:.3g}")


_DTYPES = (torch.bool, torch.uint8, torch.uint16, torch.bfloat16, torch.float32, torch.float64, torch.complex128)
_ROWS = ((), (1,), (1, 1), (3,), (2, 3), (67,), (5, 33), (0,))
_CAPACITY, _WRITTEN = 50, 40


def check_row_gather(
    make: Callable[[Sequence[Tensor]], RowGather], *, device: torch.device | str = "cpu", refuses: bool = True
) -> None:
    """Compare copies of rows, and of runs of them, with plain indexing.

    Covers types and shapes of rows, one behind the other or apart, repeated and absent indices, indices that lie
    apart, rows that are written and memory that moves between calls, that copies are no views, and that nothing
    behind the written rows is read.

    Args:
        make: Function of tensors that returns what the hook `rl_row_gather` does.
        device: Device of the values.
        refuses: Whether an index outside of the written rows raises at once; false for a device that says so later.

    Raises:
        CheckError: An `AssertionError` that says what is wrong.

    Example:
        >>> from rl.testing import ToyRowGather
        >>> check_row_gather(ToyRowGather)
    """
    with naming(getattr(make, "__name__", type(make).__name__)):
        generator = torch.Generator().manual_seed(0)
        numbers = [torch.randint(0, 200, (_CAPACITY, *row), generator=generator) for row in _ROWS for _ in _DTYPES]
        tensors = [number.to(device, dtype) for number, dtype in zip(numbers, _DTYPES * len(_ROWS), strict=True)]
        apart = [torch.stack((tensor, tensor, tensor), 1)[:, 1] for tensor in tensors]
        for kind, given in {"": tensors, "rows apart, ": apart}.items():
            gather = make(given)
            _check_copies(gather, given, kind, generator)
            _check_changes(gather, given, kind, device)
            if refuses:
                _check_rejections(gather, device)


def _check_copies(gather: RowGather, tensors: Sequence[Tensor], kind: str, generator: torch.Generator) -> None:
    device = tensors[0].device
    for many in (0, 1, 3, 70):
        index = torch.randint(_WRITTEN, (many,), generator=generator).to(device)
        _compare_rows(gather.rows(_WRITTEN, index), tensors, index, f"{kind}rows, {many} indices")
        apart = torch.stack((index, index + 1), 1)[:, 0]
        _compare_rows(gather.rows(_WRITTEN, apart), tensors, index, f"{kind}rows, {many} indices that lie apart")
        for steps in (1, 4, _WRITTEN):
            begin = torch.randint(_WRITTEN - steps + 1, (many,), generator=generator).to(device)
            places = (begin.unsqueeze(1) + torch.arange(steps, device=device)).reshape(-1)
            _compare_rows(gather.runs(_WRITTEN, begin, steps), tensors, places, f"{kind}{many} runs of {steps}")


def _compare_rows(found: list[Tensor], tensors: Sequence[Tensor], places: Tensor, where: str) -> None:
    if len(found) != len(tensors):
        fail(f"{where}: returned {len(found)} tensors for {len(tensors)}")
    for copy, tensor in zip(found, tensors, strict=True):
        of = f"{where}, {tensor.dtype} {tuple(tensor.shape[1:])}"
        wanted = _seen(tensor)[places.cpu()]
        if copy.dtype is not tensor.dtype:
            fail(f"{of}: returned {copy.dtype}")
        if copy.device != tensor.device:
            fail(f"{of}: returned a tensor on {copy.device}")
        if copy.shape != wanted.shape:
            fail(f"{of}: returned the shape {tuple(copy.shape)}, expected {tuple(wanted.shape)}")
        if not torch.equal(_seen(copy), wanted):
            fail(f"{of}: differs from indexing")


def _seen(tensor: Tensor) -> Tensor:
    """Convert a tensor to a type that torch can compare."""
    return tensor.cpu().view(torch.int16) if tensor.dtype is torch.uint16 else tensor.cpu()


def _check_changes(gather: RowGather, tensors: Sequence[Tensor], kind: str, device: torch.device | str) -> None:
    index = torch.tensor([7, 0, 7], device=device)
    before = gather.rows(_WRITTEN, index)
    for copy in before:
        copy.zero_()
    _compare_rows(gather.rows(_WRITTEN, index), tensors, index, f"{kind}after a copy was changed")
    for tensor in tensors:
        tensor.copy_(torch.cat((tensor[20:], tensor[:20])))
    _compare_rows(gather.rows(_WRITTEN, index), tensors, index, f"{kind}after rows were written")
    _compare_rows(
        gather.runs(_WRITTEN, index, 2), tensors, torch.tensor([7, 8, 0, 1, 7, 8]), f"{kind}after rows were written"
    )
    if tensors[0].is_cpu:
        for tensor in tensors:
            tensor.share_memory_()
            tensor.copy_(torch.cat((tensor[10:], tensor[:10])))
        _compare_rows(gather.rows(_WRITTEN, index), tensors, index, f"{kind}after memory was moved")
    last = torch.tensor([_CAPACITY - 1], device=device)
    _compare_rows(gather.rows(_CAPACITY, last), tensors, last, f"{kind}after more rows were written")


def _check_rejections(gather: RowGather, device: torch.device | str) -> None:
    for what, call in {
        "an index behind the written rows": lambda: gather.rows(_WRITTEN, torch.tensor([0, _WRITTEN], device=device)),
        "an index far behind": lambda: gather.rows(_WRITTEN, torch.tensor([1 << 62], device=device)),
        "a negative index": lambda: gather.rows(_WRITTEN, torch.tensor([-1], device=device)),
        "a run over the end": lambda: gather.runs(_WRITTEN, torch.tensor([_WRITTEN - 3], device=device), 4),
        "a run that is longer than what is written": lambda: gather.runs(3, torch.tensor([0], device=device), 4),
        "a negative begin": lambda: gather.runs(_WRITTEN, torch.tensor([-1], device=device), 4),
    }.items():
        try:
            call()
        except IndexError:
            continue
        raise CheckError(f"{what} must raise IndexError")


def check_policy_step(
    step: LoweredModule, plain: LoweredModule, leaves: Sequence[Tensor], *, tolerance: float = 1e-5
) -> None:
    """Compare a policy as a back end computes it with the same policy in PyTorch.

    Covers keys, shapes and dtypes, values without randomness, that a seed repeats the random actions, also those of
    several steps that were announced with ``prepare``, and that every call returns new memory.

    Args:
        step: Step that the hook `rl_policy_step` returns.
        plain: Lowered form of the policy; see `rl.core.tensor_functions.as_function`.
        leaves: Inputs, one for each of ``in_keys``.
        tolerance: Largest absolute or relative difference of values.

    Raises:
        CheckError: An `AssertionError` that says what is wrong.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.core.tensor_functions import as_function
        >>> plain = as_function(TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["action"]))
        >>> check_policy_step(plain, plain, [torch.ones(4, 3)])
    """
    with naming(type(step).__name__), torch.no_grad():
        for name in ("in_keys", "out_keys"):
            if list(getattr(step, name)) != list(getattr(plain, name)):
                fail(f"{name} are {list(getattr(step, name))}, expected {list(getattr(plain, name))}")
        given = [leaf.clone() for leaf in leaves]
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            found = step(*leaves)
            if not all(torch.equal(one, other) for one, other in zip(leaves, given, strict=True)):
                fail("changed its inputs")
            _compare_steps(plain.out_keys, found, plain(*leaves), tolerance)
        with set_exploration_type(ExplorationType.RANDOM):
            one_by_one, at_once = _seeded_steps(step, leaves, 1), _seeded_steps(step, leaves, _STEPS)
        for key, *columns in zip(plain.out_keys, *one_by_one, *at_once, strict=True):
            if not all(torch.equal(a, b) for a, b in zip(columns[:_STEPS], columns[_STEPS:], strict=True)):
                fail(f"{key_str(key)}: steps with one seed differ when they are announced together")
            if len({column.data_ptr() for column in columns}) < len(columns) and columns[0].numel():
                fail(f"{key_str(key)}: two calls returned the same memory")


_STEPS = 3


def _seeded_steps(step: LoweredModule, leaves: Sequence[Tensor], block: int) -> list[tuple[Tensor, ...]]:
    """Return the outputs of some steps with one seed, of which `block` are announced at once."""
    announce = getattr(step, "prepare", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = []
        for number in range(_STEPS):
            if announce is not None and number % block == 0:
                announce(block)
            found.append(step(*leaves))
    return found


def _compare_steps(
    keys: Sequence[NestedKey], found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float
) -> None:
    for key, one, other in zip(keys, found, wanted, strict=True):
        if one.shape != other.shape or one.dtype is not other.dtype:
            fail(
                f"{key_str(key)}: returned {one.dtype} {tuple(one.shape)}, expected {other.dtype} {tuple(other.shape)}"
            )
        if not torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
            fail(f"{key_str(key)}: differs from PyTorch by more than {tolerance:g}")
