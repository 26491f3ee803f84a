"""Each kernel in each launch shape against loops in plain torch: in Triton's interpreter everywhere, compiled on a GPU.

Whether Triton interprets is decided when it is imported, so the interpreter gets a process of its own.
"""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

import itertools

# each kernel is compared with torch alone, for each launch shape
from rl.recurrent_triton import _launch
from rl.recurrent_triton._launch import is_interpreted
from rl.recurrent_triton._plan import Launch

# The interpreter computes with numpy, which warns of masked places.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _load(name):
    spec = spec_from_file_location(f"rl_recurrent_triton_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


naive = _load("naive")


@pytest.mark.skipif(is_interpreted(), reason="this is the process that interprets")
@pytest.mark.parametrize("which", ["not gpu", pytest.param("slow and not gpu", marks=pytest.mark.slow)])
def test_in_the_interpreter(which):
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", which, __file__]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device: torch.cuda.is_available() is False")
        return torch.device("cuda", torch.cuda.current_device())
    if not is_interpreted():
        pytest.skip("TRITON_INTERPRET is not set; test_in_the_interpreter starts a process where it is")
    return torch.device("cpu")


def _wide(hidden):
    return max(16, 1 << (hidden - 1).bit_length())


def launches(shape, hidden):
    """Small tiles, so that small sizes have many of them. Interpreted, groups of several programs are in test_group."""
    streamed = shape == "streamed"
    columns = _wide(hidden) if shape == "resident" or is_interpreted() else 16
    shape = "group" if streamed else shape
    return Launch(shape, rows=16, columns=columns, depth=16, warps=4, stages=2, ahead=0 if streamed else 1)


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 0.15}


