"""The recurrent loops in C against a loop in float64, its gradients by autograd."""

import threading
from dataclasses import dataclass, replace
from importlib.util import find_spec

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl.core import RecurrentOptions
from rl.core.doctor import examine
from rl.core.errors import ArgumentError, ShapeError
from rl.core.registry import default

# rl-modules would call these kernels, and this package is tested without it
from rl.native import _recurrent, isa
from rl.native._library import ISAS, use_isa
from rl.native._recurrent import NativeKernels
from rl.plugins import native as plugin
from rl.testing import check_recurrent_backend

CPU = torch.device("cpu")
BOUND = {torch.float32: 3e-6, torch.float64: 1e-13}
needs_modules = pytest.mark.skipif(find_spec("rl.modules") is None, reason="rl-modules is not installed")
kernels = NativeKernels()


@pytest.fixture(params=ISAS)
def each_isa(request):
    if use_isa(request.param) != request.param:
        use_isa(None)
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    use_isa(None)


@dataclass
class Resets:
    """The parts of rl-modules' that the loops read."""

    starts: list[int]
    rows: Tensor
    h: Tensor
    c: Tensor | None


@dataclass
class Case:
    """Inputs of one layer; `mask` says where rows restart."""

    cell: str
    gates: Tensor
    weight: Tensor
    first: tuple[Tensor, ...]
    mask: Tensor
    given: tuple[Tensor, ...]
    """``[n, H]`` each, in order of step, then row."""

    @property
    def resets(self):
        if not self.mask.any():
            return None
        starts = [0, *self.mask.sum(1).cumsum(0).tolist()]
        return Resets(starts, self.mask.nonzero()[:, 1].contiguous(), self.given[0], (*self.given, None)[1])


