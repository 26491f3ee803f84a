"""The Triton twin against rl-native, byte for byte: in Triton's interpreter everywhere, compiled on a GPU.

Whether Triton interprets is decided when it is imported, so the interpreter gets a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the Triton twin needs triton")
NativePriorityTree = pytest.importorskip("rl.native").NativePriorityTree

from rl.core.errors import SpecError  # noqa: E402
from rl.prio_cuda import TritonPriorityTree  # noqa: E402
from rl.prio_cuda._layout import layout  # noqa: E402
from rl.prio_cuda._triton import interpreted  # noqa: E402

# The interpreter computes with numpy, which warns where a sum overflows.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = [torch.float32, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


# Where Triton is not wanted, the tree does without: seen here, as a process of its own for it would take seconds.
INTERPRET = """
import sys
import rl.prio_cuda._tree
assert "triton" not in sys.modules, "importing the tree imports Triton"
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.skipif(interpreted(), reason="this is the process that interprets")
@pytest.mark.parametrize("which", ["not gpu", pytest.param("slow and not gpu", marks=pytest.mark.slow)])
def test_in_the_interpreter(which):
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins load for seconds
    command = [sys.executable, "-c", INTERPRET, "-q", "-p", "no:cacheprovider", "-m", which, __file__]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.skipif(interpreted(), reason="the interpreter takes tensors of the CPU")
def test_compiled_it_refuses_the_cpu():
    with pytest.raises(SpecError, match="CUDA device, not on cpu"):
        TritonPriorityTree(10, device="cpu")


@pytest.fixture(params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def where(request):
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device: torch.cuda.is_available() is False")
        return torch.device("cuda", torch.cuda.current_device())
    if not interpreted():
        pytest.skip("TRITON_INTERPRET is not set; test_in_the_interpreter starts a process where it is")
    return torch.device("cpu")


def _rng(seed=0):
    return torch.Generator().manual_seed(seed)


def _updates(capacity, dtype, sizes):
    for seed, n in enumerate(sizes):
        index = torch.randint(0, capacity, (n,), generator=_rng(seed))
        priority = torch.rand(n, generator=_rng(seed), dtype=dtype) ** 6
        priority[torch.rand(n, generator=_rng(seed + 99)) < 0.3] = 0
        yield index, priority


SIZES = {1: [1, 3], 15: [2, 40], 17: [5, 9], 129: [1, 60, 300], 1025: [10, 700, 2000], 40_000: [2100, 5000]}
SIZES[210_000] = [8000]  # takes more than 2^20 bytes
WIDE = (17, 1025)  # of which float64 is no long variant; of the others float32


@pytest.mark.parametrize(
    ("capacity", "dtype"),
    [
        pytest.param(capacity, dtype, marks=[] if (capacity in WIDE) == (dtype == DTYPES[1]) else pytest.mark.slow)
        for dtype in DTYPES
        for capacity in SIZES
    ],
    ids=str,
)
def test_its_bytes_and_draws_are_those_of_rl_native(where, dtype, capacity):
    twin, native = TritonPriorityTree(capacity, dtype=dtype, device=where), NativePriorityTree(capacity, dtype=dtype)
    assert torch.equal(twin.buffer.cpu(), native.buffer)
    for index, priority in _updates(capacity, dtype, SIZES[capacity]):
        twin.update(index.to(where), priority.to(where))
        native.update(index, priority)
        assert torch.equal(twin.buffer.cpu(), native.buffer), f"after {len(index)} entries"
    native.update(torch.tensor([0]), torch.tensor(0.5, dtype=dtype))
    twin.update(torch.tensor([0], device=where), torch.tensor(0.5, dtype=dtype, device=where))
    draws = 1500 if capacity > 1000 else 1000  # the interpreter takes twice as long for more than 1024
    u = torch.rand(draws, generator=_rng(), dtype=torch.float64)
    drawn = twin.sample(draws, u=u.to(where), stratified=True)
    for mine, theirs in zip(drawn, native.sample(draws, u=u, stratified=True), strict=True):
        assert torch.equal(mine.cpu(), theirs)
    (index, mine), (expected, theirs) = (
        tree.sample_weighted(draws, 0.4, u=u.to(tree.device)) for tree in (twin, native)
    )
    assert torch.equal(index.cpu(), expected)
    torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)
    twin.check()


@each_dtype
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_priorities_from_errors(where, dtype, alpha):
    index = torch.randint(0, 300, (1500,), generator=_rng())
    error = torch.randn(1500, generator=_rng(1), dtype=dtype) * 10 ** torch.linspace(-8, 8, 1500, dtype=dtype)
    raw, largest = torch.zeros(300, dtype=dtype, device=where), torch.ones((), dtype=dtype, device=where)
    tree = TritonPriorityTree(300, dtype=dtype, device=where)
    tree.update_from_errors(index.to(where), error.to(where), 1e-6, alpha, raw=raw, largest=largest, rows=300)
    tree.check()
    last = torch.zeros(300, dtype=dtype)
    for i, e in zip(index.tolist(), error, strict=True):
        last[i] = e
    assert torch.equal(raw.cpu(), last)
    assert largest.item() == error.abs().max().item()
    seen = index.unique()
    expected = (last[seen].double().abs() + 1e-6) ** alpha
    rtol = 1e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(tree.get(seen.to(where)).cpu().double(), expected, rtol=rtol, atol=0)