class Runner:
    """Runs a case through the launch functions, as the operators do: in pieces of time, states and weights on a device.

    Args:
        case: from `naive`.
        device: where.
        dtype: the compute type.
        launch: for all calls.
        cuts: where time is cut.
    """

    def __init__(self, case, device, dtype, launch, cuts=(), precision="ieee"):
        self.case, self.device, self.dtype, self.launch, self.precision = case, device, dtype, launch, precision
        self.state = torch.float64 if dtype == torch.float64 else torch.float32
        self.batch, self.time, self.hidden = case.states[0].shape
        edges = [0, *cuts, self.time]
        self.pieces = list(itertools.pairwise(edges))
        self.weight = self.on(case.weight, dtype)
        self.first = [self.on(x) for x in case.first]
        self.resets = [self.strided(x) for x in case.resets or [None] * len(self.first)]
        self.mask = None if case.mask is None else case.mask.to(device)

    def on(self, x, dtype=None):
        return None if x is None else x.to(self.device, dtype or self.state).contiguous()

    def strided(self, x):
        """With gaps between rows, as a view of several layers has them."""
        return None if x is None else self.on(torch.stack((x, x + 1), 2))[:, :, 0]

    def check(self, what, found, expected, *, sharp=1.0):
        tolerance = sharp * TOLERANCE[self.dtype]
        assert bool(found.isfinite().all()), f"{what} is not finite"
        torch.testing.assert_close(
            found.cpu().double(), expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
        )

    def forward(self, *, keep):
        case, slots = self.case, naive.SLOTS[self.case.cell]
        junk = [torch.full_like(self.on(x), 9.0) for x in case.states]
        for t0, t1 in self.pieces:
            gates = self.on(case.sums[:, t0:t1], self.dtype)
            how = {"keep": keep, "precision": self.precision, "launch": self.launch}
            if case.cell == "lstm":
                given = (gates, self.weight, *self.first, self.mask, *self.resets, *junk)
                _launch.lstm_forward(*given, (t0, t1), **how)
            else:
                if keep:
                    gates = torch.nn.functional.pad(gates, (0, self.hidden), value=9.0)
                given = (gates, self.weight, self.on(case.bias_n, self.dtype), *self.first, self.mask, *self.resets)
                _launch.gru_forward(*given, *junk, (t0, t1), **how)
            assert gates.shape[-1] == (4 if keep else slots) * self.hidden
            if keep:
                self.check("gates", gates, case.activated[:, t0:t1])
        for name, found, expected in zip("hc", junk, case.states, strict=False):
            self.check(name, found, expected)
            assert not bool((found == 9).any()), "rows were left out"

    def into(self, grad_slots, t0, t1, direct):
        """The gradient of the h before each of these steps, through the gates and beside them."""
        weight, rows = self.case.weight, grad_slots if self.case.cell == "lstm" else grad_slots[..., self.hidden :]
        return rows.cpu().double() @ weight + (0 if direct is None else direct.cpu().double())

    def backward(self, *, activated, in_place=False, wanted=True):
        case = self.case
        states, grads = [self.on(x) for x in case.states], [self.strided(x) for x in case.grads]
        carry = [self.on(x) for x in case.after]
        for t0, t1 in reversed(self.pieces):
            gates = self.on((case.activated if activated else case.raw)[:, t0:t1], self.dtype)
            grad_gates = gates if in_place else torch.full_like(gates, 7.0)
            shape = (self.batch, t1 - t0, 2, self.hidden)
            beside = torch.full(shape, 9.0, device=self.device, dtype=self.state)[:, :, 1] if wanted else None
            here = [None if x is None else x[:, t0:t1] for x in grads]
            how = {"activated": activated, "precision": self.precision, "launch": self.launch}
            if case.cell == "lstm":
                given = (gates, self.weight, self.first[1], self.mask, self.resets[1], states[1], *here, *carry)
                _launch.lstm_backward(*given, grad_gates, beside, (t0, t1), **how)
            else:
                given = (gates, self.weight, *self.first, self.mask, *self.resets, *states, *here, *carry)
                _launch.gru_backward(*given, grad_gates, beside, (t0, t1), **how)
            self.check("gradient of the gates", grad_gates, case.grad_slots[:, t0:t1])
            carry[0] = self.between(grad_gates, t0, t1, beside, carry)
        for name, found, expected in zip("hc", carry, case.grad_first, strict=False):
            self.check(f"gradient of {name}0", found, expected, sharp=3.0)

    def between(self, grad_slots, t0, t1, beside, carry):
        """Check the gradients of the resets in a piece of time; the gradient of the h before it."""
        case, of_h = self.case, self.into(grad_slots, t0, t1, None)
        cut = torch.zeros(self.batch, t1 - t0, dtype=torch.bool) if self.mask is None else case.mask[:, t0:t1]
        if beside is not None:
            zero = beside.cpu().double().masked_fill(cut[..., None], 0)
            assert not bool(zero.any()), "rows that go on have no gradient of a reset"
        if beside is not None and case.resets:
            of_c = beside.cpu().double()
            if case.cell == "gru":
                of_h = of_h + of_c
            else:
                self.check("gradient of reset c", beside, case.grad_resets[1][:, t0:t1], sharp=3.0)
            found = of_h.masked_fill(~cut[..., None], 0)
            self.check("gradient of reset h", found, case.grad_resets[0][:, t0:t1], sharp=3.0)
        before = self.into(grad_slots, t0, t1, None)[:, 0].masked_fill(cut[:, :1], 0)
        return self.on(before + (carry[0].cpu().double() if case.cell == "gru" else 0))


def _run(runner, *, keep=True, activated=True, in_place=False, wanted=True):
    runner.forward(keep=keep)
    runner.backward(activated=activated, in_place=in_place, wanted=wanted)


def _real(device):
    return torch.float64 if device.type == "cpu" else torch.float32


each_cell = pytest.mark.parametrize("cell", ["lstm", "gru"])
each_shape = pytest.mark.parametrize("shape", ["resident", "group"])
each_shape_and_streamed = pytest.mark.parametrize("shape", ["resident", "group", "streamed"])

# Sizes B, T, H; the mask; whether there are reset states; where time is cut; whether gates are kept by the forward
# pass, come activated to the backward pass, and are written over there.
CASES = [
    pytest.param((17, 3, 33, "random", True, (1,), True, True, False), id="random"),
    pytest.param((3, 2, 17, "every", True, (), True, False, True), id="every"),
    pytest.param((1, 1, 1, "first", True, (), False, True, True), id="first"),
    pytest.param((3, 4, 5, "last", False, (1, 2), False, False, False), id="last"),
    pytest.param((3, 3, 17, "never", True, (2,), True, True, False), id="never"),
    pytest.param((2, 3, 32, None, False, (2,), False, True, False), id="no-mask"),
]


