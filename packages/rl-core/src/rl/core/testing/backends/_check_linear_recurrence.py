"""Conformance of a `rl.core.interfaces.LinearRecurrence`."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.core.errors import CheckError
from rl.core.interfaces import LinearRecurrence
from rl.core.testing._report import fail, naming

__all__ = ["check_linear_recurrence"]

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
        recurrence: what is checked.
        device: where.
        dtype: of the tensors.
        tolerance: relative and absolute.
        gradients: whether gradients are compared; false for a part that is never called where one is needed.

    Raises:
        CheckError: an `AssertionError` that says what is wrong.

    Example:
        >>> from rl.core.testing import toy_linear_recurrence
        >>> check_linear_recurrence(toy_linear_recurrence)
    """
    with naming(getattr(recurrence, "__name__", type(recurrence).__name__)):
        generator = torch.Generator().manual_seed(0)
        for shape, time_dim in _SHAPES:
            d = torch.randn(shape, generator=generator)
            random = torch.rand(shape, generator=generator)
            cut = torch.where(random < 0.3, torch.zeros(()), random)  # episode ends
            for name, c in {
                "random weights": cut,
                "weights of one": torch.ones(shape),
                "no weight": torch.zeros(shape),
            }.items():
                where = f"shape {shape}, time_dim {time_dim}, {name}"
                _compare(recurrence, d.to(device, dtype), c.to(device, dtype), time_dim, tolerance, where)
        d, c = torch.randn(4, 6, generator=generator), torch.rand(4, 6, generator=generator)
        d, c = d.to(device, dtype).t(), c.to(device, dtype).t()
        _compare(recurrence, d, c, 0, tolerance, "transposed memory")
        if gradients:
            _compare_gradients(recurrence, d, c, tolerance)


def _compare_gradients(recurrence: LinearRecurrence, d: Tensor, c: Tensor, tolerance: float) -> None:
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


def _compare(recurrence: LinearRecurrence, d: Tensor, c: Tensor, time_dim: int, tolerance: float, where: str) -> None:
    given = d.clone(), c.clone()
    out = recurrence(d, c, time_dim)
    expected = _reference(d, c, time_dim)
    if out.shape != d.shape:
        fail(f"{where}: gave the shape {tuple(out.shape)}, expected {tuple(d.shape)}")
    if out.dtype != d.dtype:
        fail(f"{where}: gave {out.dtype}, expected {d.dtype}")
    if out.device != d.device:
        fail(f"{where}: gave a tensor on {out.device}, expected {d.device}")
    if not (torch.equal(d, given[0]) and torch.equal(c, given[1])):
        fail(f"{where}: changed its arguments")
    error = (out.double() - expected).abs().max().item()
    bound = tolerance * (1 + expected.abs().max().item())
    if not error <= bound:
        fail(f"{where}: differs from the loop by {error:.3g}, more than {bound:.3g}")
