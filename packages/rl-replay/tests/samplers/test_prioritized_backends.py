"""The prioritized sampler and what its tree may do: nothing is read, states change trees, graphs hold the draw."""

import pytest
import torch

from rl.core import registry
from rl.core.errors import ArgumentError, BackendError
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.plugins import replay as plugin
from rl.replay import PrioritizedSampler, TensorStorage


def _has_native():
    try:
        PrioritizedSampler(1, 0.6, 0.4, backend="native")
    except BackendError:
        return False
    return True


needs_native = pytest.mark.skipif(not _has_native(), reason="rl-native does not answer")


class Far:
    """A tree on a device without values: to read one raises."""

    name, why, dtype, device = "far", "for tests", torch.float32, torch.device("meta")

    def __init__(self, capacity):
        self.capacity, self.calls, self.refused = capacity, [], None

    def update_from_errors(self, index, error, eps, alpha, *, raw=None, largest=None, rows=None):
        assert all(x.device == self.device and x.dtype == self.dtype for x in (error, raw))
        assert index.device == self.device
        self.calls.append((len(index), alpha, largest is not None, rows))

    def sample_weighted(self, n, beta, *, generator=None, stratified=False):
        self.calls.append((n, beta))
        return torch.empty(n, dtype=torch.int64, device="meta"), torch.empty(n, device="meta")

    def update(self, index, priority):
        self.calls.append((len(index),))

    def get(self, index):
        return torch.empty(len(index), device="meta")

    def read(self, *_, **__):
        raise AssertionError("the sampler does not need this with the optional methods")

    sample = total = min = max = read

    def check(self):
        if self.refused is not None:
            raise self.refused


@pytest.fixture
def far(monkeypatch):
    class Trees:
        @hookimpl
        def rl_priority_tree(self, capacity, device, dtype):
            return Far(capacity) if device.type == "meta" else None

    own = Registry()
    own.register(plugin, "replay", "rl-replay")
    own.register(Trees(), "trees", "acme")
    monkeypatch.setattr(registry, "default", lambda: own)
    return lambda **arguments: PrioritizedSampler(10, 0.6, 0.4, backend="far", device="meta", **arguments)


def rows(n):
    return TensorStorage(torch.arange(n))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_values_of_this_device_cannot_be_read():
    with pytest.raises(RuntimeError):
        torch.ones(3, device="meta").max().item()


@pytest.mark.parametrize("within", [False, True])
def test_with_all_optional_methods_no_value_is_read_on_the_host(far, within):
    sampler = far(max_priority_within_buffer=within)
    sampler.extended(torch.arange(4), None)
    index, info = sampler.sample(rows(4), 3)
    sampler.update_priority(index, info["priority_weight"])
    sampler.update_priority(index, torch.empty(3, 2, device="meta"))
    sampler.update_priority(index.int(), torch.empty(3, dtype=torch.float64, device="meta").requires_grad_())
    sampler.extended(torch.tensor([4, 5]), None)
    sampler.sample(rows(8), 2)  # two rows that it was not told of
    sampler.extended(torch.tensor([8, 9, 0]), None)
    sampler.update_priority([1, 2], [3.0, 4.0])
    assert sampler._tree.calls == [
        (4, 0.6, False, 4),
        (3, 0.4),
        (3, 0.6, True, 4),
        (3, 0.6, True, 4),
        (3, 0.6, True, 4),
        (2, 0.6, False, 6),
        (2, 0.6, False, 8),
        (2, 0.4),
        (3, 0.6, False, 10),
        (2, 0.6, True, 10),
    ]


def test_what_the_device_refused_is_raised_by_check(far):
    sampler = far()
    sampler.extended(torch.arange(4), None)
    sampler.check()
    sampler._tree.refused = ArgumentError("a priority of nan")
    for call in (sampler.check, sampler.state_dict, lambda: setattr(sampler, "alpha", 0.9)):
        with pytest.raises(ArgumentError, match="nan"):
            call()
    assert sampler.alpha == 0.6
    PrioritizedSampler(4, 0.6, 0.4, backend="torch").check()


