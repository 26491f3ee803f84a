"""The contenders: each a function of nothing that runs a forward pass and gives the outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl.core import RecurrentOptions
from rl.recurrent_triton import TritonBackend

Run = Callable[[], Tensor]
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class Size:
    """One line of the table.

    Args:
        cell: ``"lstm"`` or ``"gru"``.
        batch: rows.
        time: steps.
        hidden: units, and inputs.
        episode: mean number of steps between resets; 0 for none.
    """

    cell: str
    batch: int
    time: int
    hidden: int
    episode: int

    def __str__(self) -> str:
        ends = f"episodes of {self.episode}" if self.episode else "no resets"
        return f"{self.cell:4} B={self.batch:<5} T={self.time:<4} H={self.hidden:<5} {ends:15}"


class Problem:
    """Weights and data of one size, the same for all contenders."""

    def __init__(self, size: Size, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.size = size
        self.layer = KINDS[size.cell](size.hidden, size.hidden, batch_first=True, device=device, dtype=dtype)
        shape = size.batch, size.time
        self.x = torch.randn(*shape, size.hidden, device=device, dtype=dtype, requires_grad=True)
        share = 1 / size.episode if size.episode else 0.0
        self.is_init = torch.rand(shape, device=device) < share
        self.grad = torch.randn(*shape, size.hidden, device=device, dtype=dtype)
        self.others: dict[str, list[Tensor]] = {}
        parts = 2 if size.cell == "lstm" else 1
        self.state = tuple(torch.zeros(size.batch, 1, size.hidden, device=device, dtype=dtype) for _ in range(parts))

    def leaves(self, name: str) -> list[Tensor]:
        """What a contender gives gradients of: inputs and weights."""
        return self.others.get(name) or [self.x, *self.layer.parameters()]

    def backend(self, backend: Any, **options: Any) -> Run:
        """A recurrent back end on these data."""
        how = RecurrentOptions(**options)
        return lambda: backend(self.layer, self.x, self.state, self.is_init, None, how)[0]


def triton(problem: Problem) -> Run:
    return problem.backend(TritonBackend())


def full(problem: Problem) -> Run:
    return problem.backend(TritonBackend(), recompute="full")


def cudnn(problem: Problem) -> Run:
    """Torch's own layer, for which nothing resets."""
    layer, x = problem.layer, problem.x
    return lambda: layer(x)[0]


def pad(problem: Problem) -> Run:
    from rl.modules import PadBackend

    return problem.backend(PadBackend())


def scan(problem: Problem) -> Run:
    """Compiled; in a module that the compiler takes."""
    from rl.modules import GRU, LSTM, ScanBackend

    kind = {"lstm": LSTM, "gru": GRU}[problem.size.cell]
    layer = kind(problem.size.hidden, problem.size.hidden, device=problem.x.device, dtype=problem.x.dtype)
    for name, parameter in problem.layer.named_parameters():
        setattr(layer, name, parameter)
    backend = ScanBackend()
    torch._dynamo.reset()  # noqa: SLF001  it gives up after some sizes of one function
    run = torch.compile(lambda x, state, flags: backend(layer, x, state, flags)[0], dynamic=False)
    return lambda: run(problem.x, problem.state, problem.is_init)


def python_loop(problem: Problem) -> Run:
    """What one writes without any of this: a loop over time with autograd."""
    layer, x, size = problem.layer, problem.x, problem.size
    keep = (~problem.is_init).to(x.dtype).unsqueeze(-1)

    def run() -> Tensor:
        w, u, b, d = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
        of_input = nn.functional.linear(x, w, b)
        h = c = x.new_zeros(size.batch, size.hidden)
        outputs: list[Tensor] = []
        for t in range(size.time):
            h, c = h * keep[:, t], c * keep[:, t]
            of_state = nn.functional.linear(h, u, d)
            if size.cell == "lstm":
                i, f, g, o = (of_input[:, t] + of_state).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            else:
                (r_x, z_x, n_x), (r_h, z_h, n_h) = of_input[:, t].chunk(3, -1), of_state.chunk(3, -1)
                z, n = (z_x + z_h).sigmoid(), (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
                h = n + z * (h - n)
            outputs.append(h)
        return torch.stack(outputs, 1)

    return run


PEERS = {f"TorchRL {backend}": backend for backend in ("triton", "pad", "scan")}


def torchrl(problem: Problem, name: str) -> Run:
    """One of `PEERS`, through TorchRL's module."""
    import torchrl.modules as peers
    from tensordict import TensorDict

    size, x = problem.size, problem.x
    states = ["h", "c"] if size.cell == "lstm" else ["h"]
    module = {"lstm": peers.LSTMModule, "gru": peers.GRUModule}[size.cell](
        **{size.cell: problem.layer},
        in_keys=["o", *states, "is_init"],
        out_keys=["f", *(("next", name) for name in states)],
        recurrent_backend=PEERS[name],
        recurrent_matmul_precision="tf32" if torch.get_float32_matmul_precision() == "high" else "ieee",
        recurrent_compute_dtype=x.dtype,
        default_recurrent_mode=True,
    )
    zeros = {name: x.new_zeros(size.batch, size.time, 1, size.hidden) for name in states}

    problem.others[name] = [x, *module.parameters()]  # it holds copies

    def run() -> Tensor:
        given = {"o": x, "is_init": problem.is_init.unsqueeze(-1), **zeros}
        return module(TensorDict(given, x.shape[:2]))["f"]

    return run


def use_precision(precision: str) -> None:
    """Products of float32 of all contenders, by settings that neither torch's old nor its new names contradict.

    Args:
        precision: ``"tf32"`` or ``"ieee"``.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


SIDES: dict[str, Callable[[Problem], Run]] = {
    "triton": triton,
    "full": full,
    "cuDNN, no resets": cudnn,
    "pad": pad,
    "scan, compiled": scan,
    "Python loop": python_loop,
    **{name: partial(torchrl, name=name) for name in PEERS},
}