@each_dtype
def test_zero_is_never_drawn_at_the_boundaries_of_cells(where, dtype):
    priority = torch.randint(0, 3, (340,), generator=_rng()).to(dtype)
    priority[[0, 1, 15, 16, 127, 128, -1, -2]] = 0
    tree = TritonPriorityTree(340, dtype=dtype, device=where)
    tree.update(torch.arange(340, device=where), priority.to(where))
    u = priority.double().cumsum(0)[:-1] / priority.double().sum()
    u = torch.cat([u, torch.nextafter(u, u * 0), torch.nextafter(u, u * 0 + 1), torch.tensor([1 - 2**-53])])
    index, drawn = tree.sample(int((u < 1).sum()), u=u[u < 1].to(where))
    assert (drawn > 0).all()
    assert torch.equal(drawn.cpu(), priority[index.cpu()])


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_a_bad_index_writes_nothing(where, bad):
    tree = TritonPriorityTree(50, device=where)
    tree.update(torch.arange(50, device=where), torch.ones((), device=where))
    before = tree.buffer.clone()
    tree.update(torch.tensor([3, bad, 3, bad], device=where), torch.full((4,), 9.0, device=where))
    tree.update(torch.tensor([3], device=where), torch.tensor([-1.0], device=where))
    assert torch.equal(tree.buffer, before)
    with pytest.raises(IndexError, match=f"index {bad}.*place 1"):
        tree.check()
    tree.check()
    tree.update(torch.tensor([3], device=where), torch.tensor([2.0], device=where))
    assert tree.total().item() == 51


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_bad_error_writes_nothing(where, bad):
    tree = TritonPriorityTree(50, device=where)
    before, raw = tree.buffer.clone(), torch.zeros(50, device=where)
    largest = torch.ones((), device=where)
    error = torch.full((50,), 5.0, device=where)
    error[28] = bad
    tree.update_from_errors(torch.arange(50, device=where), error, 1.0, 2.0, raw=raw, largest=largest)
    with pytest.raises(ValueError, match="place 28"):
        tree.check()
    assert torch.equal(tree.buffer, before)
    assert not raw.any()
    assert largest.item() == 1


def test_draws_that_cannot_be(where):
    tree = TritonPriorityTree(50, dtype=torch.float64, device=where)
    assert tree.sample_weighted(3, 0.4)[1].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="zero"):
        tree.check()
    tree.update(torch.arange(50, device=where), torch.full((50,), 1e308, dtype=torch.float64, device=where))
    tree.sample(1)
    with pytest.raises(ValueError, match="infinite"):
        tree.check()
    tree.update(torch.arange(50, device=where), torch.ones(50, dtype=torch.float64, device=where))
    tree.sample(3, u=torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=where))
    with pytest.raises(ValueError, match="place 1"):
        tree.check()
    assert tree.get(torch.tensor([1, 99], device=where)).tolist() == [1, 0]
    with pytest.raises(IndexError, match="99"):
        tree.check()


@each_dtype
def test_rebuild(where, dtype):
    native = NativePriorityTree(1000, dtype=dtype)
    native.update(torch.arange(1000), torch.rand(1000, generator=_rng(), dtype=dtype))
    tree = TritonPriorityTree(1000, dtype=dtype, device=where)
    tree.load_state_dict(native.state_dict())
    tree.check()
    native.rebuild()
    assert torch.equal(tree.buffer.cpu(), native.buffer)
    tree._leaves[5] = -1
    tree.rebuild()
    with pytest.raises(ValueError, match="place 5"):
        tree.check()
    assert tree.total().item() == native.total().item()


def test_twice_a_batch_may_not_fit_into_32_bits(where):
    tree = TritonPriorityTree(1000, device=where)
    tree._leaves.fill_(1)
    plan = layout(1000, 32)
    tree._run._climb(tree.buffer, tree._work, plan, tree.buffer.view(torch.int64), tree._leaves, 2**30 + 1, 1)
    other = NativePriorityTree(1000)
    other.update(torch.arange(1000), torch.ones(1000))
    other.rebuild()
    assert torch.equal(tree.buffer.cpu(), other.buffer)


@pytest.fixture
def of_the_benchmark(monkeypatch):
    """Its own kernels."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import prio_kernels

    return prio_kernels


def test_the_benchmark_walks_along_a_ring(where, of_the_benchmark):
    order = torch.randperm(50, generator=_rng())
    ring = torch.zeros(50 * of_the_benchmark.LINE, dtype=torch.int64)
    ring[order * of_the_benchmark.LINE] = order.roll(-1) * of_the_benchmark.LINE
    at = ring[:1].clone().to(where)
    start, expected = at.item(), at.item()
    of_the_benchmark.follow(ring.to(where), at, 7)
    for _ in range(7):
        expected = ring[expected].item()
    assert at.item() == expected
    of_the_benchmark.follow(ring.to(where), at, 43)
    assert at.item() == start


@pytest.mark.parametrize("rows", [100, 2000])
def test_the_benchmark_draws_by_warps_what_the_tree_draws(where, of_the_benchmark, rows):
    tree, plan = TritonPriorityTree(rows, device=where), layout(rows, 32)
    tree.update(torch.arange(rows, device=where), torch.rand(rows, generator=_rng()).to(where) + 0.1)
    u = torch.rand(9, generator=_rng(1), dtype=torch.float64).to(where)  # a program for each
    drawn = of_the_benchmark.draw_by_warps(tree.buffer, torch.tensor(plan.at, device=where), plan.leaves, u)
    assert torch.equal(drawn, tree.sample(9, u=u)[0])
