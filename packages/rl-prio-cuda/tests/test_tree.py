"""The tree against a plain array, closed forms, and the pitfalls of priority trees; on the host and on a GPU."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl.prio_cuda import CudaPriorityTree
from rl.testing import check_priority_tree

DTYPES = [torch.float32, torch.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
CAPACITIES = [1, 15, 16, 17, 127, 128, 129, 1000, 1024, 1025]


def _tree(make, priority):
    tree = make(len(priority), priority.dtype)
    tree.update(torch.arange(len(priority), device=tree.device), priority.to(tree.device))
    return tree


def _last(index, value, array):
    """What an array holds after it was written entry by entry."""
    written = array.tolist()
    for i, x in zip(index.tolist(), value.tolist(), strict=True):
        written[i] = x
    return torch.tensor(written, dtype=array.dtype)


def _rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["forward", "backward", "shuffled"])
def order(request, device):
    """The order of threads, where the host chooses it; a GPU has its own."""
    if device.type == "cpu":
        request.getfixturevalue("on_host").rl_prio_host_order(
            ["forward", "backward", "shuffled"].index(request.param), 3
        )
    elif request.param != "forward":
        pytest.skip("a GPU has its own order of threads")


@pytest.fixture(params=[-1, 0], ids=["one-launch", "many-launches"])
def launches(request, device):
    """Small updates in one launch, or in several as large ones are."""
    # the library is told how many launches a small update takes
    from rl.prio_cuda._library import platform_of

    library = platform_of(device).functions()
    library.rl_prio_single(request.param)
    yield
    library.rl_prio_single(-1)


def test_it_conforms_to_the_protocol(make, order, launches):
    check_priority_tree(make)


_priority = st.one_of(st.just(0.0), st.floats(2.0**-100, 2.0**100, width=32), st.floats(0, 2, width=32))
_batch = st.lists(st.tuples(st.integers(0, 10**9), _priority), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CAPACITIES), st.sampled_from(DTYPES), st.lists(_batch, max_size=6))
def test_any_sequence_of_updates_equals_a_plain_array(make, launches, capacity, dtype, batches):
    tree, array = make(capacity, dtype), [0.0] * capacity
    everything = torch.arange(capacity, device=tree.device)
    for batch in batches:
        index = [i % capacity for i, _ in batch]
        given_ = torch.tensor(index, dtype=torch.int64), torch.tensor([p for _, p in batch], dtype=dtype)
        tree.update(*(each.to(tree.device) for each in given_))
        for i, (_, p) in zip(index, batch, strict=True):
            array[i] = p
        tree.check()
        assert tree.get(everything).tolist() == array
        assert tree.total().item() == pytest.approx(math.fsum(array), rel=1e-13)
        positive = [p for p in array if p > 0]
        assert tree.max().item() == max(array)
        assert tree.min().item() == min(positive, default=float("inf"))
        if positive:
            u = torch.tensor([0, 0.25, 0.5, 1 - 2**-53], dtype=torch.float64, device=tree.device)
            index, drawn = tree.sample(4, u=u)
            assert all(array[i] > 0 for i in index.tolist())
            assert drawn.tolist() == [array[i] for i in index.tolist()]


@each_dtype
@pytest.mark.parametrize("n", [1, 100, 1024, 1025, 20_000])
@pytest.mark.parametrize("capacity", [1, 50, 4096, 30_000])
def test_the_last_value_of_a_repeated_index_wins(make, order, dtype, n, capacity):
    index = torch.randint(0, capacity, (n,), generator=_rng())
    error = torch.randn(n, generator=_rng(1), dtype=dtype)
    last = _last(index, error.abs(), torch.zeros(capacity, dtype=dtype))
    plain, fused = make(capacity, dtype), make(capacity, dtype)
    plain.update(index.to(plain.device), error.abs().to(plain.device))
    fused.update_from_errors(index.to(plain.device), error.to(plain.device), 0.0, 1.0)
    for tree in (plain, fused):
        tree.check()
        assert torch.equal(tree.get(torch.arange(capacity, device=tree.device)).cpu(), last)
        assert tree.total().item() == pytest.approx(last.double().sum().item(), rel=1e-13)
    assert torch.equal(plain.buffer, fused.buffer)


@each_dtype
def test_samples_from_given_u_follow_the_inverse_distribution(make, dtype):
    priority = torch.rand(3000, generator=_rng(), dtype=dtype)
    u = torch.rand(20000, generator=_rng(1), dtype=torch.float64)
    ends = priority.double().cumsum(0)
    tree = _tree(make, priority)
    index, drawn = (each.cpu() for each in tree.sample(len(u), u=u.to(tree.device)))
    assert torch.equal(drawn, priority[index])
    mass = u * ends[-1]
    slack = 1e-12 * ends[-1]
    assert (mass <= ends[index] + slack).all()
    assert (mass >= ends[index] - priority[index] - slack).all()


def test_zero_is_never_sampled_at_the_boundaries_of_leaves(make):
    priority = torch.randint(0, 3, (4096,), generator=_rng()).double()  # sums of integers are exact
    priority[[0, 1, 2, 15, 16, 127, 128, -1, -2, -17]] = 0
    tree = _tree(make, priority)
    u = priority.cumsum(0)[:-1] / priority.sum()
    u = torch.cat([u, torch.nextafter(u, u * 0), torch.nextafter(u, u * 0 + 1), torch.tensor([1 - 2**-53])])
    u = u[u < 1]
    for stratified in (False, True):
        index, drawn = tree.sample(len(u), u=u.to(tree.device), stratified=stratified)
        assert (drawn > 0).all()
        assert torch.equal(drawn.cpu(), priority[index.cpu()])


@pytest.mark.parametrize(
    ("rows", "draws"), [(1000, 10**6), (10**5, 10**6), pytest.param(10**6, 10**7, marks=pytest.mark.slow)]
)
def test_equal_priorities_are_sampled_uniformly(make, rows, draws):
    tree = _tree(make, torch.ones(rows))
    generator = torch.Generator(tree.device).manual_seed(5)
    counts = torch.bincount(tree.sample(draws, generator=generator)[0], minlength=rows).double()
    statistic = ((counts - draws / rows) ** 2 * rows / draws).sum().item()
    assert abs(statistic - (rows - 1)) / (2 * (rows - 1)) ** 0.5 < 5


def test_stratified_samples_take_one_of_each_part(make):
    tree = _tree(make, torch.ones(1000))
    assert tree.sample(1000, stratified=True)[0].tolist() == list(range(1000))


@each_dtype
def test_sums_do_not_drift_over_twelve_decades(make, dtype):
    generator, rows = _rng(), 1000
    tree = make(rows, dtype)
    for _ in range(50):
        index = torch.randint(0, rows, (10_000,), generator=generator)
        priority = (10 ** (12 * torch.rand(10_000, generator=generator) - 6)).to(dtype)
        tree.update(index.to(tree.device), priority.to(tree.device))
    tree.update(torch.arange(rows, device=tree.device), torch.tensor(1e-6, dtype=dtype, device=tree.device))
    assert tree.total().item() == pytest.approx(rows * torch.tensor(1e-6, dtype=dtype).item(), rel=1e-15)


@pytest.mark.slow
def test_a_hundred_million_updates_do_not_drift(make):
    generator, rows, batch = _rng(), 10**5, 2**18
    tree = make(rows)
    everything = torch.arange(rows, device=tree.device)
    for number in range(-(-(10**8) // batch)):
        index = torch.randint(0, rows, (batch,), generator=generator).to(tree.device)
        tree.update(index, (10 ** (12 * torch.rand(batch, generator=generator) - 6)).to(tree.device))
        if number % 60 == 0:
            array = tree.get(everything).double()
            assert tree.total().item() == pytest.approx(array.sum().item(), rel=1e-12)
    tree.update(everything, torch.tensor(1e-6, device=tree.device))
    tree.check()
    assert tree.total().item() == pytest.approx(rows * torch.tensor(1e-6).item(), rel=1e-14)


@pytest.mark.parametrize("capacity", [2**k for k in (0, 4, 7, 10, 13)])
def test_a_capacity_that_is_a_power_of_two_uses_its_last_leaf(make, capacity):
    tree = make(capacity)
    tree.update(torch.tensor([capacity - 1], device=tree.device), torch.tensor([2.0], device=tree.device))
    assert tree.sample(5)[0].tolist() == [capacity - 1] * 5
    tree.update(torch.tensor([capacity], device=tree.device), torch.tensor([2.0], device=tree.device))
    with pytest.raises(IndexError):
        tree.check()


def test_the_minimum_ignores_empty_and_zero_leaves(make):
    tree = make(1000)

    def put(index, priority):
        tree.update(torch.tensor(index, device=tree.device), torch.tensor(priority, device=tree.device))
        return tree.min().item()

    assert put([3, 900], [5.0, 7.0]) == 5
    assert put([3], [0.0]) == 7
    assert put([900], [0.0]) == float("inf")


@each_dtype
@pytest.mark.parametrize("alpha", [0, 0.3, 0.6, 1, 2.5])
def test_priorities_from_errors(make, launches, dtype, alpha):
    error = torch.randn(900, generator=_rng(), dtype=dtype) * 10 ** torch.linspace(-8, 8, 900, dtype=dtype)
    error[5] = 0
    for eps in (1e-8, 0.0, 0.5):
        tree = make(900, dtype)
        rows = torch.arange(900, device=tree.device)
        tree.update_from_errors(rows, error.to(tree.device), eps, alpha)
        tree.check()
        expected = (error.double().abs() + eps) ** alpha
        narrow = dtype == torch.float32
        torch.testing.assert_close(tree.get(rows).cpu().double(), expected, rtol=1e-6 if narrow else 1e-12, atol=1e-38)


@each_dtype
@pytest.mark.parametrize("n", [0, 700, 5000])
def test_raw_errors_and_the_largest_are_written(make, order, dtype, n):
    tree = make(3000, dtype)
    index = torch.randint(0, 2000, (n,), generator=_rng())
    error = torch.randn(n, generator=_rng(1), dtype=dtype)
    raw, largest = torch.full((3000,), 7.0, dtype=dtype), torch.tensor(0.5, dtype=dtype)
    expected, most = _last(index, error, raw), max([0.5, *error.abs().tolist()])
    raw, largest = raw.to(tree.device), largest.to(tree.device)
    tree.update_from_errors(
        index.to(tree.device), error.to(tree.device), 1e-6, 0.6, raw=raw, largest=largest, rows=2000
    )
    tree.check()
    assert torch.equal(raw.cpu(), expected)
    assert largest.item() == most


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@each_dtype
def test_weights_are_those_of_schaul(make, dtype, beta):
    priority = torch.rand(500, generator=_rng(), dtype=dtype) + 1e-3
    priority[::7] = 0
    tree = _tree(make, priority)
    u = torch.rand(2000, generator=_rng(2), dtype=torch.float64).to(tree.device)
    index, weight = tree.sample_weighted(2000, beta, u=u)
    assert torch.equal(index, tree.sample(2000, u=u)[0])
    index = index.cpu()
    probability = priority.double() / priority.double().sum()
    each = (1 / (500 * probability[priority > 0])) ** beta
    expected = (1 / (500 * probability[index])) ** beta / each.max()
    narrow = dtype == torch.float32
    torch.testing.assert_close(weight.cpu().double(), expected, rtol=1e-6 if narrow else 1e-12, atol=0)
    assert weight.dtype == dtype


def test_a_generator_of_the_cpu_serves_every_device(make):
    tree = _tree(make, torch.rand(1000, generator=_rng()))
    first, second = (tree.sample(50, generator=_rng(3))[0] for _ in range(2))
    assert torch.equal(first, second)


def test_empty_samples_and_updates(make):
    tree = _tree(make, torch.ones(10))
    nothing = torch.empty(0, device=tree.device)
    tree.update(nothing.long(), nothing)
    tree.update_from_errors(nothing.long(), nothing, 0.1, 0.6)
    assert tree.sample(0)[0].shape == (0,)
    assert tree.get(nothing.long()).shape == (0,)
    tree.check()
    assert tree.total().item() == 10


def test_non_contiguous_and_converted_arguments(make):
    tree = make(10)
    index = torch.arange(20, device=tree.device)[::2][:5]
    tree.update(index, torch.arange(10, dtype=torch.float64, device=tree.device)[::2])
    assert tree.get(torch.arange(10, device=tree.device)).tolist() == [0, 0, 2, 0, 4, 0, 6, 0, 8, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("capacity", [1, 17, 5000, 100_000, 200_000, 210_000])  # 2^20 bytes lie between these
def test_the_bytes_are_those_of_rl_native(make, launches, dtype, capacity):
    native = pytest.importorskip("rl.native").NativePriorityTree
    one, other = make(capacity, dtype), native(capacity, dtype=dtype)
    assert torch.equal(one.buffer.cpu(), other.buffer)
    for seed, n in enumerate([1, 7, 300, 1024, 3000, 8000, 20_000]):
        index = torch.randint(0, capacity, (n,), generator=_rng(seed))
        priority = torch.rand(n, generator=_rng(seed), dtype=dtype) ** 6
        priority[torch.rand(n, generator=_rng(seed + 99)) < 0.3] = 0
        one.update(index.to(one.device), priority.to(one.device))
        other.update(index, priority)
        assert torch.equal(one.buffer.cpu(), other.buffer), f"after {n} entries"
    u = torch.rand(5000, generator=_rng(), dtype=torch.float64)
    if other.total() > 0:
        for stratified in (False, True):
            drawn = one.sample(5000, u=u.to(one.device), stratified=stratified)
            for mine, theirs in zip(drawn, other.sample(5000, u=u, stratified=stratified), strict=True):
                assert torch.equal(mine.cpu(), theirs)
    back = native.from_buffer(CudaPriorityTree.from_buffer(one.buffer).buffer.cpu().clone())
    assert torch.equal(back.get(torch.arange(capacity)), other.get(torch.arange(capacity)))
