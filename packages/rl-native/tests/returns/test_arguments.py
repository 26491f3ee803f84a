"""Arguments of the return kernels: supported, not supported (None), and invalid."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from rl.core.errors import ArgumentError, ShapeError
from rl.native import NativeRecurrence

recurrence = NativeRecurrence()
SHAPE = (3, 6, 1)


def make(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    batch = {name: torch.randn(SHAPE, generator=g, dtype=dtype) for name in ("value", "next", "reward")}
    batch["ratio"] = torch.rand(SHAPE, generator=g, dtype=dtype)
    batch["done"] = torch.rand(SHAPE, generator=g) < 0.3
    batch["terminated"] = torch.rand(SHAPE, generator=g) < 0.3
    return batch


def gae(b, dim=1, **more):
    return recurrence.gae(0.9, 0.8, b["value"], b["next"], b["reward"], b["done"], b["terminated"], dim, **more)


def td_lambda(b, dim=1, **more):
    return recurrence.td_lambda(0.9, 0.8, b["next"], b["reward"], b["done"], b["terminated"], dim, **more)


def vtrace(b, dim=1, **more):
    flags = b["reward"], b["done"], b["terminated"]
    return recurrence.vtrace(0.9, 0.8, b["ratio"], b["value"], b["next"], *flags, dim, **more)


FORMS = pytest.mark.parametrize("form", [gae, td_lambda, vtrace], ids=lambda form: form.__name__)


class Sub(torch.Tensor):
    """A user's subclass of Tensor."""


@FORMS
@pytest.mark.parametrize("name", ["reward", "next", "done", "terminated"])
def test_tensor_subclasses_are_not_supported(form, name):
    b = make()
    b[name] = b[name].as_subclass(Sub)
    assert form(b) is None


@FORMS
@pytest.mark.parametrize("name", ["reward", "next"])
def test_a_parameter_is_supported_without_gradients(form, name):
    b, leaf = make(), make()
    leaf[name] = Parameter(leaf[name])
    assert form(leaf) is None
    with torch.no_grad():
        torch.testing.assert_close(form(leaf), form(b), rtol=0, atol=0)
    frozen = make()
    frozen[name] = Parameter(frozen[name], requires_grad=False)
    torch.testing.assert_close(form(frozen), form(b), rtol=0, atol=0)


@FORMS
@pytest.mark.parametrize("name", ["reward", "next", "done", "terminated"])
def test_each_argument_may_have_its_own_strides(form, name):
    b = make(torch.float64)
    expected = form(b)
    apart = dict(b)
    apart[name] = torch.stack((b[name], b[name]), 1)[:, 1]
    assert not apart[name].is_contiguous()
    torch.testing.assert_close(form(apart), expected)
    one = dict(b)
    one[name] = b[name][:1].expand(SHAPE)
    dense = dict(one)
    dense[name] = one[name].contiguous()
    torch.testing.assert_close(form(one), form(dense))


@FORMS
def test_time_may_be_any_dimension_and_negative(form):
    b = make()
    expected = form(b)
    torch.testing.assert_close(form(b, -2), expected, rtol=0, atol=0)
    first = {name: x.transpose(0, 1).contiguous() for name, x in b.items()}
    last = {name: x.squeeze(-1) for name, x in b.items()}
    more = {name: x.reshape(3, 1, 6, 1, 1) for name, x in b.items()}
    tuples = expected if isinstance(expected, tuple) else (expected,)
    for batch, dim in ((first, 0), (first, -3), (last, 1), (last, -1), (more, 2), (more, -3)):
        found = form(batch, dim)
        for one, other in zip(found if isinstance(found, tuple) else (found,), tuples, strict=True):
            turned = one.transpose(0, 1) if batch is first else one
            torch.testing.assert_close(turned.reshape(SHAPE), other, rtol=0, atol=0)
    for dim in (3, -4):
        with pytest.raises(ShapeError, match=f"time_dim is {dim}"):
            form(b, dim)


@FORMS
def test_dispatch_modes_see_one_operator(form):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen = []
    with Watch():
        found = form(make())
    assert any("rl_native" in name for name in seen)
    torch.testing.assert_close(found, form(make()))


def block(form):
    """Flags and outputs in one piece of memory: 18 bytes, a gap of 2, and 72 bytes for each output, ten times."""
    memory = torch.zeros(800, dtype=torch.uint8)
    b = make()
    b["done"] = memory[:18].view(torch.bool).view(SHAPE).copy_(b["done"])
    outs = [memory[at : at + 72].view(torch.float32).view(SHAPE) for at in (20, 92)]
    return b, tuple(outs), memory


