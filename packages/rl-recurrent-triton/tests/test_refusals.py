"""Errors of the back end for unsupported or invalid arguments."""

import pytest
import torch
from torch import nn

from rl.core import RecurrentOptions
from rl.core.errors import ArgumentError, BackendError, ShapeError
from rl.recurrent_triton import TritonBackend

# Triton is hidden, and dtypes of a GPU are checked without one
from rl.recurrent_triton import _device as support
from rl.recurrent_triton._backend import _require_dtype


def run(backend, module, dtype=torch.float32, device="cpu", **options):
    lstm = isinstance(module, nn.LSTM)
    shape = 2, module.num_layers, 4
    x = torch.zeros(2, 3, 3, dtype=dtype, device=device)
    state = tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2 if lstm else 1))
    mask = torch.zeros(2, 3, dtype=torch.bool, device=device)
    return backend(module, x, state, mask, None, RecurrentOptions(**options))


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (nn.LSTM(3, 4, batch_first=True, bidirectional=True), "bidirectional=True: leave it out"),
        (nn.GRU(3, 4, batch_first=True, bidirectional=True), "bidirectional=True: leave it out"),
        (nn.LSTM(3, 4, batch_first=True, proj_size=2), "proj_size=2: leave it out"),
        (nn.GRU(3, 4, 2, batch_first=True, dropout=0.5), "dropout=0.5 in training: leave it out, or take.*'scan'"),
        (nn.LSTM(3, 4), "takes batches first.*batch_first=False: create it with batch_first=True"),
        (nn.RNN(3, 4, batch_first=True), "'LSTM' or 'GRU', got RNN"),
    ],
    ids=["bidirectional lstm", "bidirectional gru", "projection", "dropout", "time first", "rnn"],
)
def test_unsupported_modules_raise_with_the_remedy(backend, in_torch, module, what):
    with pytest.raises(BackendError, match=what):
        run(backend, module)
    assert in_torch.calls == []


def test_dropout_counts_only_where_it_would_be_applied(backend):
    module = nn.GRU(3, 4, 2, batch_first=True, dropout=0.5).eval()
    assert run(backend, module)[0].shape == (2, 3, 4)
    with pytest.warns(UserWarning, match="dropout"):
        single = nn.GRU(3, 4, batch_first=True, dropout=0.5)
    assert run(backend, single)[0].shape == (2, 3, 4)


def test_a_type_that_no_kernel_computes_in_is_named(backend):
    module = nn.LSTM(3, 4, batch_first=True)
    with pytest.raises(BackendError, match=r"torch\.bfloat16, torch\.float16, not in torch\.float8.*compute_dtype"):
        run(backend, module, compute_dtype=torch.float8_e4m3fn)


def test_float64_is_for_the_interpreter():
    assert _require_dtype(torch.float64, torch.device("cpu")) is torch.float64
    with pytest.raises(BackendError, match=r"not in torch\.float64: set compute_dtype"):
        _require_dtype(torch.float64, torch.device("cuda", 0))


def test_data_elsewhere_than_the_weights_is_refused(backend):
    with pytest.raises(
        BackendError, match=r"one device, and weights and data are on cpu, meta: move them with .to\(\)"
    ):
        run(backend, nn.LSTM(3, 4, batch_first=True), device="meta")


@pytest.mark.skipif(support.is_interpreted(), reason="the interpreter takes tensors of the CPU")
def test_tensors_of_the_cpu_are_refused():
    pytest.importorskip("triton")
    with pytest.raises(BackendError, match=r"run on CUDA devices, not on cpu: move.*'scan'"):
        run(TritonBackend(), nn.LSTM(3, 4, batch_first=True))


def test_switched_off_it_cannot_be_constructed(monkeypatch):
    monkeypatch.setattr(support, "has_triton", lambda: True)
    monkeypatch.setenv("RL_NATIVE", "off")
    with pytest.raises(BackendError, match="RL_NATIVE=off; unset it"):
        TritonBackend()


def test_without_triton_the_error_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(support, "has_triton", lambda: False)
    with pytest.raises(BackendError, match=r"needs Triton, which is not installed: `pip install triton`"):
        TritonBackend()


# ------------------------------------------------------------------ what does not fit: kernels would read elsewhere


def fitting(parts=2):
    """Arguments that fit an LSTM of 2 layers: module, inputs, state, mask, reset states."""
    module = nn.LSTM(3, 4, 2, batch_first=True) if parts == 2 else nn.GRU(3, 4, 2, batch_first=True)
    state = tuple(torch.zeros(5, 2, 4) for _ in range(parts))
    resets = tuple(torch.zeros(5, 6, 2, 4) for _ in range(parts))
    return [module, torch.zeros(5, 6, 3), state, torch.zeros(5, 6, dtype=torch.bool), resets]


def each_of(place, change):
    def changed(given):
        given[place] = tuple(map(change, given[place])) if isinstance(given[place], tuple) else change(given[place])

    return changed


