"""The recurrence in C against a loop in float64 over plain numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core.errors import ArgumentError, ShapeError
from rl.core.registry import Registry
from rl.native import NativeRecurrence

# each instruction set of this processor is tested; the package chooses the widest
from rl.native._library import ISAS, use_isa
from rl.plugins import native
from rl.testing import check_linear_recurrence

recurrence = NativeRecurrence()


@pytest.fixture(params=ISAS)
def isa(request):
    if use_isa(request.param) != request.param:
        use_isa(None)
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    use_isa(None)


def naive(d, c, dim):
    d, c = d.double().movedim(dim, 0), c.double().movedim(dim, 0)
    following, rows = torch.zeros_like(d[0]), []
    for t in range(len(d) - 1, -1, -1):
        following = d[t] + (c[t] * following if t < len(d) - 1 else 0)
        rows.append(following)
    return torch.stack(rows[::-1]).movedim(0, dim)


def tolerance(dtype):
    return {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_it_conforms_to_the_protocol(isa, dtype, bound):
    check_linear_recurrence(recurrence, dtype=dtype, tolerance=bound)


@settings(max_examples=150, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    steps=st.sampled_from([1, 2, 3, 127, 128, 129, 300]),
    data=st.data(),
    double=st.booleans(),
)
def test_any_shape_and_memory(shape, steps, data, double):
    dim = data.draw(st.integers(0, len(shape) - 1))
    shape[dim] = steps
    order = data.draw(st.permutations(range(len(shape))))
    skip = data.draw(st.sampled_from([1, 2]))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    dtype = torch.float64 if double else torch.float32

    def make():
        wide = torch.rand([shape[i] * skip for i in order], generator=g, dtype=dtype)
        back = sorted(range(len(order)), key=lambda i: order[i])
        return wide.permute(back)[tuple(slice(None, None, skip) for _ in shape)]

    d, c = make(), make()
    torch.testing.assert_close(recurrence(d, c, dim).double(), naive(d, c, dim), **tolerance(dtype))
    out = make()
    assert recurrence(d, c, dim, out=out) is out
    torch.testing.assert_close(out.double(), naive(d, c, dim), **tolerance(dtype))


@pytest.mark.parametrize("shape", [(513, 3), (3, 700), (9, 130, 5), (1, 1000, 1), (2, 40, 600)], ids=str)
def test_every_instruction_set_gives_the_same_numbers(shape):
    d, c = torch.randn(shape), torch.rand(shape)
    found = []
    for name in ISAS:
        use_isa(name)
        found += [recurrence(d, c, dim) for dim in (0, 1)]
    use_isa(None)
    for other in range(2, len(found)):
        assert torch.equal(found[other], found[other % 2])


@pytest.mark.parametrize("steps", [1, 2, 5, 140], ids="T={}".format)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_it_is_differentiable_twice(steps, dim):
    shape = [2, 1, 2]
    shape[dim] = min(steps, 6)
    g = torch.Generator().manual_seed(0)
    d, c = (torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda d, c: recurrence(d, c, dim), (d, c))
    assert torch.autograd.gradgradcheck(lambda d, c: recurrence(d, c, dim), (d, c))


def test_a_long_gradient_equals_the_one_of_a_loop():
    d, c = torch.randn(3, 300, 2), torch.rand(3, 300, 2)
    ours = [x.clone().requires_grad_() for x in (d, c)]
    theirs = [x.clone().requires_grad_() for x in (d, c)]
    recurrence(*ours, 1).square().sum().backward()
    naive(*theirs, 1).square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_the_operator_is_well_defined():
    d, c = (torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for forward in (False, True):
        torch.library.opcheck(torch.ops.rl_native.linear_recurrence.default, (d, c, 1, forward))


def test_it_compiles_whole():
    d, c = torch.randn(4, 9, 1, requires_grad=True), torch.rand(4, 9, 1)
    compiled = torch.compile(lambda d, c: recurrence(d, c, 1) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(d, c), recurrence(d, c, 1) * 2)
    compiled(d, c).sum().backward()
    assert d.grad is not None


def test_it_runs_under_vmap():
    d, c = torch.randn(3, 5, 2), torch.rand(3, 5, 2)
    found = torch.func.vmap(lambda d, c: recurrence(d, c, 0))(d, c)
    torch.testing.assert_close(found, recurrence(d, c, 1))


@pytest.mark.parametrize("shape", [(0, 5, 1), (2, 0, 1), (2, 5, 0)], ids=str)
def test_empty_inputs_give_empty_outputs(shape):
    assert recurrence(torch.zeros(shape), torch.zeros(shape), 1).shape == shape
    d = torch.zeros(shape, requires_grad=True)
    recurrence(d, torch.zeros(shape), 1).sum().backward()
    assert d.grad.shape == shape


def test_the_last_weight_is_never_read():
    c = torch.tensor([0.5, torch.nan])
    assert recurrence(torch.ones(2), c, 0).tolist() == [1.5, 1.0]


def test_the_negative_bit_is_resolved():
    d = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    assert d.is_neg()
    assert recurrence(d, torch.zeros(3), 0).tolist() == [-1.0, -1.0, -1.0]


def test_invalid_arguments_raise():
    d = torch.ones(2, 3, 1)
    with pytest.raises(ShapeError, match="expected one shape"):
        recurrence(d, d[0], 1)
    with pytest.raises(ShapeError, match="time_dim is 3"):
        recurrence(d, d, 3)
    with pytest.raises(ArgumentError, match="takes float32 or float64"):
        recurrence(d.half(), d.half(), 1)
    with pytest.raises(ArgumentError, match="takes float32 or float64"):
        recurrence(d, d.double(), 1)


def test_an_out_that_cannot_be_written_is_refused():
    d, c = torch.ones(2, 3, 1), torch.ones(2, 3, 1)
    with pytest.raises(ShapeError, match=r"out has shape \(2, 3\)"):
        recurrence(d, c, 1, out=torch.empty(2, 3))
    with pytest.raises(ArgumentError, match=r"out is torch\.float64"):
        recurrence(d, c, 1, out=torch.empty(2, 3, 1, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="overlaps an input"):
        recurrence(d, c, 1, out=c)
    with pytest.raises(ArgumentError, match="share memory"):
        recurrence(d, c, 1, out=torch.empty(2, 1, 1).expand(2, 3, 1))
    with pytest.raises(ArgumentError, match="gradient"):
        recurrence(d.requires_grad_(), c, 1, out=torch.empty(2, 3, 1))
    assert torch.equal(c, torch.ones(2, 3, 1))


def test_the_hook_is_for_the_cpu_and_two_dtypes():
    registry = Registry()
    registry.register(native, "native")
    found = registry.answer("rl_linear_recurrence", device=torch.device("cpu"), dtype=torch.float32)
    assert isinstance(found.value, NativeRecurrence)
    assert "instructions" in found.value.why
    for device, dtype in (("meta", torch.float32), ("cpu", torch.float16)):
        assert registry.answer("rl_linear_recurrence", device=torch.device(device), dtype=dtype) is None


def _plain(d, c, dim):
    """The recurrence in operators that every transform knows."""
    rows, following = [], torch.zeros_like(d.select(dim, 0))
    for t in range(d.shape[dim] - 1, -1, -1):
        following = d.select(dim, t) + c.select(dim, t) * following
        rows.append(following)
    return torch.stack(rows[::-1], dim)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_transforms_of_torch_func_see_its_derivatives(dim):
    d, c, w = torch.randn(3, 2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def of(run):
        def loss(d, c):
            return (w * run(d, c, dim) ** 2).sum()

        both, func = (0, 1), torch.func
        many = d.expand(2, *d.shape) * torch.tensor([1.0, 2.0]).view(2, 1, 1)
        return (
            *func.grad(loss, argnums=both)(d, c),
            *func.jacrev(lambda d, c: run(d, c, dim), argnums=both)(d, c),
            *func.vmap(func.grad(loss, argnums=both), in_dims=(0, None))(many, c),
            *func.vmap(func.grad(loss, argnums=both), in_dims=(None, 2))(d, torch.stack((c, c / 2), 2)),
            func.grad(lambda d: func.grad(loss, argnums=1)(d, c).square().sum())(d),
            *func.vjp(lambda d, c: run(d, c, dim), d, c)[1](w),
        )

    for found, expected in zip(of(NativeRecurrence()), of(_plain), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_gradient_through_a_transform_reaches_the_tensors_around_it():
    d = torch.randn(4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    c = torch.full((4,), 0.5)

    def of(run):
        inner = torch.func.grad(lambda c: (run(d, c, 0) ** 2).sum())(c)
        return torch.autograd.grad(inner.sum(), d)[0]

    torch.testing.assert_close(of(NativeRecurrence()), of(_plain))
