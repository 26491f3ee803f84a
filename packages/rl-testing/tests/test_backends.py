"""The conformance kit: it accepts what is right, and catches each way of being wrong."""

import subprocess
import sys
from inspect import signature

import pytest
import torch
from torch import nn

from rl.core import testing
from rl.testing import (
    ToyPriorityTree,
    ToyRecurrentBackend,
    check_linear_recurrence,
    check_priority_tree,
    check_recurrent_backend,
    recurrent_reference,
    toy_linear_recurrence,
)


def test_the_toys_pass():
    check_priority_tree(lambda capacity, dtype: ToyPriorityTree(capacity, dtype=dtype))
    check_linear_recurrence(toy_linear_recurrence)
    for cell in ("lstm", "gru"):
        check_recurrent_backend(ToyRecurrentBackend(), cell)


def test_importing_the_kit_and_core_needs_no_pytest():
    code = "import sys; sys.modules['pytest'] = None; import rl.testing as t\n[getattr(t, name) for name in t.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", testing.__all__)
def test_every_public_name_resolves_and_is_documented(name):
    assert getattr(testing, name).__doc__


# ---------------------------------------------------------------- priority trees


class FirstWins(ToyPriorityTree):
    def update(self, index, priority):
        super().update(index.flip(0), priority.flip(0))


class WritesBeforeItChecks(ToyPriorityTree):
    def update(self, index, priority):
        for i, p in zip(index.tolist(), priority, strict=False):
            if 0 <= i < self.capacity and p >= 0 and p.isfinite():
                self._priority[i] = p
        super().update(index, priority)


class AcceptsNegative(ToyPriorityTree):
    def update(self, index, priority):
        super().update(index, priority.clamp(min=0))


class AcceptsInfinity(ToyPriorityTree):
    def update(self, index, priority):
        super().update(index, priority.nan_to_num(posinf=1e30))


class WrapsNegativeIndices(ToyPriorityTree):
    def update(self, index, priority):
        super().update(torch.where(index < 0, index + self.capacity, index), priority)


class Uniform(ToyPriorityTree):
    def sample(self, n, *, generator=None, stratified=False):
        if self.total() == 0:
            raise ValueError
        live = self._priority.nonzero().flatten()
        index = live[torch.randint(len(live), (n,), generator=generator)]
        return index, self.get(index)


class SquaredProportions(ToyPriorityTree):
    def sample(self, n, *, generator=None, stratified=False):
        if self.total() == 0:
            raise ValueError
        index = torch.multinomial(self._priority.double() ** 1.5, n, replacement=True, generator=generator)
        return index, self.get(index)


class DrawsZero(ToyPriorityTree):
    def sample(self, n, *, generator=None, stratified=False):
        index, _ = super().sample(n, generator=generator, stratified=stratified)
        index[0] = int(self._priority.argmin())
        return index, self.get(index)


class IgnoresGenerator(ToyPriorityTree):
    def sample(self, n, *, generator=None, stratified=False):
        return super().sample(n, stratified=stratified)


class NeverStratifies(ToyPriorityTree):
    def sample(self, n, *, generator=None, stratified=False):
        return super().sample(n, generator=generator)


class MinimumWithZero(ToyPriorityTree):
    def min(self):
        return self._priority.min()


class StaleMaximum(ToyPriorityTree):
    _seen = 0.0

    def max(self):
        self._seen = max(self._seen, super().max().item())
        return torch.tensor(self._seen, dtype=self.dtype)


class SinglePrecisionTotal(ToyPriorityTree):
    def total(self):
        return self._priority.sum()


class SamplesNothing(ToyPriorityTree):
    def sample(self, n, *, generator=None, stratified=False):
        if self.total() == 0:
            return torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=self.dtype)
        return super().sample(n, generator=generator, stratified=stratified)


class ChangesItsArguments(ToyPriorityTree):
    def update(self, index, priority):
        super().update(index, priority)
        priority += 1


WRONG_TREES = {
    FirstWins: "the last priority counts",
    WritesBeforeItChecks: "after a rejected update",
    AcceptsNegative: "negative priority must raise ValueError, it was accepted",
    AcceptsInfinity: "must raise ValueError, it was accepted",
    WrapsNegativeIndices: "an index of -1 must raise IndexError",
    Uniform: "not in proportion",
    SquaredProportions: "not in proportion",
    DrawsZero: "whose priority is zero",
    IgnoresGenerator: "two generators of one seed returned different draws",
    NeverStratifies: "stratified draws: leaf",
    MinimumWithZero: "minimum",
    StaleMaximum: "the maximum is",
    SinglePrecisionTotal: "expected torch.float64",
    SamplesNothing: "must raise ValueError, it was accepted",
    ChangesItsArguments: "update changed the priorities",
}


