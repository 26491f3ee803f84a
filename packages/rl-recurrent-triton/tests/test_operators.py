"""The operators and autograd functions over a test double of the kernels in plain torch."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from rl.core import RecurrentOptions
from rl.core.errors import BackendError

# `opcheck` reads the operators, and layers are cut into chunks of few rows
from rl.recurrent_triton import _layers, _ops
from rl.testing import check_recurrent_backend, recurrent_reference

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
each_cell = pytest.mark.parametrize("cell", CELLS)
FULL = RecurrentOptions(recompute="full")


def problem(cell, batch=3, time=7, width=4, hidden=5, layers=2, dtype=torch.float64, bias=True, seed=0):
    """Module, inputs, states, mask, reset states."""
    torch.manual_seed(seed)
    module = CELLS[cell](width, hidden, layers, bias=bias, batch_first=True, dtype=dtype)
    parts = 2 if cell == "lstm" else 1
    x = torch.randn(batch, time, width, dtype=dtype, requires_grad=True)
    state = tuple(torch.randn(batch, layers, hidden, dtype=dtype, requires_grad=True) for _ in range(parts))
    resets = tuple(torch.randn(batch, time, layers, hidden, dtype=dtype, requires_grad=True) for _ in range(parts))
    mask = torch.rand(batch, time) < 0.3
    mask[0, 0] = mask[-1, -1] = True  # also where there is nothing before
    return module, x, state, mask, resets


def gradients(outputs, leaves):
    torch.manual_seed(1)
    out, after = outputs
    total = sum((part * torch.randn(part.shape, dtype=part.dtype)).sum() for part in (out, *after))
    return torch.autograd.grad(total, leaves)


@pytest.fixture
def short(monkeypatch):
    """Pieces of time as short as they get: four of them, the last one shorter."""
    monkeypatch.setattr(_layers, "_ROWS", 1)


@each_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_passes_the_conformance_kit(backend, cell, dtype):
    check_recurrent_backend(backend, cell, dtype=dtype, tolerance=1e-10 if dtype is torch.float64 else 1e-4)


@each_cell
def test_it_passes_the_conformance_kit_in_pieces_of_time(backend, cell, short):
    check_recurrent_backend(backend, cell, dtype=torch.float64, tolerance=1e-10)


@each_cell
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_pieces_of_time_change_nothing(backend, in_torch, monkeypatch, cell, layers, bias):
    module, *given = problem(cell, layers=layers, bias=bias)
    leaves = [given[0], *given[1], *given[3], *module.parameters()]
    found = []
    for rows in (4096, 1):
        monkeypatch.setattr(_layers, "_ROWS", rows)
        in_torch.calls.clear()
        outputs = backend(module, *given, FULL)
        found.append([outputs[0], *outputs[1], *gradients(outputs, leaves)])
        steps = [each.steps for each in in_torch.calls if each.name == f"{cell}_backward"]
        assert steps == (
            [(0, 7)] * layers if rows > 1 else [s for s in ((6, 7), (4, 6), (2, 4), (0, 2)) for _ in range(layers)]
        )
    for whole, piecewise in zip(*found, strict=True):
        torch.testing.assert_close(piecewise, whole)


@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gradients_are_those_of_finite_differences(backend, short, cell, recompute):
    module, x, state, mask, resets = problem(cell, batch=2, time=5, width=2, hidden=3)
    options = RecurrentOptions(recompute=recompute)
    names = [name for name, _ in module.named_parameters()]

    def run(x, *rest):
        parts = len(state)
        for name, value in zip(names, rest[2 * parts :], strict=True):
            delattr(module, name) if name in module._parameters else None
            setattr(module, name, value)
        out, after = backend(module, x, rest[:parts], mask, rest[parts : 2 * parts], options)
        return (out, *after)

    leaves = [parameter.detach().requires_grad_() for parameter in module.parameters()]
    assert torch.autograd.gradcheck(run, (x, *state, *resets, *leaves), fast_mode=True)


@each_cell
@pytest.mark.parametrize(
    "options", [RecurrentOptions(), pytest.param(FULL, marks=pytest.mark.slow)], ids=["kept", "full"]
)
def test_the_operators_keep_the_rules_of_torch(in_torch, cell, options):
    module, x, state, mask, resets = problem(cell, time=4)
    weights, keep = list(module.parameters()), options.recompute == "none"
    arguments = (x, weights, True, *state, mask, *resets, torch.float64, keep, None)
    opcheck(getattr(_ops, cell), arguments)
    with torch.no_grad():
        *states, gates = getattr(_ops, cell)(*arguments)
    detached = [x.detach(), [weight.detach() for weight in weights], True, *(s.detach() for s in state), mask]
    detached += [reset.detach() for reset in resets]
    wanted = [True, False, *[True] * (2 * len(state) - 1), *[True] * len(weights)]
    grads = [torch.randn_like(part) for part in states]
    rest = (torch.float64, keep, None)
    opcheck(getattr(_ops, f"{cell}_backward"), (*grads, *detached, *states, gates, wanted, *rest))


class Plain(nn.Module):
    """Weights under the names of torch, in a module that the compiler does not refuse, as it does those of torch."""

    bias, dropout, bidirectional, proj_size = True, 0.0, False, 0

    def __init__(self, module):
        super().__init__()
        self.mode, self.num_layers = module.mode, module.num_layers
        for name, parameter in module.named_parameters():
            self.register_parameter(name, parameter)


@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_compiled_function_keeps_one_graph_and_its_gradients(backend, cell, recompute):
    module, *given = problem(cell, dtype=torch.float32)
    module, options = Plain(module), RecurrentOptions(recompute=recompute)
    leaves = [given[0], *given[1], *given[3], *module.parameters()]

    def run(x, state, mask, resets):
        out, after = backend(module, x * 2, state, mask, resets, options)
        return out * 3, after

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    expected, found = run(*given), compiled(*given)
    torch.testing.assert_close(found, expected)
    for grad, want in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(grad, want)


@each_cell
def test_tensors_without_data_take_the_operators(backend, in_torch, cell):
    with FakeTensorMode():
        module, *given = problem(cell)
        out, after = backend(module, *given)
        out.sum().backward()
    assert in_torch.calls == []
    assert (out.shape, after[0].shape) == ((3, 7, 5), (3, 7, 2, 5))
    assert module.weight_ih_l1.grad.shape == module.weight_ih_l1.shape


@each_cell
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_half_types_sum_and_keep_states_in_float32(backend, short, cell, dtype, recompute):
    module, x, state, mask, resets = problem(cell, dtype=torch.float32, hidden=16)
    options = RecurrentOptions(recompute=recompute, compute_dtype=dtype)
    leaves = [x, *state, *resets, *module.parameters()]
    found, exact = backend(module, x, state, mask, resets, options), recurrent_reference(module, x, state, mask, resets)
    assert found[0].dtype is found[1][0].dtype is torch.float32
    bound = 0.02 if dtype is torch.bfloat16 else 0.004
    torch.testing.assert_close(found, exact, rtol=0, atol=bound)
    for grad, want, leaf in zip(gradients(found, leaves), gradients(exact, leaves), leaves, strict=True):
        assert grad.dtype is leaf.dtype
        assert (grad - want).abs().max() <= bound * (1 + want.abs().max())


@each_cell
def test_a_module_of_a_half_type_gets_its_type_back(backend, cell):
    module, x, state, mask, resets = problem(cell, dtype=torch.bfloat16)
    out, after = backend(module, x, state, mask, resets)
    assert {part.dtype for part in (out, *after)} == {torch.bfloat16}
    grads = gradients((out, after), [x, *state, *resets, *module.parameters()])
    assert {grad.dtype for grad in grads} == {torch.bfloat16}


# ------------------------------------------------------------------ only needed gradients


@each_cell
def test_without_gradients_no_gates_are_kept(backend, in_torch, cell):
    module, *given = problem(cell)
    with torch.no_grad():
        backend(module, *given)
    assert [each.options["keep"] for each in in_torch.calls] == [False, False]
    in_torch.calls.clear()
    backend(module, *given)
    assert [each.options["keep"] for each in in_torch.calls] == [True, True]


@each_cell
def test_frozen_lower_layers_are_not_gone_through(backend, in_torch, cell):
    module, x, state, mask, resets = problem(cell, layers=3)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("l2"))
    out, _ = backend(module, x.detach(), tuple(s.detach() for s in state), mask, tuple(r.detach() for r in resets))
    in_torch.calls.clear()
    out.sum().backward()
    assert [each.name for each in in_torch.calls if each.name.endswith("backward")] == [f"{cell}_backward"]
    assert module.weight_hh_l0.grad is None
    assert module.weight_hh_l2.grad.abs().sum() > 0


LEAVES = ["x", "state", "resets", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l1", "weight_hh_l1"]


@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("leaf", LEAVES)
def test_each_gradient_alone_is_what_it_is_among_the_others(backend, short, cell, recompute, leaf):
    module, x, state, mask, resets = problem(cell)
    options = RecurrentOptions(recompute=recompute)
    of = {"x": [x], "state": list(state), "resets": list(resets)} | {n: [p] for n, p in module.named_parameters()}
    every = [tensor for tensors in of.values() for tensor in tensors]
    expected = dict(
        zip(map(id, every), gradients(backend(module, x, state, mask, resets, options), every), strict=True)
    )
    for tensor in every:
        tensor.requires_grad_(False)
    for tensor in of[leaf]:
        tensor.requires_grad_(True)
    found = gradients(backend(module, x, state, mask, resets, options), of[leaf])
    for tensor, grad in zip(of[leaf], found, strict=True):
        torch.testing.assert_close(grad, expected[id(tensor)])


@each_cell
@pytest.mark.parametrize("output", [0, 1], ids=["outputs", "states"])
def test_one_output_alone_has_the_gradient_of_the_reference(backend, cell, output):
    module, x, state, mask, resets = problem(cell)
    leaves = [x, *state, *resets, *module.parameters()]
    totals = []
    for run in (backend, recurrent_reference):
        out, after = run(module, x, state, mask, resets)
        totals.append((after[-1] if output else out).sum())  # a gradient that is one number, expanded
    grads, expected = (torch.autograd.grad(total, leaves, materialize_grads=True) for total in totals)
    for grad, want in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, want)


# ------------------------------------------------------------------ memory


def kept_bytes(run):
    """What autograd keeps of `run`, each storage once, arguments and weights left out."""
    found = {}

    def keep(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = run()
    return outputs, found


@pytest.mark.parametrize(("cell", "none", "full"), [("lstm", 6, 2), ("gru", 5, 1)])
@pytest.mark.parametrize("compute", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_full_keeps_the_states_alone(backend, cell, none, full, compute):
    module, x, state, mask, _ = problem(cell, batch=4, time=50, width=16, hidden=16, dtype=torch.float32)
    one = 4 * 50 * 2 * 16 * 4  # bytes of [B, T, layers, H] in float32
    none = full + (none - full) * (1 if compute is None else 0.5)  # gates in the type of the products
    given = {part.untyped_storage().data_ptr() for part in (x, *state, mask, *module.parameters())}
    for recompute, parts in (("none", none), ("full", full)):
        options = RecurrentOptions(recompute=recompute, compute_dtype=compute)
        _, found = kept_bytes(lambda options=options: backend(module, x, state, mask, None, options))
        assert sum(size for pointer, size in found.items() if pointer not in given) == parts * one


def peak(run):
    """The largest sum of what was allocated and not freed yet while `run` ran, in bytes."""
    with torch.profiler.profile(profile_memory=True) as seen:
        outputs = run()
    del outputs
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize(("cell", "none", "full"), [("lstm", 13, 5.75), ("gru", 12, 4.75)])
def test_full_needs_less_than_half_at_its_peak(backend, short, cell, none, full):
    module, x, state, mask, _ = problem(cell, batch=16, time=128, width=32, hidden=32, layers=1, dtype=torch.float32)
    one = 16 * 128 * 32 * 4  # bytes of [B, T, H]; of them at the peak, by count:
    # none: states 2 or 1, gates 4, their gradients 4, states before 1, gradients of outputs and inputs 1 each
    # full: states, a quarter of gates 4, of rows, of states before and of the products 1 each, and the last two again
    found = {}
    for recompute in ("none", "full"):

        def step(recompute=recompute):
            out, _ = backend(module, x, state, mask, None, RecurrentOptions(recompute=recompute))
            return torch.autograd.grad(out, [x, *module.parameters()], torch.ones_like(out))

        step()
        found[recompute] = peak(step) / one
    assert found["none"] == pytest.approx(none, rel=0.1)
    assert found["full"] == pytest.approx(full, rel=0.15)
    assert found["full"] <= 0.5 * found["none"]


# ------------------------------------------------------------------ edges


@each_cell
def test_a_second_derivative_is_refused(backend, cell):
    module, *given = problem(cell)
    out, _ = backend(module, *given)
    (grad,) = torch.autograd.grad(out.sum(), given[0], create_graph=True)
    with pytest.raises(BackendError, match="differentiates once"):
        grad.sum().backward()


@each_cell
@pytest.mark.parametrize(("batch", "time"), [(0, 3), (2, 0)])
def test_empty_inputs_give_empty_outputs(backend, cell, batch, time):
    module, x, state, _, resets = problem(cell)
    mask = torch.zeros(batch, time, dtype=torch.bool)
    out, after = backend(
        module, x[:batch, :time], tuple(s[:batch] for s in state), mask, tuple(r[:batch, :time] for r in resets)
    )
    assert out.shape == (batch, time, 5)
    assert after[0].shape == (batch, time, 2, 5)
    grads = torch.autograd.grad(out.sum(), [x, *module.parameters()])
    assert all(grad.abs().sum() == 0 for grad in grads)


@each_cell
def test_two_backward_passes_through_one_graph_agree(backend, cell):
    module, *given = problem(cell)
    out, _ = backend(module, *given)
    first = torch.autograd.grad(out.sum(), given[0], retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), given[0]), first)


def test_the_precision_reaches_the_kernels(backend, in_torch):
    module, *given = problem("gru")
    for asked in ("ieee", "tf32", "tf32x3"):
        in_torch.calls.clear()
        out, _ = backend(module, *given, RecurrentOptions(matmul_precision=asked))
        out.sum().backward()
        assert {each.options["precision"] for each in in_torch.calls if "precision" in each.options} == {asked}


@pytest.mark.parametrize(
    ("asked", "layers", "products", "expected"),
    [
        (None, "tf32", "none", "tf32"),
        (None, "ieee", "none", "ieee"),
        (None, "ieee", "tf32", "tf32"),
        ("ieee", "tf32", "tf32", "ieee"),
        ("tf32x3", "tf32", "tf32", "tf32x3"),
    ],
)
def test_the_default_precision_is_that_of_torchs_layers(asked, layers, products, expected):
    of_layers, of_products = torch.backends.cudnn.rnn, torch.backends.cuda.matmul
    before = of_layers.fp32_precision, of_products.fp32_precision
    of_layers.fp32_precision, of_products.fp32_precision = layers, products
    try:
        with _layers._products(asked) as found:
            assert found == expected
            assert of_products.fp32_precision == ("tf32" if expected == "tf32" else "ieee")
        assert of_products.fp32_precision == products
    finally:
        of_layers.fp32_precision, of_products.fp32_precision = before


def test_autocast_has_no_effect(backend):
    module, *given = problem("lstm", dtype=torch.float32)
    expected = backend(module, *given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = backend(module, *given)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("batch", "time", "cuts"), [(1, 100, 1), (256, 128, 4), (10_000, 3, 3), (64, 130, 3)])
def test_pieces_are_whole_short_and_enough(batch, time, cuts):
    found = _layers.time_chunks(batch, time, single=False)
    assert len(found) == cuts
    assert [step for start, stop in found for step in range(start, stop)] == list(range(time))
    assert max(stop - start for start, stop in found) == found[0][1]
    assert _layers.time_chunks(batch, time, single=True) == [(0, time)]