@FORMS
def test_outputs_may_be_adjacent_to_flags_but_not_overlap_them(form):
    b, outs, memory = block(form)
    expected = form(make())
    found = form(b, out=outs[0] if form is td_lambda else outs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch.equal(b["done"], make()["done"])
    over = memory[16:88].view(torch.float32).view(SHAPE)
    kept = memory.clone()
    with pytest.raises(ArgumentError, match="overlaps an input"):
        form(b, out=over if form is td_lambda else (over, torch.empty(SHAPE)))
    with pytest.raises(ArgumentError, match="overlaps an input"):
        form({**b, "done": memory[84:102].view(torch.bool).view(SHAPE)}, out=outs[0] if form is td_lambda else outs)
    assert torch.equal(memory, kept)


@FORMS
def test_outputs_of_one_element_or_none(form):
    for shape in ((1, 1, 1), (0, 4, 1), (2, 0, 1)):
        b = {name: x[: shape[0], : shape[1]].contiguous() for name, x in make().items()}
        expected = form(b)
        found = form(b, out=torch.empty(shape) if form is td_lambda else (torch.empty(shape), torch.empty(shape)))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@FORMS
@pytest.mark.parametrize(
    ("out", "error", "match"),
    [
        (torch.empty(3, 6), ShapeError, r"out has shape \(3, 6\)"),
        (torch.empty(SHAPE, dtype=torch.float64), ArgumentError, r"out is torch\.float64"),
        (torch.empty(SHAPE, device="meta"), ArgumentError, "on meta"),
        (torch.empty(SHAPE, requires_grad=True), ArgumentError, "gradient"),
        (torch.empty(3, 1, 1).expand(SHAPE), ArgumentError, "share memory"),
    ],
    ids=["shape", "type", "device", "gradient", "expanded"],
)
def test_invalid_outputs_raise(form, out, error, match):
    with pytest.raises(error, match=match):
        form(make(), out=out if form is td_lambda else (torch.empty(SHAPE), out))


@pytest.mark.parametrize("zero", [0, torch.tensor(0.0)], ids=["integer", "tensor"])
def test_coefficients_may_be_integers_or_tensors(zero):
    b = make()
    flags = b["reward"], b["done"], b["terminated"], 1
    found = recurrence.gae(1, zero, b["value"], b["next"], *flags)
    torch.testing.assert_close(found, recurrence.gae(1.0, 0.0, b["value"], b["next"], *flags), rtol=0, atol=0)
    gammas = torch.full(SHAPE, 0.9)
    expected = recurrence.gae(0.9, 0.8, b["value"], b["next"], *flags)
    torch.testing.assert_close(recurrence.gae(gammas, 0.8, b["value"], b["next"], *flags), expected)
    asked = gammas.requires_grad_()
    assert recurrence.gae(asked, 0.8, b["value"], b["next"], *flags) is None
    assert recurrence.gae(torch.tensor(0.9, requires_grad=True), 0.8, b["value"], b["next"], *flags) is None


def tensors(found):
    return found if isinstance(found, tuple) else (found,)


@FORMS
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
def test_a_call_traced_by_jit_computes_from_its_inputs(form):
    b = make()
    other = {**b, "reward": 2 * b["reward"]}
    traced = torch.jit.trace(lambda reward: form({**b, "reward": reward}), (b["reward"],))
    torch.testing.assert_close(tensors(traced(other["reward"])), tensors(form(other)))


@FORMS
def test_forward_mode_ad_is_not_supported_by_returns(form):
    b = make()
    with forward_ad.dual_level():
        assert form({**b, "reward": forward_ad.make_dual(b["reward"], b["value"])}) is None


def test_the_recurrence_raises_for_forward_mode_tangents():
    b = make()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(b["reward"], b["value"])
        for given in ((dual, b["value"]), (b["value"], dual)):
            with pytest.raises(ArgumentError, match="forward-mode"):
                recurrence(*given, 1)
        torch.testing.assert_close(recurrence(b["reward"], b["value"], 1), recurrence(b["reward"], b["value"], 1))
    with pytest.raises(ArgumentError, match="forward-mode"):
        torch.func.jvp(lambda d: recurrence(d, b["value"], 1), (b["reward"],), (b["value"],))


def given_back():
    x = torch.ones(SHAPE)
    x.untyped_storage().resize_(0)
    return x


WITHOUT = {
    "storage given back": given_back,
    "zeros of autograd": lambda: torch._efficientzerotensor(SHAPE),
    "sparse": lambda: torch.ones(SHAPE).to_sparse(),
}


@pytest.mark.parametrize("form", [gae, vtrace])
@pytest.mark.parametrize("name", ["value", "next", "done"])
@pytest.mark.parametrize("dense", [True, False])
def test_a_missing_input_gives_none(form, name, dense):
    b = make() if dense else {key: x.transpose(0, 1).contiguous().transpose(0, 1) for key, x in make().items()}
    assert form({**b, name: None}) is None


@FORMS
@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_tensors_without_memory_are_not_supported(form, without):
    b = make()
    assert form({**b, "next": without()}) is None
    assert form({**b, "reward": without()}) is None


@FORMS
def test_outputs_without_memory_raise(form):
    with pytest.raises(ArgumentError, match="out has no memory"):
        form(make(), out=given_back() if form is td_lambda else (torch.empty(SHAPE), given_back()))


def test_the_recurrence_raises_for_freed_storages_and_accepts_symbolic_zeros():
    for given in ((given_back(), torch.ones(SHAPE)), (torch.ones(SHAPE), given_back())):
        with pytest.raises(ArgumentError, match="has no memory"):
            recurrence(*given, 1)
    zeros, ones = torch._efficientzerotensor(SHAPE), torch.ones(SHAPE)
    assert torch.equal(recurrence(zeros, ones, 1), torch.zeros(SHAPE))
    assert torch.equal(recurrence(ones, zeros, 1), ones)


@FORMS
def test_autograd_detects_that_an_output_was_overwritten(form):
    weight, b = torch.ones(SHAPE, requires_grad=True), make()
    outs = (torch.empty(SHAPE), torch.empty(SHAPE))
    found = tensors(form(b, out=outs[0] if form is td_lambda else outs))
    loss = (weight * found[0]).sum()
    form(b, out=outs[0] if form is td_lambda else outs)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_detects_that_the_recurrence_was_overwritten():
    weight, b, out = torch.ones(SHAPE, requires_grad=True), make(), torch.empty(SHAPE)
    loss = (weight * recurrence(b["reward"], b["ratio"], 1, out=out)).sum()
    recurrence(b["reward"], b["ratio"], 1, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_first_call_may_be_inside_a_transform():
    code = (
        "import torch; from rl.core.registry import default;"
        "ask = lambda: default().answer('rl_linear_recurrence', device=torch.device('cpu'), dtype=torch.float32).value;"
        "torch.func.grad(lambda x: (ask(), x.sum())[1])(torch.ones(2));"
        "print(ask().name)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (found.stdout.strip(), found.stderr) == ("native", "")


def test_returns_are_not_supported_inside_vmap():
    value, done = torch.randn(4, 2, 5, 1), torch.zeros(2, 5, 1, dtype=torch.bool)
    found = []

    def one(value):  # as an operator, each row would be a call of its own
        returns = NativeRecurrence()
        found.append(returns.gae(0.9, 0.9, value, value, value, done, None, 1))
        found.append(returns.td_lambda(0.9, 0.9, value, value, done, None, 1))
        found.append(returns.vtrace(0.9, 0.9, value, value, value, value, done, None, 1))
        return value

    torch.vmap(one)(value)
    assert found == [None, None, None]


@pytest.mark.parametrize("number", ["rho_bar", "c_bar"])
def test_a_threshold_that_is_not_a_number_raises_before_anything_is_written(number):
    out = torch.zeros(SHAPE), torch.zeros(SHAPE)
    with pytest.raises((TypeError, ValueError)):
        vtrace(make(), out=out, **{number: "one"})
    assert not any(x.any() for x in out)


def test_a_lazily_cloned_output_gets_memory_of_its_own():
    shared = torch.zeros(SHAPE)
    out = torch._lazy_clone(shared), torch._lazy_clone(shared)
    torch.testing.assert_close(gae(make(), out=out), gae(make()), rtol=0, atol=0)
    assert not shared.any()


def test_threads_may_call_at_once():
    b = {name: x.expand(3, 6, 4_000).contiguous() for name, x in make().items()}
    expected = gae(b)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: gae(b), range(20)):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