@pytest.mark.parametrize(("tree", "message"), WRONG_TREES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_tree_is_caught(tree, message):
    with pytest.raises(AssertionError, match=message):
        check_priority_tree(lambda capacity, dtype: tree(capacity, dtype=dtype))


class WithMore(ToyPriorityTree):
    """The toy with the optional methods, as if its device went on computing: `check` raises."""

    def __init__(self, capacity, device="cpu", dtype=torch.float32):
        super().__init__(capacity, device, dtype)
        self.refused = None

    def update(self, index, priority):
        try:
            super().update(index, priority)
        except (IndexError, ValueError) as error:
            self.refused = self.refused or error

    def sample(self, n, *, generator=None, stratified=False):
        if self.total() == 0:
            self.refused = self.refused or ValueError("nothing can be drawn")
            return torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=self.dtype)
        return super().sample(n, generator=generator, stratified=stratified)

    def sample_weighted(self, n, beta, *, generator=None, stratified=False):
        index, priority = self.sample(n, generator=generator, stratified=stratified)
        return index, (priority / self.min()) ** -beta

    def update_from_errors(self, index, error, eps, alpha, *, raw=None, largest=None, rows=None):
        if (index >= (self.capacity if rows is None else rows)).any():
            self.refused = self.refused or IndexError("too large")
            return
        before = self.refused
        self.update(index, (error.abs() + eps) ** alpha)
        if self.refused is before and len(index):
            self.beside(index, error, raw, largest)

    def beside(self, index, error, raw, largest):
        for i, e in zip(index.tolist(), error, strict=True):
            raw[i] = e
        largest.copy_(torch.maximum(largest, error.abs().max()))

    def check(self):
        error, self.refused = self.refused, None
        if error is not None:
            raise error


class OneMissing(WithMore):
    def check(self):
        self.refused = None


class RawOfSizes(WithMore):
    def beside(self, index, error, raw, largest):
        super().beside(index, error.abs(), raw, largest)


class LargestOfTheBatch(WithMore):
    def beside(self, index, error, raw, largest):
        super().beside(index, error, raw, largest.fill_(0))


class RawFirst(WithMore):
    def update_from_errors(self, index, error, eps, alpha, *, raw=None, largest=None, rows=None):
        if len(index) == len(error) and len(index) and index.min() >= 0 and index.max() < self.capacity:
            self.beside(index, error, raw, torch.zeros_like(largest))
        super().update_from_errors(index, error, eps, alpha, raw=raw, largest=largest, rows=rows)


class NoRows(WithMore):
    def update_from_errors(self, index, error, eps, alpha, *, raw=None, largest=None, rows=None):
        super().update_from_errors(index, error, eps, alpha, raw=raw, largest=largest)


class NoEps(WithMore):
    def update_from_errors(self, index, error, eps, alpha, **beside):
        super().update_from_errors(index, error, eps * 1.1, alpha, **beside)

    update_from_errors.__signature__ = signature(WithMore.update_from_errors)


class InvertedWeights(WithMore):
    def sample_weighted(self, n, beta, **arguments):
        index, weight = super().sample_weighted(n, beta, **arguments)
        return index, 1 / weight


def test_a_tree_with_the_optional_methods_passes():
    check_priority_tree(lambda capacity, dtype: WithMore(capacity, dtype=dtype))