@needs_native
@pytest.mark.parametrize("within", [False, True])
def test_a_state_goes_from_one_tree_to_another_and_back(within):
    arguments = {"max_priority_within_buffer": within}
    first = PrioritizedSampler(100, 0.6, 0.4, backend="native", **arguments)
    first.extended(torch.arange(70), None)
    first.update_priority(torch.randint(0, 70, (200,), generator=rng()), torch.randn(200, generator=rng()) * 100)
    state = first.state_dict()
    for backend in ("torch", "native"):
        other = PrioritizedSampler(100, 0.9, 0.1, backend=backend, **arguments)
        other.extended(torch.arange(90), None)
        other.load_state_dict(state)
        state = other.state_dict()
    every = torch.arange(100)
    assert torch.equal(first._tree.get(every), other._tree.get(every))
    one, two = (sampler.sample(rows(70), 500, generator=rng(3)) for sampler in (first, other))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1]["priority_weight"], two[1]["priority_weight"])
    for sampler in (first, other):
        sampler.extended(torch.tensor([70]), None)
        sampler.alpha = 0.3
    assert torch.equal(first._tree.get(every), other._tree.get(every))


@needs_native
def test_weights_do_not_depend_on_the_tree_beyond_rounding():
    raw = torch.randn(500, generator=rng()) * 10
    found = []
    for backend in ("native", "torch"):
        sampler = PrioritizedSampler(500, 0.6, 0.4, backend=backend)
        sampler.extended(torch.arange(500), None)
        sampler.update_priority(torch.arange(500), raw)
        index, info = sampler.sample(rows(500), 5000, generator=rng(1))
        found.append(dict(zip(index.tolist(), info["priority_weight"].tolist(), strict=True)))
    both = found[0].keys() & found[1].keys()
    assert len(both) > 300
    assert [found[0][i] for i in both] == pytest.approx([found[1][i] for i in both], rel=1e-5)


def _compiled(sampler, generator, **options):
    storage = rows(50)

    def step(x):
        index, info = sampler.sample(storage, 8, generator=generator)
        return index, info["priority_weight"], x[index]

    torch._dynamo.reset()
    return torch.compile(step, backend="aot_eager", **options)


def _filled(backend, **arguments):
    sampler = PrioritizedSampler(100, 0.6, 0.4, backend=backend, compilable=True, **arguments)
    sampler.extended(torch.arange(50), None)
    sampler.update_priority(torch.arange(50), torch.rand(50, generator=rng()))
    return sampler


@needs_native
def test_with_the_native_tree_a_compiled_draw_is_one_graph():
    sampler = _filled("native")
    step = _compiled(sampler, None, fullgraph=True)
    torch.manual_seed(1)
    first = step(torch.arange(50))
    again = step(torch.arange(50))
    torch.manual_seed(1)
    same = step(torch.arange(50))
    assert torch.equal(first[0], first[2])
    assert torch.equal(first[0], same[0])
    assert not torch.equal(first[0], again[0])
    priority = sampler._tree.get(torch.arange(50))
    assert torch.allclose(first[1], (priority[first[0]] / priority.min()) ** -0.4)
    sampler.update_priority(7, 1e12)
    assert step(torch.arange(50))[0].tolist() == [7] * 8


@needs_native
def test_a_compiled_draw_with_a_generator():
    sampler = _filled("native")
    generator = rng(4)
    step = _compiled(sampler, generator)
    first, second = step(torch.arange(50))[0], step(torch.arange(50))[0]
    generator.manual_seed(4)
    assert torch.equal(step(torch.arange(50))[0], first)
    assert torch.equal(step(torch.arange(50))[0], second)
    with pytest.raises(torch._dynamo.exc.Unsupported):  # a graph cannot hold a generator
        _compiled(sampler, generator, fullgraph=True)(torch.arange(50))


@needs_native
def test_a_compiled_update_is_one_graph():
    sampler, plain = _filled("native"), _filled("native")
    torch._dynamo.reset()
    step = torch.compile(sampler.update_priority, backend="aot_eager", fullgraph=True)
    index, error = torch.tensor([3, 4, 3]), torch.tensor([5.0, -60.0, 7.0])
    step(index, error)
    plain.update_priority(index, error)
    for name, value in sampler.state_dict().items():
        other = plain.state_dict()[name]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


def test_with_the_torch_tree_a_compiled_draw_is_one_break():
    sampler = _filled("torch")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        _compiled(sampler, None, fullgraph=True)(torch.arange(50))
    for generator in (None, rng(4)):
        index, _, same = _compiled(sampler, generator)(torch.arange(50))
        assert torch.equal(index, same)
