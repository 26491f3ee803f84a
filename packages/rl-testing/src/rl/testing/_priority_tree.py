"""Conformance of a priority tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from math import ceil, floor, sqrt
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import CheckError
from rl.core.interfaces import PriorityTree
from rl.testing._report import fail, naming

Make = Callable[[int, torch.dtype], PriorityTree]

_CAPACITIES = (1, 2, 3, 7, 64, 65, 1000)


def check_priority_tree(make: Make, *, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)) -> None:
    """Compare a priority tree with a plain array.

    Covers updates (the last of a repeated index counts), get, total, min, max, that what is zero is never
    drawn, that draws are in proportion (chi-square, one false alarm in a million), that a generator makes
    them repeatable, stratified draws, and that a rejected update writes nothing. The optional methods are
    checked where a tree has them; `check()` is called wherever an error must come.

    Args:
        make: Function of a capacity and a dtype that returns a new, empty tree.
        dtypes: Dtypes that are checked.

    Raises:
        CheckError: An `AssertionError` that says what is wrong.

    Example:
        >>> from rl.testing import ToyPriorityTree
        >>> check_priority_tree(lambda capacity, dtype: ToyPriorityTree(capacity, dtype=dtype))
    """
    with naming(type(make(1, dtypes[0])).__name__):
        for dtype in dtypes:
            for capacity in _CAPACITIES:
                _check_empty(make, capacity, dtype)
                _check_against_array(make, capacity, dtype)
            _check_zero_is_never_drawn(make, dtype)
            _check_proportions(make, dtype)
            _check_generator(make, dtype)
            _check_stratified(make, dtype)
            _check_rejections(make, dtype)
            if hasattr(make(1, dtype), "sample_weighted"):
                _check_weights(make, dtype)
            if hasattr(make(1, dtype), "update_from_errors"):
                _check_errors(make, dtype)


def _filled(make: Make, dtype: torch.dtype, priority: Tensor) -> PriorityTree:
    tree = make(len(priority), dtype)
    tree.update(torch.arange(len(priority), device=tree.device), priority.to(tree.device, dtype))
    return tree


def _rng(tree: PriorityTree, seed: int) -> torch.Generator:
    return torch.Generator(tree.device).manual_seed(seed)


def _check_empty(make: Make, capacity: int, dtype: torch.dtype) -> None:
    tree = make(capacity, dtype)
    what = f"an empty tree of capacity {capacity} and {dtype}"
    if tree.capacity != capacity:
        fail(f"{what} has capacity {tree.capacity}")
    if tree.dtype != dtype:
        fail(f"{what} has dtype {tree.dtype}")
    if tree.total().item() != 0:
        fail(f"{what} has the total {tree.total().item()}, expected 0")
    if tree.max().item() != 0:
        fail(f"{what} has the maximum {tree.max().item()}, expected 0")
    if tree.min().item() != float("inf"):
        fail(f"{what} has the minimum {tree.min().item()}, expected infinity")
    _rejected(tree, lambda: tree.sample(1), ValueError, f"sampling from {what}")


def _check_against_array(make: Make, capacity: int, dtype: torch.dtype) -> None:
    """Random updates with repeated indices, zeros and magnitudes from 1e-6 to 1e6."""
    rng = torch.Generator().manual_seed(capacity)
    tree, array = make(capacity, dtype), torch.zeros(capacity, dtype=dtype)
    for round_ in range(25):
        n = int(torch.randint(0, 2 * capacity + 1, (), generator=rng))
        index = torch.randint(0, capacity, (n,), generator=rng)
        priority = (10 ** (12 * torch.rand(n, generator=rng, dtype=torch.float64) - 6)).to(dtype)
        priority[torch.rand(n, generator=rng) < 0.2] = 0
        given = index.to(tree.device), priority.to(tree.device)
        before = given[0].clone(), given[1].clone()
        tree.update(*given)
        if not torch.equal(given[0], before[0]):
            fail("update changed the indices that it was given")
        if not torch.equal(given[1], before[1]):
            fail("update changed the priorities that it was given")
        for i, p in zip(index.tolist(), priority.tolist(), strict=True):
            array[i] = p
        _compare(tree, array, f"capacity {capacity}, {dtype}, after {round_ + 1} updates")


def _compare(tree: PriorityTree, array: Tensor, where: str) -> None:
    stored = tree.get(torch.arange(len(array), device=tree.device))
    if stored.dtype != array.dtype:
        fail(f"{where}: get returned {stored.dtype}, expected {array.dtype}")
    different = (stored.cpu() != array).nonzero().flatten().tolist()
    if different:
        fail(
            f"{where}: index {different[0]} holds {stored[different[0]].item()}, expected {array[different[0]].item()}"
            " (of a repeated index the last priority counts)"
        )
    total, expected = tree.total(), array.double().sum().item()
    if total.dtype != torch.float64:
        fail(f"{where}: total is {total.dtype}, expected torch.float64")
    slack = (1e-5 if array.dtype == torch.float32 else 1e-12) * expected
    if not (abs(total.item() - expected) <= slack):
        fail(f"{where}: the total is {total.item()}, expected {expected}")
    if tree.max().item() != array.max().item():
        fail(f"{where}: the maximum is {tree.max().item()}, expected {array.max().item()}")
    positive = array[array > 0]
    smallest = positive.min().item() if len(positive) else float("inf")
    if tree.min().item() != smallest:
        fail(f"{where}: the minimum above zero is {tree.min().item()}, expected {smallest}")


def _check_zero_is_never_drawn(make: Make, dtype: torch.dtype) -> None:
    for live in ([0], [99], [3, 4], [0, 50, 99], list(range(1, 100, 2))):
        priority = torch.zeros(100, dtype=dtype)
        priority[live] = torch.logspace(-4, 4, len(live), dtype=torch.float64).to(dtype)
        tree = _filled(make, dtype, priority)
        for stratified in (False, True):
            index, drawn = tree.sample(3000, generator=_rng(tree, 1), stratified=stratified)
            if not (index.shape == drawn.shape == (3000,)):
                fail(f"sample(3000) returned shapes {index.shape} and {drawn.shape}")
            if index.dtype != torch.int64:
                fail(f"sample returned indices of {index.dtype}, expected torch.int64")
            wrong = set(index.tolist()) - set(live)
            if wrong:
                fail(f"{sorted(wrong)} were drawn, whose priority is zero (stratified={stratified}, {dtype})")
            if not torch.equal(drawn, tree.get(index)):
                fail("sample returned other priorities than get does for its indices")


def _chi_square_bound(degrees: int) -> float:
    """Return the value that chi-square exceeds once in a million (Wilson and Hilferty, 1931)."""
    a = 2 / (9 * degrees)
    return degrees * (1 - a + 4.753 * sqrt(a)) ** 3


def _check_proportions(make: Make, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(7)
    for leaves in (2, 5, 64, 100):
        weight = torch.rand(leaves, generator=rng) + 0.05
        tree = _filled(make, dtype, weight)
        n = 400 * leaves
        index, _ = tree.sample(n, generator=_rng(tree, leaves))
        expected = weight.double() / weight.double().sum() * n
        counts = torch.bincount(index.cpu(), minlength=leaves).double()
        statistic = ((counts - expected) ** 2 / expected).sum().item()
        bound = _chi_square_bound(leaves - 1)
        if not statistic < bound:
            fail(
                f"{n} draws from {leaves} leaves ({dtype}) are not in proportion to priority: chi-square"
                f" {statistic:.1f} exceeds {bound:.1f} once in a million"
            )


def _check_generator(make: Make, dtype: torch.dtype) -> None:
    tree = _filled(make, dtype, torch.rand(200, generator=torch.Generator().manual_seed(3)) + 0.1)
    for stratified in (False, True):

        def draw(generator: torch.Generator, stratified: bool = stratified) -> list[int]:  # noqa: FBT001
            return tree.sample(64, generator=generator, stratified=stratified)[0].tolist()

        first, second = draw(_rng(tree, 5)), draw(_rng(tree, 5))
        if first != second:
            fail(f"two generators of one seed returned different draws (stratified={stratified})")
        running = _rng(tree, 5)
        draw(running)
        if draw(running) == first:
            fail(f"sample does not advance its generator (stratified={stratified})")
        if draw(_rng(tree, 6)) == first:
            fail(f"two seeds returned the same draws (stratified={stratified})")


def _check_stratified(make: Make, dtype: torch.dtype) -> None:
    """Of n equal parts of the total, each gives one draw: how often a leaf is drawn hardly varies."""
    weight = torch.rand(30, generator=torch.Generator().manual_seed(11)) + 0.01
    tree = _filled(make, dtype, weight)
    for n in (1, 10, 512):
        index, _ = tree.sample(n, generator=_rng(tree, n), stratified=True)
        counts = torch.bincount(index.cpu(), minlength=30).tolist()
        for leaf, share in enumerate((weight.double() / weight.double().sum() * n).tolist()):
            low, high = max(floor(share) - 1, 0), ceil(share) + 1
            if not (low <= counts[leaf] <= high):
                fail(f"stratified draws: leaf {leaf} was drawn {counts[leaf]} times of {n}, expected {low} to {high}")


def _check_rejections(make: Make, dtype: torch.dtype) -> None:
    array = torch.tensor([1.0, 0.0, 2.0, 4.0], dtype=dtype)
    tree = _filled(make, dtype, array)
    cases: list[tuple[str, list[int], list[float], type[Exception]]] = [
        ("an index of -1", [0, -1], [9, 9], IndexError),
        ("an index equal to the capacity", [0, 4], [9, 9], IndexError),
        ("a negative priority", [0, 1], [9, -1], ValueError),
        ("a priority that is not a number", [0, 1], [9, float("nan")], ValueError),
        ("an infinite priority", [0, 1], [9, float("inf")], ValueError),
        ("more priorities than indices", [0], [9, 9], ValueError),
    ]
    for what, index, priority, error in cases:
        arguments = torch.tensor(index, device=tree.device), torch.tensor(priority, dtype=dtype, device=tree.device)
        _rejected(tree, lambda given=arguments: tree.update(*given), error, f"an update with {what}")
        _compare(tree, array, f"after a rejected update with {what}")


def _check_weights(make: Make, dtype: torch.dtype) -> None:
    priority = torch.rand(300, generator=torch.Generator().manual_seed(13)) + 1e-3
    priority[::5] = 0
    tree = _filled(make, dtype, priority)
    draw: Callable[..., tuple[Tensor, Tensor]] = tree.sample_weighted  # pyright: ignore[reportAttributeAccessIssue]
    for beta, stratified in ((0.0, False), (0.4, True), (1.0, False)):
        index, weight = draw(500, beta, generator=_rng(tree, 1), stratified=stratified)
        same, drawn = tree.sample(500, generator=_rng(tree, 1), stratified=stratified)
        if not torch.equal(index, same):
            fail("sample_weighted drew other indices than sample does with this generator")
        if weight.shape != (500,):
            fail(f"sample_weighted(500) returned weights of shape {tuple(weight.shape)}")
        if weight.dtype != dtype:
            fail(f"sample_weighted returned weights of {weight.dtype}, expected {dtype}")
        expected = (drawn.double() / tree.min().double()) ** -beta
        worst = ((weight.double() - expected).abs() / expected).max().item()
        slack = 1e-5 if dtype == torch.float32 else 1e-10
        if not worst <= slack:
            fail(f"a weight of sample_weighted with beta={beta} is off by {worst:.1e} of itself ({dtype})")


_EPS, _ALPHA = 0.01, 0.6


def _check_errors(make: Make, dtype: torch.dtype) -> None:
    """`update_from_errors` against a loop; with raw errors, the largest one and a limit of rows where it takes them."""
    generator, capacity, rows = torch.Generator().manual_seed(17), 200, 150
    tree = make(capacity, dtype)
    write: Callable[..., None] = tree.update_from_errors  # pyright: ignore[reportAttributeAccessIssue]
    raw, largest = torch.zeros(capacity, dtype=dtype, device=tree.device), torch.ones((), dtype=dtype).to(tree.device)
    whole = {"raw", "largest", "rows"} <= set(signature(write).parameters)
    beside: dict[str, Any] = {"raw": raw, "largest": largest, "rows": rows} if whole else {}
    array, most = torch.zeros(capacity, dtype=dtype), 1.0
    for n in (1, 40, 0, 1100, 3):
        index = torch.randint(0, rows, (n,), generator=generator)
        error = torch.randn(n, generator=generator, dtype=torch.float64).to(dtype) * n
        error[::4] = 0
        write(index.to(tree.device), error.to(tree.device), _EPS, _ALPHA, **beside)
        for i, e in zip(index.tolist(), error.tolist(), strict=True):
            array[i], most = e, max(most, abs(e))
        _compare_errors(tree, array, raw, largest.item(), most if whole else None)
    cases: list[tuple[str, list[int], list[float], type[Exception]]] = [
        ("an index of -1", [0, -1], [9e9, 9e9], IndexError),
        ("an error that is not a number", [0, 1], [9e9, float("nan")], ValueError),
        ("an infinite error", [0, 1], [9e9, float("-inf")], ValueError),
        ("an index equal to the capacity", [0, capacity], [9e9, 9e9], IndexError),
        ("more errors than indices", [0], [9e9, 9e9], ValueError),
    ]
    if whole:
        cases.append(("an index equal to rows", [0, rows], [9e9, 9e9], IndexError))
    for what, places, values, rejection in cases:
        given = torch.tensor(places, device=tree.device), torch.tensor(values, dtype=dtype, device=tree.device)
        call = partial(write, *given, _EPS, _ALPHA, **beside)
        _rejected(tree, call, rejection, f"update_from_errors with {what}")
        _compare_errors(tree, array, raw, largest.item(), most if whole else None)


def _compare_errors(tree: PriorityTree, array: Tensor, raw: Tensor, largest: float, most: float | None) -> None:
    stored = tree.get(torch.arange(len(array), device=tree.device)).cpu().double()
    expected = torch.where(stored == 0, 0.0, (array.double().abs() + _EPS) ** _ALPHA)  # 0: a row that was never written
    if not ((stored != 0) | (array == 0)).all():
        fail("update_from_errors left a priority of zero where it was to write")
    worst = ((stored - expected).abs() / (expected + 1e-30)).max().item()
    slack = 1e-5 if array.dtype == torch.float32 else 1e-10
    if not worst <= slack:
        fail(f"a priority of update_from_errors is off by {worst:.1e} of itself ({array.dtype})")
    if most is not None:
        if not torch.equal(raw.cpu(), array):
            fail("update_from_errors: raw does not hold the errors that were given last")
        if largest != most:
            fail(f"update_from_errors: largest is {largest}, expected {most}")


def _rejected(tree: PriorityTree, call: Callable[[], object], error: type[Exception], what: str) -> None:
    """Expect an error of the call, or of the `check()` that follows it if the tree has one."""
    try:
        call()
        getattr(tree, "check", lambda: None)()
    except error:
        return
    except Exception as other:
        raise CheckError(f"{what} must raise {error.__name__}, it raised {type(other).__name__}: {other}") from other
    raise CheckError(f"{what} must raise {error.__name__}, it was accepted")