@each_cell
@each_shape
@pytest.mark.parametrize("what", CASES)
def test_against_the_naive_loop(device, cell, shape, what):
    batch, time, hidden, mask, resets, cuts, keep, activated, in_place = what
    case = naive.make(cell, batch, time, hidden, mask=mask, resets=resets)
    runner = Runner(case, device, _real(device), launches(shape, hidden), cuts)
    _run(runner, keep=keep, activated=activated, in_place=in_place)


@each_cell
@each_shape_and_streamed
@pytest.mark.parametrize("mask", ["first", "last", "every", "random", "never", None])
@pytest.mark.parametrize(("batch", "time", "hidden"), [(19, 7, 5), (3, 2, 48), (1, 7, 17), (3, 1, 33)])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.slow
def test_all_masks_and_sizes(device, cell, shape, mask, batch, time, hidden, keep):
    case = naive.make(cell, batch, time, hidden, mask=mask, resets=keep)
    _run(Runner(case, device, _real(device), launches(shape, hidden)), keep=keep, activated=keep, in_place=not keep)


@each_cell
@each_shape_and_streamed
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_types(device, cell, shape, dtype):
    case = naive.make(cell, 5, 2, 17, like=dtype)
    _run(Runner(case, device, dtype, launches(shape, 17), (1,)))


@each_cell
@pytest.mark.parametrize("shape", ["resident"])
@pytest.mark.parametrize(("grad_h", "grad_c"), [(True, False), (False, True), (False, False)])
def test_gradients_that_are_not_there(device, cell, shape, grad_h, grad_c):
    case = naive.make(cell, 3, 3, 17, grad_h=grad_h, grad_c=grad_c, bias=False)
    _run(Runner(case, device, _real(device), launches(shape, 17)), wanted=False)


@each_cell
@each_shape_and_streamed
def test_gradients_of_any_strides_and_types(device, cell, shape):
    case = naive.make(cell, 3, 4, 5)
    case.grads = tuple(None if x is None else x[:1, :1].half().double().expand(3, 4, 5) for x in case.grads)
    naive.solve(case)
    runner = Runner(case, device, _real(device), launches(shape, 5))
    runner.strided = lambda x: None if x is None else x[:1, :1].to(device, torch.float16).expand(3, 4, 5)
    runner.backward(activated=True)


@each_cell
@pytest.mark.parametrize("shape", ["group"])
def test_a_large_sum_does_not_overflow(device, cell, shape):
    case = naive.make(cell, 3, 3, 5)
    case.sums *= 1e3
    naive.solve(case)
    _run(Runner(case, device, torch.float32, launches(shape, 5)))


@pytest.mark.parametrize("hidden", [1, 17, 70])
@pytest.mark.parametrize("mask", ["random", None])
@pytest.mark.parametrize("steps", [(0, 5), (2, 5), (3, 4)])
def test_states_before(device, hidden, mask, steps):
    case = naive.make("gru", 7, 5, hidden, mask=mask)
    runner = Runner(case, device, _real(device), None)
    out = torch.full((7, steps[1] - steps[0], hidden), 9.0, device=device, dtype=torch.float32)
    _launch.states_before(*runner.first, runner.on(case.states[0]), runner.mask, *runner.resets, out, steps)
    torch.testing.assert_close(out.cpu(), case.before[:, slice(*steps)].float())


@each_cell
@each_shape
def test_a_requested_shape_is_planned(device, cell, shape):
    _run(Runner(naive.make(cell, 3, 2, 17), device, _real(device), shape))


@each_cell
@pytest.mark.parametrize("hidden", [17, 33])
def test_the_plan_chooses(device, cell, hidden):
    _run(Runner(naive.make(cell, 3, 2, hidden), device, _real(device), None))