MISFITS = {
    "inputs of one row": (1, lambda x: x[0], r"inputs has the shape \[6, 3\], expected \[B, T, I\]"),
    "width": (1, lambda x: x[..., :2], r"inputs has the shape \[5, 6, 2\], expected .* I = 3 of weight_ih_l0"),
    "state of other rows": (2, lambda x: x[:4], r"state 0 has the shape \[4, 2, 4\], expected .* = \[5, 2, 4\]"),
    "state as in torch": (
        2,
        lambda x: x.transpose(0, 1),
        r"state 0 has .* = \[5, 2, 4\]: batch first",
    ),
    "state of one layer": (2, lambda x: x[:, 0], r"state 0 has the shape \[5, 4\]"),
    "wider state": (2, lambda x: torch.cat((x, x), -1), r"state 0 has the shape \[5, 2, 8\]"),
    "mask with a last dimension": (3, lambda x: x[..., None], r"is_init has .* \[5, 6, 1\], .* squeeze"),
    "mask of fewer steps": (3, lambda x: x[:, :5], r"is_init has the shape \[5, 5\], expected \[B, T\] = \[5, 6\]"),
    "mask time first": (3, lambda x: x.t(), r"is_init has the shape \[6, 5\]"),
    "resets of fewer steps": (4, lambda x: x[:, 1:], r"reset_state 0 has .* \[B, T, layers, H\] = \[5, 6, 2, 4\]"),
    "resets without layers": (4, lambda x: x[:, :, 0], r"reset_state 0 has the shape \[5, 6, 4\]"),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("parts", [2, 1], ids=["lstm", "gru"])
def test_shapes_that_do_not_agree_are_named(backend, in_torch, parts, misfit):
    place, change, what = MISFITS[misfit]
    given = fitting(parts)
    each_of(place, change)(given)
    with pytest.raises(ShapeError, match=f"'triton': {what}"):
        backend(*given)
    assert in_torch.calls == []


KINDS = {
    "mask of numbers": (3, lambda x: x.float(), r"is_init is torch\.float32, expected torch\.bool: use .bool"),
    "no mask": (3, lambda _: None, "is_init is a tensor, got None"),
    "states of integers": (2, lambda x: x.long(), r"state 0 is torch\.int64, expected a floating type"),
    "resets of bool": (4, lambda x: x.bool(), r"reset_state 0 is torch\.bool, expected a floating type"),
    "nested inputs": (
        1,
        lambda x: torch.nested.as_nested_tensor(list(x), layout=torch.jagged),
        "inputs is nested, expected a dense tensor",
    ),
    "sparse inputs": (1, lambda x: x.to_sparse(), r"inputs is torch\.sparse_coo, expected a dense tensor"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_of_another_type_are_named(backend, in_torch, kind):
    place, change, what = KINDS[kind]
    given = fitting()
    each_of(place, change)(given)
    with pytest.raises(ArgumentError, match=f"'triton': {what}"):
        backend(*given)
    assert in_torch.calls == []


@pytest.mark.parametrize(("place", "name"), [(2, "state"), (4, "reset_state")])
def test_too_few_or_too_many_states_are_named(backend, place, name):
    for found, said in (((torch.zeros(5, 2, 4),), "tuple of 1"), (torch.zeros(5, 2, 4), "a Tensor")):
        given = fitting()
        given[place] = found
        with pytest.raises(ArgumentError, match=rf"{name} of lstm is a tuple of 2 tensors \(h and c\), got {said}"):
            backend(*given)
    with pytest.raises(ArgumentError, match=r"state of gru is a tuple of 1 tensors \(h\), got tuple of 2"):
        backend(fitting(1)[0], *fitting(2)[1:])


def test_replaced_weights_are_named(backend):
    given = fitting()
    given[0].weight_hh_l1 = nn.Parameter(torch.zeros(16, 5))
    with pytest.raises(ShapeError, match=r"weight_hh_l1 has the shape \[16, 5\], expected \[16, 4\]"):
        backend(*given)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"matmul_precision": "tf16"}, "matmul_precision is 'tf16'; it is one of None, 'ieee', 'tf32', 'tf32x3'"),
        ({"recompute": "half"}, "recompute is 'half'; it is one of 'none', 'full'"),
    ],
)
def test_invalid_options_are_named(backend, options, what):
    with pytest.raises(BackendError, match=what):
        backend(*fitting(), RecurrentOptions(**options))


TRANSFORMS = {
    "vmap": lambda f, x: torch.func.vmap(f)(x.expand(2, 5, 6, 3)),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "is_grads_batched": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("frozen", [False, True])
def test_transforms_of_functions_are_refused(backend, transform, frozen):
    module, x, state, mask, _ = fitting()
    enabled = torch.set_grad_enabled(not frozen or transform == "is_grads_batched")
    with pytest.raises(BackendError, match=r"does not compute inside of torch\.func transforms"), enabled:
        TRANSFORMS[transform](lambda x: backend(module, x, state, mask)[0], x)


@pytest.mark.parametrize("parts", [2, 1], ids=["lstm", "gru"])
def test_writing_to_outputs_never_changes_states(backend, parts):
    given = fitting(parts)
    given[1].normal_()
    with torch.no_grad():
        out, after = backend(*given)
        before = [part.clone() for part in after]
        out.fill_(7)
    for part, old in zip(after, before, strict=True):
        assert torch.equal(part, old)
    out, after = backend(*given)
    out.relu_()
    with pytest.raises(RuntimeError, match="inplace"):
        out.sum().backward()
