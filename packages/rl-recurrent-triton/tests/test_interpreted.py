"""The back end with its kernels on the CPU, in a process in which Triton interprets them."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("triton", reason="the kernels need triton")

from rl.core import RecurrentOptions, registry, set_recurrent_mode
from rl.core.errors import BackendError

# layers are cut into chunks of few rows, so that the interpreter is fast enough
from rl.recurrent_triton import TritonBackend, _layers
from rl.recurrent_triton._device import is_interpreted
from rl.testing import check_recurrent_backend, recurrent_reference

# The interpreter computes with numpy, which warns of masked places.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CPU = torch.device("cpu")
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
each_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.mark.skipif(is_interpreted(), reason="this is the process that interprets")
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_the_interpreter(which):
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", which, __file__]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.fixture
def inside():
    """Only where Triton interprets."""
    if not is_interpreted():
        pytest.skip("TRITON_INTERPRET is not set; test_in_the_interpreter starts a process where it is")


def drawn(data, cell):
    """Arguments that fit together, of any layout, some with gradient; and how to compute."""
    draw = data.draw
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    batch, time, width = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    hidden, layers = draw(st.sampled_from([1, 3, 5, 17, 20])), draw(st.integers(1, 2))

    def made(*shape):
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    def flags(*shape):
        return torch.rand(shape, generator=rng) < 0.4

    def one_of(**variants):
        return variants[draw(st.sampled_from(sorted(variants)))]()

    module = CELLS[cell](width, hidden, layers, bias=draw(st.booleans()), batch_first=True, dtype=torch.float64)
    parts = range(2 if cell == "lstm" else 1)
    x = one_of(
        rows=lambda: made(batch, time, width),
        time_first=lambda: made(time, batch, width).transpose(0, 1),
        expanded=lambda: made(batch, 1, width).expand(batch, time, width),
        every_other=lambda: made(batch, time, 2 * width)[..., ::2],
    )
    state = [made(layers, batch, hidden).transpose(0, 1) for _ in parts]
    layouts = {
        "rows": lambda: made(batch, time, layers, hidden),
        "expanded": lambda: made(1, 1, layers, hidden).expand(batch, time, layers, hidden),
        "turned": lambda: made(hidden, layers, time, batch).permute(3, 2, 1, 0),
    }
    resets = [one_of(**layouts) for _ in parts] if draw(st.booleans()) else []
    mask = one_of(
        some=lambda: flags(batch, time),
        time_first=lambda: flags(time, batch).t(),
        every=lambda: torch.ones(1, 1, dtype=torch.bool).expand(batch, time),
        none=lambda: torch.zeros(batch, time, dtype=torch.bool),
    )
    leaves = [x, *state, *resets, *module.parameters()]
    for leaf in leaves:
        leaf.requires_grad_(draw(st.booleans()))
    outputs = [made(batch, time, hidden), *[made(batch, time, layers, hidden) for _ in parts]]
    grads = [grad if draw(st.booleans()) else None for grad in outputs]
    arguments = module, x, tuple(state), mask, tuple(resets) or None
    options = RecurrentOptions(recompute=draw(st.sampled_from(["none", "full"])))
    return arguments, options, [leaf for leaf in leaves if leaf.requires_grad], grads


def outcome(found, leaves, grads):
    """Outputs, states, and those gradients that there are."""
    out, after = found
    used = [(part, grad) for part, grad in zip((out, *after), grads, strict=True) if grad is not None]
    used = [(part, grad) for part, grad in used if part.requires_grad]
    total = sum((part * grad).sum() for part, grad in used)
    if not used:
        return [out, *after]
    return [out, *after, *torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)]


@each_cell
def test_random_problems_equal_the_reference(inside, cell):
    @given(st.data(), st.sampled_from([1, 4, 4096]))
    @settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(data, rows):
        arguments, options, leaves, grads = drawn(data, cell)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_layers, "_ROWS", rows)
            found = outcome(TritonBackend()(*arguments, options=options), leaves, grads)
        expected = outcome(recurrent_reference(*arguments), leaves, grads)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)

    check()


@pytest.mark.slow
@each_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [4096, 1], ids=["whole", "pieces"])
def test_it_passes_the_conformance_kit(inside, monkeypatch, cell, dtype, rows):
    monkeypatch.setattr(_layers, "_ROWS", rows)
    check_recurrent_backend(TritonBackend(), cell, dtype=dtype, tolerance=1e-10 if dtype is torch.float64 else 1e-4)


@pytest.mark.slow
@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_gradients_are_those_of_finite_differences(inside, monkeypatch, cell, recompute):
    monkeypatch.setattr(_layers, "_ROWS", 1)
    torch.manual_seed(0)
    module = CELLS[cell](2, 3, batch_first=True, dtype=torch.float64)
    parts = 2 if cell == "lstm" else 1
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    state = [torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True) for _ in range(parts)]
    resets = [torch.randn(2, 4, 1, 3, dtype=torch.float64, requires_grad=True) for _ in range(parts)]
    mask = torch.tensor([[True, False, False, True], [False, False, True, False]])

    def run(x, *rest):
        out, after = TritonBackend()(module, x, rest[:parts], mask, rest[parts:], RecurrentOptions(recompute=recompute))
        return (out, *after)

    assert torch.autograd.gradcheck(run, (x, *state, *resets), fast_mode=True)


def test_the_reason_names_the_interpreter(inside):
    assert TritonBackend().why.endswith("interpreted")


@each_cell
def test_the_hook_selects_it_on_a_cpu_by_name_only(inside, cell):
    found = registry.default().answer("rl_recurrent_backend", cell=cell, name="triton", device=CPU)
    assert found.value.name == "triton"
    found = registry.default().answer("rl_recurrent_backend", cell=cell, name=None, device=CPU)
    assert found is None or found.value.name != "triton"


def test_switched_off_it_says_so(inside, monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "off")
    with pytest.raises(BackendError, match="RL_NATIVE=off; unset it"):
        registry.default().answer("rl_recurrent_backend", cell="lstm", name="triton", device=CPU)


def _modules(cell, **options):
    modules = pytest.importorskip("rl.modules", reason="modules are of rl-modules")
    kind = {"lstm": modules.LSTMModule, "gru": modules.GRUModule}[cell]
    torch.manual_seed(0)
    module = kind(3, 5, num_layers=2, in_key="observation", out_key="features", recurrent_backend="triton", **options)
    torch.manual_seed(0)
    other = kind(3, 5, num_layers=2, in_key="observation", out_key="features", recurrent_backend="scan")
    return module, other


def _batch(module):
    from tensordict import TensorDict

    torch.manual_seed(1)
    td = TensorDict(observation=torch.randn(4, 6, 3), is_init=torch.rand(4, 6, 1) < 0.3, batch_size=[4, 6])
    for state in module.states:
        td.set(state.name, torch.randn(4, 6, *state.shape))
    return td


@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_module_computes_the_same_as_with_scan(inside, cell, recompute):
    module, other = _modules(cell, recurrent_recompute=recompute)
    assert (module.backend.name, module.backend.distribution) == ("triton", "rl-recurrent-triton")
    assert "asked for by name (Triton" in str(module.backend)
    with set_recurrent_mode(True):
        found, expected = module(_batch(module)), other(_batch(other))
    for key in module.out_keys:
        torch.testing.assert_close(found[key], expected[key])
    found["features"].square().sum().backward()
    expected["features"].square().sum().backward()
    for parameter, want in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, want.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", [pytest.param("lstm", marks=pytest.mark.slow), "gru"])
def test_a_module_compiles_into_one_graph(inside, cell):
    module, other = _modules(cell)
    td = _batch(module)

    def run(*leaves):
        return module._compute(*leaves)

    leaves = [td[key] for key in module.in_keys]
    with set_recurrent_mode(True):
        found = torch.compile(run, fullgraph=True, backend="aot_eager")(*leaves)
        expected = other(_batch(other))
    torch.testing.assert_close(found, tuple(expected[key] for key in other.out_keys))
    found[0].sum().backward()
    assert module.network.weight_hh_l0.grad is not None
