"""The back ends of this package against the recurrence written out, and against torch's own layers."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn
from torch.testing import assert_close

from rl.core import BackendError, RecurrentOptions
from rl.modules import GRU, LSTM, GRUModule, LSTMModule, PadBackend, ScanBackend

# the kernels are the base of a double that counts calls, and `opcheck` reads the operators
from rl.modules.recurrent import _kernels
from rl.modules.recurrent._operators import gru_layer, lstm_layer
from rl.modules.recurrent.backends import PlainBackend
from rl.testing import check_recurrent_backend, recurrent_reference

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
BACKENDS = {"scan": ScanBackend, "pad": PadBackend, "plain": PlainBackend}
each_cell = pytest.mark.parametrize("cell", list(CELLS))
each_backend = pytest.mark.parametrize("backend", list(BACKENDS.values()), ids=list(BACKENDS))


def states(cell, *size, dtype=torch.float32):
    return tuple(torch.randn(*size, dtype=dtype) for _ in range(2 if cell == "lstm" else 1))


def problem(cell, batch=3, time=6, width=4, hidden=5, layers=2, dtype=torch.float64, **options):
    torch.manual_seed(0)
    module = CELLS[cell](width, hidden, layers, batch_first=True, **options).to(dtype)
    x = torch.randn(batch, time, width, dtype=dtype)
    first = states(cell, batch, layers, hidden, dtype=dtype)
    given_states = states(cell, batch, time, layers, hidden, dtype=dtype)
    is_init = torch.rand(batch, time) < 0.4
    return module, x, first, is_init, given_states


@each_cell
@each_backend
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)], ids=str)
def test_conformance(backend, cell, dtype, tolerance):
    check_recurrent_backend(backend(), cell, dtype=dtype, tolerance=tolerance)


@each_cell
@each_backend
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_the_type_of_the_inputs_counts(backend, cell, dtype, recompute):
    module, x, first, is_init, resets = problem(cell, dtype=torch.float32)
    x, options = x.to(dtype).requires_grad_(), RecurrentOptions(recompute=recompute)
    asked = RecurrentOptions(recompute=recompute, compute_dtype=dtype)
    want, want_after = backend()(module, x, first, is_init, resets, asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, after = backend()(module, x, first, is_init, resets, options)
        grads = torch.autograd.grad(out.float().sum(), [x, *module.parameters()])
    assert out.dtype is dtype
    assert_close([out, *after], [want, *want_after], rtol=0, atol=0)
    expected = torch.autograd.grad(want.float().sum(), [x, *module.parameters()])
    assert [grad.dtype for grad in grads] == [dtype, *[torch.float32] * (len(grads) - 1)]
    assert_close(grads, expected, rtol=0.05 if dtype is torch.bfloat16 else 1e-5, atol=0.05)


@each_cell
@each_backend
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_pattern_of_resets_equals_the_loop(backend, cell, data):
    batch, time = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    flags = data.draw(st.lists(st.booleans(), min_size=batch * time, max_size=batch * time))
    is_init = torch.tensor(flags).view(batch, time)
    module, x, first, _, resets = problem(cell, batch, time)
    resets = resets if data.draw(st.booleans()) else None
    options = RecurrentOptions(recompute=data.draw(st.sampled_from(["none", "full"])))
    out, after = backend()(module, x, first, is_init, resets, options)
    want, want_after = recurrent_reference(module, x, first, is_init, resets)
    assert_close(out, want)
    assert_close(after, want_after)


@each_cell
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_pad_gives_the_outputs_of_torch(cell, layers):
    module, x, first, is_init, _ = problem(cell, layers=layers, dtype=torch.float32)
    out, after = PadBackend()(module, x, first, torch.zeros_like(is_init))
    torchs = tuple(part.transpose(0, 1).contiguous() for part in first)
    want, last = module(x, torchs if cell == "lstm" else torchs[0])
    # One layer at a time: the processor's matrix products may sum in another order there. States lie in [-1, 1], and
    # each of 6 steps in up to 3 layers adds the rounding of 9 products: some 20 float32 epsilons.
    close = {"rtol": 0, "atol": 20 * torch.finfo(torch.float32).eps}
    assert_close(out, want, **close)
    assert_close(after[0][:, -1].transpose(0, 1), last[0] if cell == "lstm" else last, **close)
    if cell == "lstm":
        assert_close(after[1][:, -1].transpose(0, 1), last[1])


@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gradients_equal_finite_differences(cell, recompute):
    module, x, first, is_init, resets = problem(cell, batch=2, time=3, width=2, hidden=2, layers=2)
    is_init[0, 0], is_init[1, 2], is_init[0, 2] = True, True, False
    weights = list(module.parameters())
    parts = len(first)

    def run(x, *rest):
        out, after = ScanBackend()(
            module, x, rest[:parts], is_init, rest[parts : 2 * parts], RecurrentOptions(recompute=recompute)
        )
        return (out, *after)

    leaves = [tensor.requires_grad_() for tensor in (x, *first, *resets)]
    assert torch.autograd.gradcheck(run, (*leaves, *weights), atol=1e-6)


@each_cell
def test_a_second_derivative_is_refused(cell):
    module, x, first, is_init, _ = problem(cell)
    x.requires_grad_()
    out, _ = ScanBackend()(module, x, first, is_init)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiates once"):
        grad.sum().backward()


@each_cell
def test_only_parameters_that_require_one_get_a_gradient(cell):
    module, x, first, is_init, resets = problem(cell)
    module.requires_grad_(False)
    module.weight_hh_l1.requires_grad_()
    out, after = ScanBackend()(module, x, first, is_init, resets)
    after[-1].sum().backward()
    exact = deepcopy(module)
    exact.zero_grad()
    recurrent_reference(exact, x, first, is_init, resets)[1][-1].sum().backward()
    assert_close(module.weight_hh_l1.grad, exact.weight_hh_l1.grad)
    assert module.weight_ih_l0.grad is None
    assert out.requires_grad


@each_cell
def test_without_gradients_nothing_is_kept(cell):
    module, x, first, is_init, _ = problem(cell)
    with torch.no_grad():
        out, after = ScanBackend()(module, x, first, is_init)
    assert not out.requires_grad
    assert not any(part.requires_grad for part in after)


def operator_arguments(cell):
    module, x, first, is_init, resets = problem(cell, layers=1)
    x = x.transpose(0, 1).contiguous().requires_grad_()
    restart, first = is_init.t().contiguous(), [part[:, 0].requires_grad_() for part in first]
    resets = [part[:, :, 0].transpose(0, 1) for part in resets]
    weights = [module.weight_ih_l0, module.weight_hh_l0]
    bias = module.bias_ih_l0 if cell == "lstm" else torch.randn(20, dtype=x.dtype, requires_grad=True)
    return (x, *weights, bias, *first, restart, *resets, True, "torch", None)


@each_cell
def test_the_operator_keeps_the_rules_of_operators(cell):
    operator = {"lstm": lstm_layer, "gru": gru_layer}[cell]
    torch.library.opcheck(operator, operator_arguments(cell))


@each_cell
@each_backend
def test_dropout_lies_between_layers_in_training(backend, cell):
    module, x, first, is_init, _ = problem(cell, dropout=0.5)
    exact, _ = recurrent_reference(module, x, first, is_init)
    torch.manual_seed(1)
    one, _ = backend()(module, x, first, is_init)
    two, _ = backend()(module, x, first, is_init)
    assert not torch.allclose(one, two)
    torch.manual_seed(1)
    assert_close(backend()(module, x, first, is_init)[0], one)
    assert_close(backend()(module.eval(), x, first, is_init)[0], exact)


@each_cell
@each_backend
def test_a_compute_type_holds_inside_and_results_have_the_inputs_type(backend, cell):
    module, x, first, is_init, resets = problem(cell, dtype=torch.float32)
    options = RecurrentOptions(compute_dtype=torch.float64)
    out, after = backend()(module, x, first, is_init, resets, options)
    assert out.dtype == torch.float32
    double = [tuple(part.double() for part in parts) for parts in (first, resets)]
    want, want_after = recurrent_reference(deepcopy(module).double(), x.double(), double[0], is_init, double[1])
    assert torch.equal(out, want.float()) or (out - want.float()).abs().max() <= 1e-7
    assert_close(after, tuple(part.float() for part in want_after))
    rough, _ = backend()(module, x, first, is_init, resets, RecurrentOptions(compute_dtype=torch.bfloat16))
    assert 1e-4 < (rough - out).abs().max() < 0.1


@each_backend
@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_on_a_cpu_products_are_exact_whatever_is_allowed(backend, precision):
    module, x, first, is_init, _ = problem("lstm", dtype=torch.float32)
    options = RecurrentOptions(matmul_precision=precision)
    assert torch.equal(backend()(module, x, first, is_init, None, options)[0], backend()(module, x, first, is_init)[0])


@each_backend
@pytest.mark.parametrize(
    ("module", "what"),
    [
        (nn.LSTM(2, 3, batch_first=True, bidirectional=True), "bidirectional"),
        (nn.LSTM(2, 3, batch_first=True, proj_size=2), "proj_size=2"),
        (nn.RNN(2, 3, batch_first=True), "got RNN"),
    ],
    ids=["bidirectional", "projection", "rnn"],
)
def test_what_no_back_end_computes_is_refused(backend, module, what):
    with pytest.raises(BackendError, match=what):
        backend()(module, torch.zeros(1, 2, 2), (torch.zeros(1, 1, 3),) * 2, torch.zeros(1, 2, dtype=torch.bool))


class Counting(_kernels.TorchKernels):
    """Kernels of another plugin: counted, and for float32 only."""

    name, why = "counting", "counts its calls"

    def __init__(self):
        self.calls = []

    def serves(self, dtype, device):
        return dtype is torch.float32

    def gru_forward(self, *arguments):
        self.calls.append("forward")
        super().gru_forward(*arguments)

    def gru_backward(self, *arguments):
        self.calls.append("backward")
        super().gru_backward(*arguments)


def test_loops_of_another_package_are_used_where_they_serve():
    kernels = Counting()
    backend = ScanBackend(kernels)
    assert backend.why == "counts its calls"
    for dtype in (torch.float32, torch.float64):
        module, x, first, is_init, _ = problem("gru", layers=2, dtype=dtype)
        backend(module, x, first, is_init)[0].sum().backward()
    assert kernels.calls == ["forward", "forward", "backward", "backward"]


def test_loops_that_this_process_does_not_have_are_named():
    backend = ScanBackend()
    backend.kernels = "elsewhere"
    module, x, first, is_init, _ = problem("gru")
    with pytest.raises(BackendError, match="no recurrent kernels 'elsewhere'"):
        backend(module, x, first, is_init)


@each_cell
@each_backend
def test_our_layers_serve_as_well_as_those_of_torch(backend, cell):
    module, x, first, is_init, resets = problem(cell)
    ours = {"lstm": LSTM, "gru": GRU}[cell](4, 5, 2).double()
    ours.load_state_dict(module.state_dict())
    assert_close(backend()(ours, x, first, is_init, resets), backend()(module, x, first, is_init, resets))


@pytest.mark.parametrize(
    ("cell", "rows", "steps", "inputs", "units", "grad", "expected"),
    [
        ("lstm", 2, 6, 4, 16, True, PadBackend),
        ("lstm", 2, 6, 4, 16, False, ScanBackend),
        ("lstm", 2, 32, 4, 16, False, PadBackend),
        ("lstm", 8, 32, 4, 64, False, ScanBackend),
        ("lstm", 8, 128, 4, 64, False, PadBackend),
        ("lstm", 40, 6, 4, 16, True, ScanBackend),
        ("lstm", 1, 6, 4, 256, True, ScanBackend),
        ("lstm", 1, 128, 4, 256, True, PadBackend),
        ("lstm", 2, 128, 4, 260, True, ScanBackend),
        ("gru", 2, 6, 4, 16, True, ScanBackend),
        ("gru", 40, 6, 4, 16, True, ScanBackend),
        ("gru", 1, 6, 64, 256, True, ScanBackend),
        ("gru", 1, 6, 64, 256, False, PadBackend),
        ("gru", 4, 6, 64, 256, False, ScanBackend),
    ],
)
def test_what_is_quicker_with_torchs_own_layers_goes_through_them(cell, rows, steps, inputs, units, grad, expected):
    module, x, first, is_init, resets = problem(cell, rows, steps, inputs, units, dtype=torch.float32)
    with torch.set_grad_enabled(grad):
        out, after = PlainBackend()(module, x, first, is_init, resets)
        want, want_after = expected()(module, x, first, is_init, resets)
    assert torch.equal(out, want)
    assert all(map(torch.equal, after, want_after))


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
def test_small_batches_are_compiled_whole(kind, monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "off")
    module = kind(3, 4, in_key="observation", out_key="features", default_recurrent_mode=True)
    assert "through 'pad'" in module.backend.why
    is_init = torch.zeros(2, 6, 1, dtype=torch.bool)
    is_init[:, 0] = is_init[0, 3] = True

    def features(observation):
        return module(TensorDict(observation=observation, is_init=is_init, batch_size=[2, 6]))["features"]

    x = torch.randn(2, 6, 3)
    torch.compiler.reset()
    assert_close(torch.compile(features, fullgraph=True, backend="eager")(x), features(x))


@pytest.mark.parametrize("rows", [2, 40])
def test_batches_of_each_size_are_mapped_over_weights(rows):
    module, x, first, is_init, resets = problem("lstm", rows, hidden=16, dtype=torch.float32)
    weights = {f"0.{name}": torch.stack((value, value / 2)) for name, value in module.named_parameters()}
    call = nn.ModuleList([module])
    call.forward = lambda: PlainBackend()(call[0], x, first, is_init, resets)[0]
    found = torch.func.vmap(lambda own: torch.func.functional_call(call, own, ()))(weights)
    for place, out in enumerate(found):
        own = {name: value[place] for name, value in weights.items()}
        assert_close(out, torch.func.functional_call(call, own, ()))
