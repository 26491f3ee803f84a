"""What the back end refuses, instead of computing something else; and what it says."""

import pytest
import torch
from torch import nn

from rl.core import RecurrentOptions
from rl.core.errors import BackendError
from rl.recurrent_triton import TritonBackend, _support
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
        (nn.RNN(3, 4, batch_first=True), "'LSTM' or 'GRU', got RNN"),
    ],
    ids=["bidirectional lstm", "bidirectional gru", "projection", "dropout", "rnn"],
)
def test_what_it_does_not_compute_is_named_with_the_remedy(backend, in_torch, module, what):
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


@pytest.mark.skipif(_support.interpreted(), reason="the interpreter takes tensors of the CPU")
def test_tensors_of_the_cpu_are_refused():
    pytest.importorskip("triton")
    with pytest.raises(BackendError, match=r"run on CUDA devices, not on cpu: move.*'scan'"):
        run(TritonBackend(), nn.LSTM(3, 4, batch_first=True))


def test_without_triton_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_support, "has_triton", lambda: False)
    with pytest.raises(BackendError, match=r"needs Triton, which is not installed: `pip install triton`"):
        TritonBackend()