def make(cell, steps, rows, hidden, resets, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    slots, parts = (4, 2) if cell == "lstm" else (3, 1)
    mask = torch.rand(steps, rows, generator=g) < resets
    return Case(
        cell,
        2 * normal(steps, rows, 4 * hidden),
        normal(slots * hidden, hidden) / hidden**0.5,
        tuple(normal(rows, hidden) for _ in range(parts)),
        mask,
        tuple(normal(int(mask.sum()), hidden) for _ in range(parts)),
    )


def naive(case):
    """States after each step, ``[T, B, H]`` each."""
    states, taken = list(case.first), 0
    kept = [[] for _ in states]
    for gates, mask in zip(case.gates, case.mask, strict=True):
        count = int(mask.sum())
        place = mask.nonzero().squeeze(1)
        states = [
            state.index_copy(0, place, given[taken : taken + count])
            for state, given in zip(states, case.given, strict=True)
        ]
        taken += count
        product = states[0] @ case.weight.T
        if case.cell == "lstm":
            i, f, g, o = (gates + product).chunk(4, -1)
            c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
            states = [o.sigmoid() * c.tanh(), c]
        else:
            n, r, z, m = gates.chunk(4, -1)
            of_r, of_z, of_m = product.chunk(3, -1)
            z = (z + of_z).sigmoid()
            states = [(1 - z) * (n + (r + of_r).sigmoid() * (m + of_m)).tanh() + z * states[0]]
        for rows, state in zip(kept, states, strict=True):
            rows.append(state)
    return tuple(torch.stack(rows) for rows in kept)


def forward(case, kernels=kernels):
    """States after each step, and the gates."""
    gates = case.gates.clone()
    after = tuple(torch.full((*gates.shape[:2], gates.shape[2] // 4), torch.nan, dtype=gates.dtype) for _ in case.first)
    run = kernels.lstm_forward if case.cell == "lstm" else kernels.gru_forward
    run(gates, case.weight, *case.first, case.resets, *after)
    return after, gates


def backward(case, after, gates, grads, *, reset_wanted=True):
    """Gradients of the gates before activation, the first states, and the given states."""
    before, resets = gates.clone(), case.resets
    grad_gates = torch.full_like(gates, torch.nan)
    grad_first = tuple(torch.full_like(state, torch.nan) for state in case.first)
    grad_given = tuple(torch.full_like(g, torch.nan) if resets and reset_wanted else None for g in case.given)
    if case.cell == "lstm":
        rest = grad_gates, *grad_first, *grad_given
        kernels.lstm_backward(gates, case.weight, case.first[1], after[1], resets, *grads, *rest)
    else:
        rest = grad_gates, *grad_first, *grad_given
        kernels.gru_backward(gates, case.weight, *case.first, *after, resets, *grads, *rest)
    assert torch.equal(gates, before)
    return grad_gates, grad_first, grad_given


def close(got, want, bound, what):
    error = (got.double() - want).abs().max().item() if got.numel() else 0.0
    limit = bound * (1 + (want.abs().max().item() if want.numel() else 0.0))
    assert error <= limit, f"{what} is {error:.3g} off, more than {limit:.3g}"


def compare(case, *, with_grad_c=True):
    bound = BOUND[case.gates.dtype]
    exact = replace(
        case,
        gates=case.gates.double().requires_grad_(),
        weight=case.weight.double(),
        first=tuple(s.double().requires_grad_() for s in case.first),
        given=tuple(s.double().requires_grad_() for s in case.given),
    )
    want = naive(exact)
    after, gates = forward(case)
    for name, got, state in zip("hc", after, want, strict=False):
        close(got, state.detach(), bound, name)
    g = torch.Generator().manual_seed(1)
    grads = [torch.randn(state.shape, generator=g, dtype=torch.float64).to(case.gates.dtype) for state in want]
    if case.cell == "lstm" and not with_grad_c:
        grads[1] = None
    total = sum((s * grad.double()).sum() for s, grad in zip(want, grads, strict=True) if grad is not None)
    leaves = exact.gates, *exact.first, *exact.given
    wanted = torch.autograd.grad(total, leaves, materialize_grads=True)
    grad_gates, grad_first, grad_given = backward(case, after, gates, grads)
    found = grad_gates, *grad_first, *(torch.empty(0) if grad is None else grad for grad in grad_given)
    names = ["gates", *(f"first state {i}" for i in range(2)), *(f"given state {i}" for i in range(2))]
    if case.cell == "gru":
        names = names[:2] + names[3:4]
    for name, got, grad in zip(names, found, wanted, strict=True):
        close(got, grad, 4 * bound, f"the gradient of {name}")


@settings(max_examples=120, deadline=None)
@given(
    cell=st.sampled_from(["lstm", "gru"]),
    steps=st.integers(1, 7),
    rows=st.integers(1, 14),
    hidden=st.integers(1, 70),
    resets=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    name=st.sampled_from(ISAS),
    with_grad_c=st.booleans(),
    seed=st.integers(0, 99),
)
@example(
    cell="lstm", steps=1, rows=1, hidden=1, resets=1.0, dtype=torch.float32, name="AVX-512", with_grad_c=False, seed=0
)
@example(
    cell="gru", steps=1, rows=1, hidden=1, resets=1.0, dtype=torch.float32, name="AVX-512", with_grad_c=False, seed=0
)
def test_any_shape_and_resets(cell, steps, rows, hidden, resets, dtype, name, with_grad_c, seed):
    use_isa(name)  # the widest that there is, where there is no such
    try:
        compare(make(cell, steps, rows, hidden, resets, dtype, seed), with_grad_c=with_grad_c)
    finally:
        use_isa(None)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("hidden", [64, 128, 129])
def test_whole_panels(each_isa, cell, dtype, hidden):
    compare(make(cell, 5, 13, hidden, 0.1, dtype))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_long_sequence_with_resets_first_and_last(cell):
    case = make(cell, 200, 3, 9, 0.05, torch.float32)
    case.mask[0], case.mask[-1] = True, True
    g = torch.Generator().manual_seed(2)
    given = torch.randn(len(case.first), int(case.mask.sum()), 9, generator=g)
    compare(replace(case, given=tuple(given)))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(("steps", "rows", "hidden"), [(0, 3, 4), (3, 0, 4), (3, 2, 0)])
def test_empty_problems(cell, steps, rows, hidden):
    case = make(cell, steps, rows, hidden, 0.0, torch.float32)
    after, gates = forward(case)
    _, grad_first, _ = backward(case, after, gates, [torch.zeros_like(state) for state in after])
    assert all(not grad.any() for grad in grad_first)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradients_of_given_states_may_be_skipped(cell):
    case = make(cell, 4, 3, 5, 0.5, torch.float64)
    after, gates = forward(case)
    grads = [torch.ones_like(state) for state in after]
    wanted, unwanted = (backward(case, after, gates, grads, reset_wanted=flag) for flag in (True, False))
    assert torch.equal(wanted[0], unwanted[0])


# ------------------------------------------------------------------ activations


def activated(x):
    """Sigmoid and tanh of `x` through a step of an LSTM without weights: o, and g."""
    hidden = len(x)
    gates = torch.zeros(1, 1, 4 * hidden, dtype=x.dtype)
    gates[0, 0, 2 * hidden : 3 * hidden] = x
    gates[0, 0, 3 * hidden :] = x
    zero, out = torch.zeros(1, hidden, dtype=x.dtype), torch.empty(2, 1, 1, hidden, dtype=x.dtype)
    kernels.lstm_forward(gates, torch.zeros(4 * hidden, hidden, dtype=x.dtype), zero, zero, None, *out)
    return gates[0, 0, 3 * hidden :], gates[0, 0, 2 * hidden : 3 * hidden]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_activations_lose_few_digits(each_isa, dtype):
    """Relative to the number itself, however small."""
    size = torch.logspace(-30 if dtype == torch.float32 else -300, 1.9, 400, dtype=torch.float64)
    x = torch.cat((size, -size, torch.linspace(-12, 12, 1201, dtype=torch.float64))).to(dtype)
    exact, eps = x.double(), torch.finfo(dtype).eps
    sigmoid, tanh = activated(x)
    close_tanh = torch.where(exact.abs() < 1e-3, exact - exact**3 / 3 + 2 * exact**5 / 15, exact.tanh())
    for got, want in ((sigmoid, exact.sigmoid()), (tanh, close_tanh)):
        off = (got.double() - want).abs() / want.abs().clamp_min(torch.finfo(dtype).tiny)
        assert off[exact.abs() < 80].max() <= 3 * eps


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_activations_at_the_ends(each_isa, dtype):
    x = torch.tensor([0.0, 1e4, torch.inf, -1e4, -torch.inf, torch.nan], dtype=dtype)
    sigmoid, tanh = activated(x)
    torch.testing.assert_close(sigmoid, x.sigmoid(), rtol=0, atol=1e-37, equal_nan=True)
    torch.testing.assert_close(tanh, x.tanh(), rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------ instruction sets, threads


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_instruction_sets_agree_within_rounding(cell, dtype):
    """They do not give the same bits: only some can round a product and a sum at once."""
    case = make(cell, 6, 7, 33, 0.2, dtype)
    results = []
    for name in ISAS:
        use_isa(name)
        results.append(forward(case)[0][0])
    use_isa(None)
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=4 * BOUND[dtype])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("count", [2, 3, 50])
def test_threads_and_other_rows_change_nothing(each_isa, cell, count, monkeypatch):
    case = make(cell, 5, 17, 20, 0.3, torch.float32)
    after, gates = forward(case)
    grads = [torch.ones_like(state) for state in after]
    found = backward(case, after, gates, grads)
    monkeypatch.setattr(_recurrent, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    shared_after, shared_gates = forward(case)
    assert all(map(torch.equal, (*after, gates), (*shared_after, shared_gates)))
    shared = backward(case, after, gates, grads)
    assert torch.equal(found[0], shared[0])
    assert all(map(torch.equal, (*found[1], *found[2]), (*shared[1], *shared[2])))


def test_several_threads_of_python_at_once():
    cases = [make(cell, 20, 5, 40, 0.1, torch.float32, seed) for seed, cell in enumerate(["lstm", "gru"] * 4)]
    alone = [forward(case)[0][0] for case in cases]
    together = {}
    threads = [
        threading.Thread(target=lambda i=i, case=case: together.update({i: forward(case)[0][0]}))
        for i, case in enumerate(cases)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[i], together[i]) for i in range(len(cases)))


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        pytest.param({"gates": torch.zeros(4, 3, 21)}, ShapeError, "4 \\* hidden", id="gates"),
        pytest.param({"gates": torch.zeros(4, 3, 20, dtype=torch.float16)}, ArgumentError, "float16", id="type"),
        pytest.param({"weight": torch.zeros(20, 6)}, ShapeError, "weight", id="weight"),
        pytest.param({"weight": torch.zeros(5, 20).t()}, ArgumentError, "contiguous", id="strides"),
        pytest.param({"weight": torch.zeros(20, 5, dtype=torch.float64)}, ArgumentError, "weight is", id="mixed"),
        pytest.param({"first": (torch.zeros(2, 5), torch.zeros(3, 5))}, ShapeError, "h0", id="rows"),
    ],
)
def test_wrong_shapes_and_dtypes_raise(change, error, match):
    case = replace(make("lstm", 4, 3, 5, 0.0, torch.float32), **change)
    after = torch.full((2, 4, 3, 5), 7.0)
    with pytest.raises(error, match=match):
        kernels.lstm_forward(case.gates, case.weight, *case.first, None, *after)
    assert bool((after == 7).all())


@pytest.mark.parametrize(
    ("starts", "rows", "match"),
    [
        pytest.param([0, 1, 2, 2], [0, 3], "out of order", id="a-row-too-many"),
        pytest.param([0, 1, 2, 2], [0, -1], "out of order", id="below-zero"),
        pytest.param([0, 2, 2, 2], [1, 0], "out of order", id="descending"),
        pytest.param([0, 2, 2, 2], [1, 1], "out of order", id="twice"),
        pytest.param([0, 1, 2, 3], [0, 1], "out of order", id="more-than-there-are"),
        pytest.param([0, 3, 1, 2], [0, 1], "out of order", id="starts-descend"),
        pytest.param([0, 1, 2], [0, 1], "3 entries|4", id="too-few-starts"),
    ],
)
def test_resets_out_of_order_are_refused(starts, rows, match):
    case = make("gru", 3, 3, 5, 0.0, torch.float32)
    gates, h = case.gates.clone(), torch.full((3, 3, 5), 7.0)
    resets = Resets(starts, torch.tensor(rows), torch.zeros(len(rows), 5), None)
    with pytest.raises((ShapeError, ArgumentError), match=match):
        kernels.gru_forward(gates, case.weight, *case.first, resets, h)
    assert bool((h == 7).all())
    assert torch.equal(gates, case.gates)


def test_an_lstm_restarts_from_both_states():
    case = make("lstm", 3, 3, 5, 0.0, torch.float32)
    resets = Resets([0, 1, 1, 1], torch.tensor([0]), torch.zeros(1, 5), None)
    with pytest.raises(ArgumentError, match="h and c"):
        kernels.lstm_forward(case.gates, case.weight, *case.first, resets, *torch.zeros(2, 3, 3, 5))


def test_gradients_over_gates_are_refused():
    case = make("gru", 3, 3, 5, 0.0, torch.float32)
    (h,), gates = forward(case)
    with pytest.raises(ArgumentError, match="memory of their own"):
        kernels.gru_backward(gates, case.weight, *case.first, h, None, h, gates, torch.zeros(3, 5), None)


# ------------------------------------------------------------------ as a back end of rl-modules


@needs_modules
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 3e-6), (torch.float64, 1e-13)], ids=str)
def test_the_back_end_conforms(each_isa, cell, dtype, bound):
    backend = plugin.rl_recurrent_backend(cell, "scan", CPU)
    assert backend.kernels == "native"
    check_recurrent_backend(backend, cell, dtype=dtype, tolerance=bound)


