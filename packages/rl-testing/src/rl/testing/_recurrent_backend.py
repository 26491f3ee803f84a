"""Conformance of a recurrent back end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from rl.core.interfaces import RecurrentBackend
from rl.core.recurrent import RecurrentOptions
from rl.testing._report import fail, naming

Cell = Literal["lstm", "gru"]
State = tuple[Tensor, ...]


def recurrent_reference(
    module: nn.RNNBase, inputs: Tensor, state: State, is_init: Tensor, reset_state: State | None = None
) -> tuple[Tensor, State]:
    """Compute the recurrence step by step and layer by layer, with the equations of `torch.nn.LSTM` and `GRU`.

    Slow, and exact in the type that it is given: the measure for every back end.

    Args:
        module: Module with the weights.
        inputs: ``[B, T, I]``.
        state: State before the first step, ``[B, layers, H]`` each (h, or h and c).
        is_init: Bool ``[B, T]``; where true, the state before that step is `reset_state` there.
        reset_state: ``[B, T, layers, H]`` each; zero if None.

    Returns:
        Outputs ``[B, T, H]`` and the states after each step, ``[B, T, layers, H]`` each.

    Example:
        >>> gru = nn.GRU(2, 4, batch_first=True)
        >>> x, h = torch.ones(3, 5, 2), torch.zeros(3, 1, 4)
        >>> out, (after,) = recurrent_reference(gru, x, (h,), torch.zeros(3, 5, dtype=torch.bool))
        >>> torch.testing.assert_close(out, gru(x)[0])
    """
    weights = dict(module.named_parameters())
    step = _lstm_step if module.mode == "LSTM" else _gru_step
    outputs: list[Tensor] = []
    kept: list[list[Tensor]] = [[] for _ in state]
    current = [list(part.unbind(1)) for part in state]  # [part][layer], each [B, H]
    for t in range(inputs.shape[1]):
        restart = is_init[:, t].unsqueeze(-1)
        x = inputs[:, t]
        for layer in range(module.num_layers):
            fresh = (
                [part[:, t, layer] for part in reset_state]
                if reset_state
                else [torch.zeros_like(x[:, :1])] * len(state)
            )
            before = tuple(torch.where(restart, new, part[layer]) for new, part in zip(fresh, current, strict=True))
            after = step(weights, layer, x, before)
            for part, value in zip(current, after, strict=True):
                part[layer] = value
            x = after[0]
        outputs.append(x)
        for rows, part in zip(kept, current, strict=True):
            rows.append(torch.stack(part, 1))
    return torch.stack(outputs, 1), tuple(torch.stack(rows, 1) for rows in kept)


def _gates(weights: Mapping[str, Tensor], layer: int, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    from_input = x @ weights[f"weight_ih_l{layer}"].T
    from_state = h @ weights[f"weight_hh_l{layer}"].T
    if f"bias_ih_l{layer}" in weights:
        from_input = from_input + weights[f"bias_ih_l{layer}"]
        from_state = from_state + weights[f"bias_hh_l{layer}"]
    return from_input, from_state


def _lstm_step(weights: Mapping[str, Tensor], layer: int, x: Tensor, state: State) -> State:
    h, c = state
    i, f, g, o = sum(_gates(weights, layer, x, h), torch.zeros_like(x[:, :1])).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(weights: Mapping[str, Tensor], layer: int, x: Tensor, state: State) -> State:
    (h,) = state
    from_input, from_state = _gates(weights, layer, x, h)
    (r_x, z_x, n_x), (r_h, z_h, n_h) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = (n_x + r * n_h).tanh()
    return ((1 - z) * n + z * h,)


def _patterns(batch: int, time: int, rng: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    none = torch.zeros(batch, time, dtype=torch.bool)
    first, last, one = none.clone(), none.clone(), none.clone()
    first[:, 0], last[:, -1], one[0, time // 2] = True, True, True
    yield "no reset", none
    yield "a reset before the first step", first
    yield "a reset before the last step", last
    yield "a reset before every step", ~none
    yield "a reset of one row in the middle", one
    yield "random resets", torch.rand(batch, time, generator=rng) < 0.3


def check_recurrent_backend(
    backend: RecurrentBackend,
    cell: Cell,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-4,
) -> None:
    """Compare a back end with `recurrent_reference` in float64: outputs, states after each step, gradients.

    Covers one to three layers, with and without bias, one row, one step, resets first, last, everywhere and
    at random, to zero and to given states, inputs that are not contiguous, a recomputed backward pass, and that the
    arguments stay as they were.

    Args:
        backend: Implementation that is checked.
        cell: ``"lstm"`` or ``"gru"``.
        device: Device of the values.
        dtype: Dtype of weights and data.
        tolerance: Absolute tolerance, and that relative to the largest number.

    Raises:
        CheckError: An `AssertionError` that says what is wrong.

    Example:
        >>> from rl.testing import ToyRecurrentBackend
        >>> check_recurrent_backend(ToyRecurrentBackend(), "gru")
    """
    with naming(type(backend).__name__):
        if not (isinstance(backend.name, str) and backend.name):
            fail("a back end has a name, which `rl doctor` shows")
        make = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        rng = torch.Generator().manual_seed(0)
        sizes = ((3, 7, 4, 5, 1, True), (1, 1, 2, 3, 1, True), (4, 6, 3, 8, 2, True), (2, 5, 3, 4, 3, False))
        for batch, time, width, hidden, layers, bias in sizes:
            module = make(width, hidden, layers, bias=bias, batch_first=True)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=rng) / 2)
            module = module.to(device, dtype)
            inputs = torch.randn(time, batch, width, generator=rng).to(device, dtype).transpose(0, 1)
            parts = 2 if cell == "lstm" else 1
            state = tuple(torch.randn(batch, layers, hidden, generator=rng).to(device, dtype) for _ in range(parts))
            given = tuple(
                torch.randn(batch, time, layers, hidden, generator=rng).to(device, dtype) for _ in range(parts)
            )
            for name, is_init in _patterns(batch, time, rng):
                for resets in (None, given):
                    where = f"{cell}, B={batch}, T={time}, {layers} layers, bias={bias}, {name}"
                    where += ", to given states" if resets else ""
                    _compare(backend, module, inputs, state, is_init.to(device), resets, tolerance, where)


def _compare(
    backend: RecurrentBackend,
    module: nn.RNNBase,
    inputs: Tensor,
    state: State,
    is_init: Tensor,
    resets: State | None,
    tolerance: float,
    where: str,
) -> None:
    exact = deepcopy(module).double()
    inputs, state, resets = inputs.detach().requires_grad_(), _fresh(state), resets and _fresh(resets)
    inputs_64 = inputs.detach().double().requires_grad_()
    state_64, resets_64 = _fresh(state, torch.float64), resets and _fresh(resets, torch.float64)
    before = [tensor.detach().clone() for tensor in (inputs, *state, *(resets or ()), is_init)]

    recompute = "full" if resets else "none"
    # On a GPU, products are rounded unless full precision is set.
    exactly = "ieee" if inputs.device.type == "cuda" else None
    options = RecurrentOptions(recompute=recompute, matmul_precision=exactly)
    out, after = backend(module, inputs, state, is_init, resets, options)
    if not (isinstance(after, tuple) and len(after) == len(state)):
        fail(f"{where}: returned {len(after)} states")
    expected, expected_after = recurrent_reference(exact, inputs_64, state_64, is_init, resets_64)
    named = {"outputs": (out, expected)}
    named |= {f"state {i}": pair for i, pair in enumerate(zip(after, expected_after, strict=True))}
    for name, (got, want) in named.items():
        if got.shape != want.shape:
            fail(f"{where}: {name} has the shape {tuple(got.shape)}, expected {tuple(want.shape)}")
        if got.dtype != inputs.dtype:
            fail(f"{where}: {name} is {got.dtype}, expected {inputs.dtype}")
        _close(got, want, tolerance, f"{where}: {name}")
    for tensor, old in zip((inputs, *state, *(resets or ()), is_init), before, strict=True):
        if not torch.equal(tensor.detach(), old):
            fail(f"{where}: the back end changed its arguments")

    rng = torch.Generator().manual_seed(1)
    weights = [torch.randn(want.shape, generator=rng, dtype=torch.float64) for _, want in named.values()]
    leaves = [inputs, *state, *(resets or ()), *module.parameters()]
    leaves_64 = [inputs_64, *state_64, *(resets_64 or ()), *exact.parameters()]
    grads = _gradients([got for got, _ in named.values()], weights, leaves)
    grads_64 = _gradients([want for _, want in named.values()], weights, leaves_64)
    names = ["inputs", *(f"state {i}" for i in range(len(state)))]
    names += [f"reset state {i}" for i in range(len(resets or ()))] + [name for name, _ in module.named_parameters()]
    for name, got, want in zip(names, grads, grads_64, strict=True):
        _close(got, want, tolerance, f"{where}: the gradient of {name}")


def _fresh(parts: State, dtype: torch.dtype | None = None) -> State:
    return tuple(part.detach().to(dtype or part.dtype).clone().requires_grad_() for part in parts)


def _gradients(outputs: list[Tensor], weights: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    pairs = zip(outputs, weights, strict=True)
    total = torch.stack([(out * weight.to(out.device, out.dtype)).sum() for out, weight in pairs]).sum()
    return list(torch.autograd.grad(total, leaves, materialize_grads=True))


def _close(got: Tensor, want: Tensor, tolerance: float, what: str) -> None:
    error = (got.detach().double() - want.detach()).abs().max().item()
    bound = tolerance * (1 + want.detach().abs().max().item())
    if not error <= bound:
        fail(f"{what}: differs from the reference by {error:.3g}, more than {bound:.3g}")
