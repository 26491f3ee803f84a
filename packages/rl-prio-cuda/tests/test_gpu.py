"""Tests that need a GPU: streams, graphs, several devices, copies, and many samples and updates."""

import pytest
import torch

from rl.prio_cuda import CudaPriorityTree

pytestmark = pytest.mark.gpu


def _tree(device, rows=10_000, dtype=torch.float32):
    tree = CudaPriorityTree(rows, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(0)
    priority = torch.rand(rows, generator=generator, dtype=dtype, device=device)
    tree.update(torch.arange(rows, device=device), priority)
    return tree


def test_many_samples_are_in_proportion(gpu):
    # A grid of 24 bits, as a float32 uniform has, fails this by tens of standard deviations.
    rows, draws = 10**7, 10**7
    for priority in (torch.ones(rows, device=gpu), torch.rand(rows, device=gpu) ** 8 * 1000):
        tree = CudaPriorityTree(rows, device=gpu)
        tree.update(torch.arange(rows, device=gpu), priority)
        share = priority.double() / priority.double().sum()
        cells = (share.cumsum(0) * 10**5).long().clamp_(max=10**5 - 1)  # of about equal mass
        expected = torch.zeros(10**5, dtype=torch.float64, device=gpu).index_add_(0, cells, share) * draws
        counts = torch.bincount(cells[tree.sample(draws)[0]], minlength=10**5)
        used = expected > 5
        statistic = ((counts[used] - expected[used]) ** 2 / expected[used]).sum().item()
        degrees = int(used.sum()) - 1
        assert abs(statistic - degrees) / (2 * degrees) ** 0.5 < 5
        tree.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_many_updates_do_not_drift(gpu, dtype):
    rows, batch = 10**6, 65_536
    tree, leaves = CudaPriorityTree(rows, dtype=dtype, device=gpu), torch.zeros(rows, dtype=dtype, device=gpu)
    rounds = -(-(10**8) // batch)
    for number in range(rounds):
        index = torch.randint(0, rows, (batch,), device=gpu)
        priority = (10 ** (12 * torch.rand(batch, device=gpu) - 6)).to(dtype)
        tree.update(index, priority)
        if number % 300 == 0 or number == rounds - 1:
            leaves = tree.get(torch.arange(rows, device=gpu))
            total = leaves.double().sum().item()
            assert tree.total().item() == pytest.approx(total, rel=1e-6)
            assert tree.total().item() == pytest.approx(total, rel=1e-12)
            assert tree.max().item() == leaves.max().item()
    tree.check()


def test_calls_are_ordered_on_the_current_stream(gpu):
    tree, stream = _tree(gpu), torch.cuda.Stream(gpu)
    rows = torch.arange(10_000, device=gpu)
    torch.cuda.synchronize(gpu)
    for value in range(1, 6):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # a reader that does not wait sees old values
            tree.update(rows, torch.full((10_000,), float(value), device=gpu))
            total = tree.total()
            index, priority = tree.sample(500)
        torch.cuda.current_stream(gpu).wait_stream(stream)
        assert total.item() == 10_000 * value
        assert (priority == value).all()
        assert torch.equal(tree.get(index), priority)


def test_two_streams_use_two_trees_at_once(gpu):
    trees = [_tree(gpu) for _ in range(2)]
    streams = [torch.cuda.Stream(gpu) for _ in trees]
    torch.cuda.synchronize(gpu)
    for number in range(200):
        for seed, (tree, stream) in enumerate(zip(trees, streams, strict=True)):
            with torch.cuda.stream(stream):
                generator = torch.Generator(gpu).manual_seed(2 * number + seed)
                index, _ = tree.sample_weighted(2048, 0.4, generator=generator)
                tree.update_from_errors(index, torch.randn(2048, generator=generator, device=gpu), 1e-6, 0.6)
    torch.cuda.synchronize(gpu)
    alone = _tree(gpu)
    for number in range(200):
        generator = torch.Generator(gpu).manual_seed(2 * number + 1)
        index, _ = alone.sample_weighted(2048, 0.4, generator=generator)
        alone.update_from_errors(index, torch.randn(2048, generator=generator, device=gpu), 1e-6, 0.6)
    assert torch.equal(alone.buffer, trees[1].buffer)


@pytest.mark.parametrize("batch", [256, 4096])
def test_a_step_can_be_captured_in_a_graph(gpu, batch):
    tree, plain = _tree(gpu), _tree(gpu)
    u, priority = torch.rand(batch, dtype=torch.float64, device=gpu), torch.rand(batch, device=gpu)

    def step(tree):
        index, weight = tree.sample_weighted(batch, 0.4, u=u)
        tree.update(index, priority)
        return index, weight

    side = torch.cuda.Stream(gpu)
    side.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(side):
        step(tree)  # warms up; for the plain tree too, so that both have taken as many steps
        step(plain)
    torch.cuda.current_stream(gpu).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        index, weight = step(tree)
    for _ in range(5):
        u.copy_(torch.rand_like(u))
        priority.copy_(torch.rand_like(priority))
        graph.replay()
        theirs, weights = step(plain)
        assert torch.equal(index, theirs)
        torch.testing.assert_close(weight, weights, rtol=1e-6, atol=0)
    tree.check()
    assert torch.equal(tree.buffer, plain.buffer)


def test_a_first_call_can_be_inside_of_a_capture(gpu):
    tree, graph = _tree(gpu), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        index, _ = tree.sample_weighted(100, 0.4)
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(index.clone())
    assert not torch.equal(*seen)  # the generator of the device goes on
    tree.check()


def test_two_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip(f"{torch.cuda.device_count()} CUDA devices; this takes two")
    first, second = (_tree(torch.device("cuda", i)) for i in range(2))
    with torch.cuda.device(0):
        for tree in (first, second):
            index, _ = tree.sample(1000)
            assert index.device == tree.device
            tree.update(index, torch.ones(1000, device=tree.device))
            tree.check()
    with pytest.raises(ValueError, match="cuda:0"):
        first.update(torch.tensor([1], device="cuda:1"), torch.ones(1, device="cuda:1"))


def _copies_to_the_host(function):
    """Names of what the profiler saw that moves bytes from the device, or waits for it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        function()
    moves = ("dtoh", "device -> pageable", "device -> pinned", "aten::item", "aten::_local_scalar_dense")
    return [event.key for event in seen.key_averages() if any(word in event.key.lower() for word in moves)]


def _buffer(gpu, rows=2000):
    replay = pytest.importorskip("rl.replay")
    from tensordict import TensorDict

    buffer = replay.TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=replay.LazyTensorStorage(rows, device=gpu), batch_size=256
    )
    buffer.extend(TensorDict(observation=torch.randn(rows, 8, device=gpu), batch_size=[rows], device=gpu))
    return buffer


def test_a_buffer_on_the_gpu_uses_this_tree(gpu):
    assert _buffer(gpu).sampler.backend.distribution == "rl-prio-cuda"


def test_a_buffer_copies_nothing_to_the_host_while_sampling(gpu):
    buffer = _buffer(gpu)
    for _ in range(3):
        buffer.sample()
    assert _copies_to_the_host(lambda: [buffer.sample() for _ in range(20)]) == []


def test_a_tree_copies_nothing_to_the_host(gpu):
    tree = _tree(gpu)

    def step():
        index, _ = tree.sample_weighted(256, 0.4)
        tree.update_from_errors(index, torch.randn(256, device=gpu), 1e-6, 0.6)

    step()
    assert _copies_to_the_host(step) == []
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_large_tree(gpu):
    rows = 10**8
    if torch.cuda.mem_get_info(gpu)[0] < 3 * 10**9:
        pytest.skip("less than 3 GB of the GPU's memory are free")
    tree = CudaPriorityTree(rows, device=gpu)
    index = torch.tensor([0, 12345, rows - 1], device=gpu)
    tree.update(index, torch.tensor([1.0, 2.0, 3.0], device=gpu))
    assert tree.total().item() == 6
    assert set(tree.sample(1000)[0].tolist()) == {0, 12345, rows - 1}
    tree.check()