@needs_modules
def test_the_registry_prefers_it():
    for name in ("scan", None):
        found = default().answer("rl_recurrent_backend", cell="lstm", name=name, device=CPU).value
        assert (found.name, found.kernels) == ("scan", "native")
    assert default().answer("rl_recurrent_backend", cell="gru", name="pad", device=CPU).value.name == "pad"
    said = [finding.value for finding in examine() if finding.name == "recurrent gru on cpu"]
    assert len(said) == 1
    assert "rl-native" in said[0]
    assert isa() in said[0]


@needs_modules
def test_other_dtypes_use_torch():
    backend = plugin.rl_recurrent_backend("gru", None, CPU)
    gru, x = torch.nn.GRU(3, 4, batch_first=True).bfloat16(), torch.ones(2, 5, 3, dtype=torch.bfloat16)
    h = torch.zeros(2, 1, 4, dtype=torch.bfloat16)
    out, _ = backend(gru, x, (h,), torch.zeros(2, 5, dtype=torch.bool), None, RecurrentOptions())
    assert out.dtype == torch.bfloat16
    assert kernels.serves(torch.float64, CPU)
    assert not kernels.serves(torch.bfloat16, CPU)
    assert not kernels.serves(torch.float32, torch.device("cuda"))


@pytest.mark.parametrize(
    ("cell", "name", "device"), [("lstm", "pad", "cpu"), ("lstm", None, "cuda"), ("rnn", None, "cpu")]
)
def test_the_hook_gives_none_for_other_names_and_devices(cell, name, device):
    assert plugin.rl_recurrent_backend(cell, name, torch.device(device)) is None


def test_the_hook_gives_none_without_the_library_or_rl_modules(monkeypatch):
    with monkeypatch.context() as off:
        off.setenv("RL_NATIVE", "off")
        assert plugin.rl_recurrent_backend("lstm", None, CPU) is None
        assert not kernels.serves(torch.float32, CPU)
    from rl.core.errors import UnknownComponentError

    def absent(kind, name):
        raise UnknownComponentError(f"no {kind} {name}")

    monkeypatch.setattr("rl.core.load", absent)
    assert plugin.rl_recurrent_backend("lstm", None, CPU) is None
