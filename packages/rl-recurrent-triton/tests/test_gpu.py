"""Tests that need a GPU: execution, precision, large shapes, graphs, streams, memory, first calls."""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from rl.core import RecurrentOptions, registry, set_recurrent_mode
from rl.core.errors import BackendError
from rl.testing import check_recurrent_backend, recurrent_reference

pytest.importorskip("triton", reason="the kernels need triton")

from rl.recurrent_triton import TritonBackend

# a GPU is not needed by interpreted kernels, which are tested elsewhere
from rl.recurrent_triton._device import is_interpreted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(is_interpreted(), reason="this is for kernels that are compiled"),
    # Torch warns of what is experimental on a GPU, or could be faster, in words of each version.
    pytest.mark.filterwarnings("default", "error::rl.core.errors.SlowBackendWarning"),
]

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
each_cell = pytest.mark.parametrize("cell", CELLS)
EXACT = RecurrentOptions(matmul_precision="ieee")


def problem(device, cell, batch, time, hidden, *, width=None, layers=1, share=0.05, dtype=torch.float32, seed=0):
    """Module, inputs, states, mask, reset states."""
    torch.manual_seed(seed)
    module = CELLS[cell](width or hidden, hidden, layers, batch_first=True, device=device, dtype=dtype)
    parts = 2 if cell == "lstm" else 1

    def made(*shape):
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    x = made(batch, time, width or hidden)
    state = tuple(made(batch, layers, hidden) for _ in range(parts))
    resets = tuple(made(batch, time, layers, hidden) for _ in range(parts))
    return module, x, state, torch.rand(batch, time, device=device) < share, resets


def results(run, module, x, state, mask, resets, *rest):
    """Outputs, states and all gradients."""
    out, after = run(module, x, state, mask, resets, *rest)
    torch.manual_seed(7)
    total = sum((part * torch.randn(part.shape, device=x.device, dtype=part.dtype)).sum() for part in (out, *after))
    return [out, *after, *torch.autograd.grad(total, [x, *state, *resets, *module.parameters()])]


def in_float64(module, x, state, mask, resets):
    """The reference, from the same numbers."""
    exact = CELLS[module.mode.lower()](module.input_size, module.hidden_size, module.num_layers, batch_first=True)
    exact.load_state_dict(module.state_dict())

    def wide(part):
        return part.detach().double().requires_grad_()

    given = exact.to(x.device, torch.float64), wide(x), tuple(map(wide, state)), mask, tuple(map(wide, resets))
    torch.manual_seed(7)  # the weights of the outputs are drawn in float32, as for the others
    out, after = recurrent_reference(*given)
    parts = [torch.randn(part.shape, device=x.device) for part in (out, *after)]
    total = sum((part * weight.double()).sum() for part, weight in zip((out, *after), parts, strict=True))
    module, x, state, _, resets = given
    return [out, *after, *torch.autograd.grad(total, [x, *state, *resets, *module.parameters()])]


def worst(found, exact):
    """The largest difference, in units of the largest number of each tensor."""
    pairs = zip(found, exact, strict=True)
    return max(((got.double() - want).abs().max() / (1e-6 + want.abs().max())).item() for got, want in pairs)


@each_cell
def test_it_passes_the_conformance_kit(gpu, cell):
    check_recurrent_backend(TritonBackend(), cell, device=gpu)


SIZES = [  # batch, time, hidden, layers
    (1, 1, 1, 1),
    (1, 17, 64, 1),
    (33, 20, 100, 2),
    (256, 32, 128, 1),
    (31, 40, 256, 1),
    (300, 24, 256, 2),
    (65, 24, 300, 1),
    (32, 32, 512, 1),
    (2000, 12, 64, 1),
    (3000, 6, 256, 1),
    (48, 10, 1024, 1),
]


