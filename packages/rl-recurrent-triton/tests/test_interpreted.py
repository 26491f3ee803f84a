"""The back end with its own kernels, on the CPU: in a process of its own, where Triton interprets them."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the kernels need triton")

from rl.core import RecurrentOptions, registry, set_recurrent_mode
from rl.core.testing import _recurrent, check_recurrent_backend
from rl.recurrent_triton import TritonBackend, _sequence
from rl.recurrent_triton._support import interpreted

# The interpreter computes with numpy, which warns of masked places.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CPU = torch.device("cpu")
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
each_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.mark.skipif(interpreted(), reason="this is the process that interprets")
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
    if not interpreted():
        pytest.skip("TRITON_INTERPRET is not set; test_in_the_interpreter starts a process where it is")


@pytest.fixture
def few(monkeypatch):
    """Of the conformance kit, those resets that the others hide in."""
    patterns = _recurrent._patterns

    def some(*sizes):
        return [pair for pair in patterns(*sizes) if pair[0] in ("no reset", "random resets")]

    monkeypatch.setattr(_recurrent, "_patterns", some)


@each_cell
def test_it_passes_a_part_of_the_conformance_kit(inside, few, cell):
    check_recurrent_backend(TritonBackend(), cell)


@pytest.mark.slow
@each_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [4096, 1], ids=["whole", "pieces"])
def test_it_passes_the_conformance_kit(inside, monkeypatch, cell, dtype, rows):
    monkeypatch.setattr(_sequence, "_ROWS", rows)
    check_recurrent_backend(TritonBackend(), cell, dtype=dtype, tolerance=1e-10 if dtype is torch.float64 else 1e-4)


@each_cell
@pytest.mark.parametrize("recompute", [pytest.param("none", marks=pytest.mark.slow), "full"])
def test_gradients_are_those_of_finite_differences(inside, monkeypatch, cell, recompute):
    monkeypatch.setattr(_sequence, "_ROWS", 1)
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


def test_it_says_that_it_is_interpreted(inside):
    assert TritonBackend().why.endswith("interpreted")


@each_cell
def test_the_hook_answers_on_a_cpu_by_name_alone(inside, cell):
    assert registry.default().recurrent_backend(cell, "triton", CPU).name == "triton"
    found = registry.default().answer("rl_recurrent_backend", cell=cell, name=None, device=CPU)
    assert found is None or found.value.name != "triton"


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


@each_cell
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