@pytest.mark.parametrize(
    ("tree", "message"),
    {
        OneMissing: "accepted",
        RawOfSizes: "raw does not hold",
        LargestOfTheBatch: "largest is",
        RawFirst: "raw does not hold",
        NoRows: "equal to rows must raise IndexError",
        NoEps: "a priority of update_from_errors is off",
        InvertedWeights: "a weight of sample_weighted",
    }.items(),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_optional_method_is_caught(tree, message):
    with pytest.raises(AssertionError, match=message):
        check_priority_tree(lambda capacity, dtype: tree(capacity, dtype=dtype))


# ---------------------------------------------------------------- linear recurrence


def in_place(d, c, time_dim):
    out = toy_linear_recurrence(d, c, time_dim)
    return d.copy_(out)


WRONG_RECURRENCES = {
    "forward in time": lambda d, c, t: toy_linear_recurrence(d.flip(t), c.flip(t), t).flip(t),
    "weights ignored": lambda d, c, t: toy_linear_recurrence(d, torch.ones_like(c), t),
    "last axis always": lambda d, c, t: toy_linear_recurrence(d, c, -1),
    "double precision": lambda d, c, t: toy_linear_recurrence(d.double(), c.double(), t),
    "changes its arguments": in_place,
    "weights detached": lambda d, c, t: toy_linear_recurrence(d, c.detach(), t),
    "not differentiable": lambda d, c, t: toy_linear_recurrence(d.detach(), c.detach(), t),
    "shifted weights": lambda d, c, t: toy_linear_recurrence(d, c.roll(1, t), t),
}


@pytest.mark.parametrize("recurrence", WRONG_RECURRENCES.values(), ids=WRONG_RECURRENCES)
def test_a_wrong_recurrence_is_caught(recurrence):
    with pytest.raises(AssertionError):
        check_linear_recurrence(recurrence)


# ---------------------------------------------------------------- recurrent back ends


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_reference_agrees_with_torch_where_torch_can_do_it(cell, layers):
    torch.manual_seed(0)
    module = cell(3, 5, layers, batch_first=True).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    state = tuple(torch.randn(2, layers, 5, dtype=torch.float64) for _ in range(2 if cell is nn.LSTM else 1))
    first_major = tuple(part.transpose(0, 1).contiguous() for part in state)
    expected, last = module(x, first_major if cell is nn.LSTM else first_major[0])
    out, after = recurrent_reference(module, x, state, torch.zeros(2, 6, dtype=torch.bool))
    torch.testing.assert_close(out, expected)
    for part, want in zip(after, last if cell is nn.LSTM else (last,), strict=True):
        torch.testing.assert_close(part[:, -1], want.transpose(0, 1))


def test_a_reset_is_a_new_start():
    torch.manual_seed(0)
    module = nn.GRU(3, 5, 2, batch_first=True)
    x, zero = torch.randn(1, 6, 3), (torch.zeros(1, 2, 5),)
    is_init = torch.zeros(1, 6, dtype=torch.bool)
    is_init[0, 4] = True
    out, _ = recurrent_reference(module, x, (torch.randn(1, 2, 5),), is_init)
    fresh, _ = recurrent_reference(module, x[:, 4:], zero, torch.zeros(1, 2, dtype=torch.bool))
    torch.testing.assert_close(out[:, 4:], fresh)


def test_given_reset_states_take_the_place_of_the_state():
    module = nn.GRU(3, 5, 2, batch_first=True)
    x, state, resets = torch.randn(2, 6, 3), torch.randn(2, 2, 5), torch.randn(2, 6, 2, 5)
    is_init = torch.zeros(2, 6, dtype=torch.bool)
    is_init[:, 4] = True
    out, _ = recurrent_reference(module, x, (state,), is_init, (resets,))
    later, _ = module(x[:, 4:], resets[:, 4].transpose(0, 1).contiguous())
    torch.testing.assert_close(out[:, 4:], later)


def changed(function):
    class Wrong(ToyRecurrentBackend):
        def __call__(self, module, inputs, state, is_init, reset_state=None, options=None):
            return function(module, inputs, state, is_init, reset_state)

    return Wrong()


def ends_only(module, inputs, state, is_init, reset):
    out, after = recurrent_reference(module, inputs, state, is_init, reset)
    return out, tuple(part[:, -1] for part in after)


def detached_state(module, inputs, state, is_init, reset):
    return recurrent_reference(module, inputs, tuple(part.detach() + 0 * part for part in state), is_init, reset)


def late_reset(module, inputs, state, is_init, reset):
    shifted = is_init.roll(1, 1)
    return recurrent_reference(module, inputs, state, shifted, reset)


def skips_first_reset(module, inputs, state, is_init, reset):
    later = is_init.clone()
    later[:, 0] = False
    return recurrent_reference(module, inputs, state, later, reset)


def as_double(module, inputs, state, is_init, reset):
    out, after = recurrent_reference(module, inputs, state, is_init, reset)
    return out.double(), after


WRONG_BACKENDS = {
    "no resets": (lambda m, x, s, i, r: recurrent_reference(m, x, s, torch.zeros_like(i), r), "reset"),
    "late reset": (late_reset, "reset"),
    "first reset skipped": (skips_first_reset, "before the first step"),
    "resets to zero only": (lambda m, x, s, i, _: recurrent_reference(m, x, s, i), "to given states"),
    "state ignored": (lambda m, x, s, i, r: recurrent_reference(m, x, tuple(0 * p for p in s), i, r), "no reset"),
    "last state only": (ends_only, "has the shape"),
    "no gradient of the state": (detached_state, "the gradient of state 0"),
    "double precision": (as_double, "expected torch.float32"),
}


@pytest.mark.parametrize(("function", "message"), WRONG_BACKENDS.values(), ids=WRONG_BACKENDS)
def test_a_wrong_backend_is_caught(function, message):
    with pytest.raises(AssertionError, match=message):
        check_recurrent_backend(changed(function), "gru")