@each_cell
@pytest.mark.parametrize(("batch", "time", "hidden", "layers"), SIZES)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_every_size_is_right(gpu, cell, batch, time, hidden, layers, recompute):
    given = problem(gpu, cell, batch, time, hidden, layers=layers)
    options = RecurrentOptions(recompute=recompute, matmul_precision="ieee")
    assert worst(results(TritonBackend(), *given, options), in_float64(*given)) < 2e-5


@each_cell
@pytest.mark.parametrize(
    ("options", "bound"),
    [
        (EXACT, 1e-5),
        (RecurrentOptions(matmul_precision="tf32x3"), 2e-5),
        (RecurrentOptions(matmul_precision="tf32"), 5e-3),
        (RecurrentOptions(compute_dtype=torch.float16), 1e-2),
        (RecurrentOptions(compute_dtype=torch.bfloat16), 5e-2),
    ],
    ids=["ieee", "tf32x3", "tf32", "float16", "bfloat16"],
)
@pytest.mark.parametrize("hidden", [64, 256])
def test_each_precision_is_as_exact_as_it_says(gpu, cell, options, bound, hidden):
    given = problem(gpu, cell, 128, 32, hidden)
    error = worst(results(TritonBackend(), *given, options), in_float64(*given))
    print(f"{cell}, H={hidden}, {options.matmul_precision or options.compute_dtype}: {error:.2e}")
    assert error < bound


@contextmanager
def torch_set_to(precision):
    products, layers = torch.backends.cuda.matmul, torch.backends.cudnn.rnn
    before = products.fp32_precision, layers.fp32_precision
    products.fp32_precision, layers.fp32_precision = "ieee", precision
    try:
        yield
        assert products.fp32_precision == "ieee", "a call left another precision behind"
    finally:
        products.fp32_precision, layers.fp32_precision = before


def test_the_default_precision_is_that_of_torchs_layers(gpu):
    given = problem(gpu, "lstm", 64, 16, 128)
    exact = in_float64(*given)
    with torch_set_to("ieee"):
        assert worst(results(TritonBackend(), *given), exact) < 1e-5
        assert worst(results(TritonBackend(), *given, RecurrentOptions(matmul_precision="tf32")), exact) > 1e-5
    with torch_set_to("tf32"):
        assert worst(results(TritonBackend(), *given), exact) > 1e-5
        assert worst(results(TritonBackend(), *given, EXACT), exact) < 1e-5


@pytest.fixture
def forced(gpu, monkeypatch):
    """Let all calls take one launch shape; the test is skipped where the device has no room for it."""
    # one launch shape is forced where the plan would choose
    from rl.recurrent_triton import _launch

    chosen = _launch.plan

    def plan(*given):
        try:
            return chosen(*given)
        except BackendError as reason:
            pytest.skip(str(reason))

    def force(shape):
        _launch._planned.cache_clear()  # it holds what was chosen for the same sizes before
        monkeypatch.setattr(_launch, "plan", lambda *given: plan(*given[:-1], shape))

    yield force
    _launch._planned.cache_clear()


@each_cell
@pytest.mark.parametrize("launch", ["resident", "group"])
@pytest.mark.parametrize("hidden", [20, 64])
def test_each_launch_shape_is_right_where_it_is_forced(gpu, forced, cell, launch, hidden):
    forced(launch)
    given = problem(gpu, cell, 100, 30, hidden, share=0.1)
    exact = in_float64(*given)
    for recompute in ("none", "full"):
        options = RecurrentOptions(recompute=recompute, matmul_precision="ieee")
        assert worst(results(TritonBackend(), *given, options), exact) < 2e-5


LAUNCHES = [  # None is what the plan takes
    ("resident", 32, 64, "ieee"),
    ("group", 48, 128, "ieee"),
    ("group", 256, 256, "tf32"),
    ("group", 48, 256, "ieee"),
    ("group", 32, 512, "ieee"),
    (None, 2048, 128, "tf32"),
    (None, 4096, 128, "tf32"),
    (None, 256, 1024, "tf32"),
]


