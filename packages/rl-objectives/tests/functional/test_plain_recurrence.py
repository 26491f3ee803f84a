"""The recurrence in plain PyTorch against a loop over numbers."""

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from rl.core.errors import ShapeError

# the forms in plain torch are not called where a back end is installed
from rl.objectives.functional._recurrence import linear_recurrence, scan_recurrence, torch_recurrence

FORMS = pytest.mark.parametrize("form", [scan_recurrence, torch_recurrence], ids=lambda f: f.__name__)


def make(*shape, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=dtype), torch.rand(shape, generator=g, dtype=dtype)


def naive(d, c, dim):
    """A loop over Python numbers."""
    d, c = (x.detach().resolve_neg().double().movedim(dim, 0) for x in (d, c))
    flat, weight = d.reshape(len(d), -1).tolist(), c.reshape(len(c), -1).tolist()
    for t in range(len(flat) - 2, -1, -1):
        flat[t] = [x + w * y for x, w, y in zip(flat[t], weight[t], flat[t + 1], strict=True)]
    return torch.tensor(flat, dtype=torch.float64).reshape(d.shape).movedim(0, dim)


class Sub(torch.Tensor):
    """A subclass of tensors."""


KINDS = {
    "as they are": lambda x: x,
    "single": lambda x: x.float(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "strided": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "time first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand(x.shape),
    "negative views": lambda x: torch.complex(x, -x).conj().imag,
    "parameters": Parameter,
    "a subclass": lambda x: x.as_subclass(Sub),
}


@FORMS
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("shape", [(3, 7, 1), (2, 1, 1), (1, 2, 3), (2, 40, 1)], ids=str)
def test_every_kind_of_tensor_equals_a_loop(form, kind, shape):
    given = [kind(x) for x in make(*shape)]
    kept = [x.detach().clone() for x in given]
    bound = {torch.float16: 2e-2, torch.bfloat16: 2e-1}.get(given[0].dtype, 1e-5)
    with torch.no_grad():
        found = form(*given, 1)
    assert found.dtype == given[0].dtype
    torch.testing.assert_close(found.as_subclass(torch.Tensor).double(), naive(*given, 1), rtol=bound, atol=bound)
    assert all(torch.equal(x, before) for x, before in zip(given, kept, strict=True))
    if shape[1] > 1:
        found.mul_(0)  # the result shares no memory with the input
        assert all(torch.equal(x, before) for x, before in zip(given, kept, strict=True))


@FORMS
@pytest.mark.parametrize(("shape", "dim"), [((5,), 0), ((4, 6), 0), ((4, 6), 1), ((2, 3, 4, 5), 2)], ids=str)
def test_time_may_be_any_dimension(form, shape, dim):
    d, c = make(*shape)
    torch.testing.assert_close(form(d, c, dim), naive(d, c, dim))
    torch.testing.assert_close(form(d, c, dim - len(shape)), naive(d, c, dim))


@FORMS
@pytest.mark.parametrize("shape", [(2, 0, 1), (0, 3, 1), (2, 3, 0)], ids=str)
def test_empty_input_gives_empty_output(form, shape):
    d, c = make(*shape)
    assert form(d, c, 1).shape == shape


@FORMS
def test_nan_and_infinity_propagate_without_a_warning(form):
    d = torch.tensor([1.0, torch.inf, 1.0, 2.0, torch.nan, 3e38, 3e38]).view(1, 7, 1)
    c = torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0]).view(1, 7, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = form(d, c, 1).flatten()
    assert found[5].isinf()
    assert found[2:5].isnan().all()


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_first_and_second_gradients(steps):
    d, c = make(2, steps, 1)
    d.requires_grad_()
    assert torch.autograd.gradcheck(lambda d: torch_recurrence(d, c, 1), d)
    c.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda d, c: torch_recurrence(d, c, 1), (d, c))


@pytest.mark.parametrize("steps", [3, 50])
def test_functional_transforms_and_dispatch_modes(steps):
    d, c = make(4, steps, 1)
    torch.testing.assert_close(torch.vmap(lambda d, c: torch_recurrence(d, c, 0))(d, c), naive(d, c, 1))
    torch.testing.assert_close(
        torch.vmap(lambda d: torch_recurrence(d, c[0], 0))(d), naive(d, c[:1].expand(d.shape), 1)
    )
    grad = torch.func.grad(lambda d: torch_recurrence(d, c, 1).sum())(d)
    leaf = d.clone().requires_grad_()
    torch.testing.assert_close(grad, torch.autograd.grad(torch_recurrence(leaf, c, 1).sum(), leaf)[0])

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    with Count():
        torch.testing.assert_close(torch_recurrence(d, c, 1), naive(d, c, 1))
    assert any("addcmul" in str(func) for func in seen)


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_forward_mode_gradients(steps):
    d, c = make(2, steps, 1)
    tangent, _ = make(2, steps, 1, seed=1)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(torch_recurrence(forward_ad.make_dual(d, tangent), c, 1)).tangent
    torch.testing.assert_close(found, naive(tangent, c, 1))


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("steps", [3, 50])
def test_a_jit_trace_runs_on_other_data(steps):
    d, c = make(2, steps, 1)
    traced = torch.jit.trace(lambda d, c: torch_recurrence(d, c, 1), (d, c))
    torch.testing.assert_close(traced(2 * d, c), naive(2 * d, c, 1))


@pytest.mark.parametrize("form", [torch_recurrence, linear_recurrence], ids=lambda f: f.__name__)
def test_different_shapes_raise(form):
    with pytest.raises(ShapeError, match=r"expected one shape, got d \(2, 3, 1\), c \(2, 3\)"):
        form(torch.zeros(2, 3, 1), torch.zeros(2, 3), 1)


def test_it_compiles_to_a_single_graph():
    d, c = make(3, 5, 1)
    compiled = torch.compile(lambda d, c: torch_recurrence(d, c, 1), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(d, c), naive(d, c, 1))