@each_cell
@pytest.mark.parametrize(("launch", "batch", "hidden", "precision"), LAUNCHES)
def test_the_same_inputs_give_the_same_bytes(gpu, forced, cell, launch, batch, hidden, precision):
    # A program that reads what another has not written yet differs now and then.
    forced(launch)
    module, x, state, mask, resets = problem(gpu, cell, batch, 48, hidden)
    options = RecurrentOptions(matmul_precision=precision)
    with torch.no_grad():
        first, _ = TritonBackend()(module, x, state, mask, resets, options)
        for _ in range(30):
            assert torch.equal(TritonBackend()(module, x, state, mask, resets, options)[0], first)
    of_inputs = 3 if cell == "lstm" else 2
    expected = results(TritonBackend(), module, x, state, mask, resets, options)[of_inputs]
    for _ in range(10):
        found = results(TritonBackend(), module, x, state, mask, resets, options)[of_inputs]
        assert torch.equal(found, expected)


@each_cell
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_nothing_waits_for_the_device(gpu, cell, recompute):
    given = problem(gpu, cell, 64, 32, 128, layers=2)
    options = RecurrentOptions(recompute=recompute)

    def step():
        module, x, *_ = given
        out, _ = TritonBackend()(*given, options)
        out.sum().backward()
        return module, x

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each_cell
@pytest.mark.parametrize(("launch", "hidden"), [("resident", 64), ("group", 128), ("group", 640)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_cuda_graph_holds_forward_and_backward(gpu, forced, cell, launch, hidden, recompute):
    forced(launch)
    module, x, state, mask, resets = problem(gpu, cell, 64, 12, hidden)
    options = RecurrentOptions(recompute=recompute, matmul_precision="ieee")
    leaves = [x, *state, *resets, *module.parameters()]

    def step():
        out, _ = TritonBackend()(module, x, state, mask, resets, options)
        return out, torch.autograd.grad(out.square().sum(), leaves)

    side = torch.cuda.Stream(gpu)
    side.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream(gpu).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    with torch.no_grad():
        x.normal_()
        mask.copy_(torch.rand(mask.shape, device=gpu) < 0.2)
    for _ in range(3):
        graph.replay()
    expected = step()
    torch.testing.assert_close(held, expected, rtol=1e-4, atol=1e-4)


@each_cell
def test_a_compiled_module_keeps_one_graph(gpu, cell):
    modules = pytest.importorskip("rl.modules", reason="modules are of rl-modules")
    kind = {"lstm": modules.LSTMModule, "gru": modules.GRUModule}[cell]
    module = kind(16, 64, num_layers=2, in_key="observation", out_key="features", device=gpu)
    assert (module.backend.name, module.backend.distribution) == ("triton", "rl-recurrent-triton")
    parts = [torch.randn(8, 20, 2, 64, device=gpu) for _ in module.states]
    x, flags = torch.randn(8, 20, 16, device=gpu), torch.rand(8, 20, 1, device=gpu) < 0.1

    def run(x, *rest):
        return module._compute(x * 2, *rest)[0].square().mean()

    grads = []
    with set_recurrent_mode(True):
        for call in (run, torch.compile(run, fullgraph=True)):
            module.zero_grad()
            call(x, *parts, flags).backward()
            grads.append([parameter.grad.clone() for parameter in module.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)


def test_auto_takes_it(gpu):
    found = registry.default().answer("rl_recurrent_backend", cell="gru", name=None, device=gpu)
    assert (found.value.name, found.plugin.distribution) == ("triton", "rl-recurrent-triton")


def test_it_runs_on_the_stream_that_is_current(gpu):
    given = problem(gpu, "gru", 64, 32, 128)
    expected = results(TritonBackend(), *given, EXACT)
    torch.cuda.synchronize(gpu)
    stream = torch.cuda.Stream(gpu)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        found = results(TritonBackend(), *given, EXACT)
    stream.synchronize()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_it_runs_on_a_device_that_is_not_current(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    other = torch.device("cuda", 1 if gpu.index == 0 else 0)
    given = problem(other, "lstm", 32, 8, 64)
    assert worst(results(TritonBackend(), *given, EXACT), in_float64(*given)) < 2e-5


def peak(gpu, cell, recompute):
    module, x, state, mask, _ = problem(gpu, cell, 256, 128, 256)
    torch.cuda.synchronize(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)
    out, _ = TritonBackend()(module, x, state, mask, None, RecurrentOptions(recompute=recompute))
    torch.autograd.grad(out.sum(), [x, *module.parameters()])
    return torch.cuda.max_memory_allocated(gpu) - before


@each_cell
def test_full_takes_at_most_half_of_the_memory(gpu, cell):
    for recompute in ("none", "full"):  # workspaces of the products are there afterwards
        peak(gpu, cell, recompute)
    kept, full = peak(gpu, cell, "none"), peak(gpu, cell, "full")
    print(f"{cell}: none {kept / 2**20:.0f} MiB, full {full / 2**20:.0f} MiB, ratio {full / kept:.2f}")
    assert full <= 0.5 * kept


@each_cell
def test_another_batch_or_length_compiles_nothing(gpu, cell):
    from triton import knobs

    # one launch shape is forced where the plan would choose
    from rl.recurrent_triton import _launch

    def launches(batch):
        how = batch, 128, torch.float32, "ieee", _launch._properties(gpu), None
        plans = [_launch.plan(cell, direction, *how) for direction in ("forward", "backward")]
        return tuple(replace(plan, wave=0) for plan in plans)  # how many run at once is a plain number

    compiled, met = [], set()
    sizes = [(32, 16), (256, 16), (4096, 16), (31, 15), (37, 64), (240, 7), (300, 40), (4000, 9), (5000, 33)]
    for recompute in ("none", "full"):
        options = RecurrentOptions(recompute=recompute, matmul_precision="ieee")
        again = []
        for batch, time in sizes:  # one batch of each launch that is chosen, and then others beside them
            key = recompute, launches(batch)
            if key in met:
                again.append((batch, time))
            else:
                met.add(key)
                results(TritonBackend(), *problem(gpu, cell, batch, time, 128), options)
        assert len(again) >= 4
        knobs.runtime.jit_cache_hook = lambda **found: compiled.append(found["repr"])
        try:
            for batch, time in again:
                results(TritonBackend(), *problem(gpu, cell, batch, time, 128), options)
        finally:
            knobs.runtime.jit_cache_hook = None
        assert compiled == [], recompute


FIRST = """
import time, torch
from torch import nn
from rl.recurrent_triton import TritonBackend
module = nn.{kind}({hidden}, {hidden}, batch_first=True, device="cuda")
x = torch.randn({batch}, 8, {hidden}, device="cuda")
state = (torch.zeros({batch}, 1, {hidden}, device="cuda"),) * {parts}
mask = torch.zeros({batch}, 8, dtype=torch.bool, device="cuda")
(x[0] @ module.weight_ih_l0.t()).sum().item()
import rl.recurrent_triton._launch
start = time.perf_counter()
TritonBackend()(module, x, state, mask)[0].sum().backward()
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize(("kind", "parts"), [("LSTM", 2), ("GRU", 1)])
@pytest.mark.parametrize(("batch", "hidden"), [(32, 64), (256, 256), (4096, 256), (64, 1024)])
def test_the_first_call_compiles_in_seconds(gpu, tmp_path, kind, parts, batch, hidden):
    code = FIRST.format(kind=kind, parts=parts, batch=batch, hidden=hidden)
    environ = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds = float(done.stdout)
    print(f"{kind}, B={batch}, H={hidden}: forward and backward for the first time in {seconds:.1f} s")
    assert seconds < 15  # three kernels of at most 5 seconds each
