"""Recurrent layers over sequences with resets, and one step of them while collecting.

Run: ``python packages/rl-modules/benchmarks/recurrent.py [--rounds 9] [--layers 1] [--no-peers] [--choices]``.
Contenders run in turn in one process on one thread; figures are medians of the thread's own CPU time, and of the wall
clock beside it, in milliseconds. The floor is torch's own layer without resets. TorchRL takes part where it can be
imported.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl.core import RecurrentOptions, set_recurrent_mode
from rl.core.tensor_functions import as_function
from rl.modules import GRUModule, LSTMModule, ScanBackend
from rl.modules.recurrent.backends import find_backend

BATCH, TIME, WIDTH, HIDDEN, SHARE = 64, 64, 128, 128, 0.02
CPU = torch.device("cpu")
SHAPES = [  # rows, steps, inputs, units, layers, share of resets
    (64, 64, 128, 128, 1, 0.02),
    (64, 64, 128, 128, 1, 0.0),
    (64, 64, 128, 128, 2, 0.02),
    (8, 128, 32, 64, 1, 0.01),
    (8, 16, 64, 64, 1, 0.05),
    (1, 256, 16, 64, 1, 0.01),
    (1, 256, 16, 64, 1, 0.0),
    (1, 64, 512, 512, 1, 0.02),
    (256, 16, 64, 256, 1, 0.05),
    (512, 8, 32, 64, 1, 0.0),
    (32, 80, 256, 512, 1, 0.02),
    (32, 80, 256, 512, 1, 0.0),
]
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU}
Sides = dict[str, Callable[[], Any]]


def medians(sides: Sides, rounds: int, *, warm: bool = False) -> dict[str, tuple[float, float]]:
    """Milliseconds of CPU and of wall time; interleaved, so that a busy machine slows all implementations alike.

    Every other round runs in reverse order, so that no implementation always follows the one that fills the caches.

    With `warm` each runs once untimed before it is timed: caches left by the previous one slow a call of a millisecond.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for run in sides.values():
        run()
    for turn in range(rounds):
        for name, run in reversed(sides.items()) if turn % 2 else sides.items():
            if warm:
                run()
            wall, cpu = time.perf_counter(), time.thread_time()
            run()
            taken[name].append(((time.thread_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3))
    return {name: tuple(torch.tensor(pairs).median(0).values.tolist()) for name, pairs in taken.items()}


def show(title: str, figures: dict[str, tuple[float, float]], floor: str) -> None:
    print(f"\n{title}\n{'':44}{'CPU ms':>9}{'wall ms':>9}{'of floor':>10}")
    for name, (cpu, wall) in figures.items():
        print(f"{name:44}{cpu:9.2f}{wall:9.2f}{cpu / figures[floor][0]:10.2f}")


def python_loop(layer: nn.RNNBase, x: Tensor, keep: Tensor) -> Tensor:
    """What one writes without any of this: a loop over time with autograd (LSTM or GRU, one layer)."""
    w, u, b, d = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
    of_input = nn.functional.linear(x, w, b)
    h = c = x.new_zeros(len(x), layer.hidden_size)
    outputs = []
    for t in range(x.shape[1]):
        h, c = h * keep[:, t], c * keep[:, t]
        of_state = nn.functional.linear(h, u, d)
        if isinstance(layer, nn.LSTM):
            i, f, g, o = (of_input[:, t] + of_state).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            (r_x, z_x, n_x), (r_h, z_h, n_h) = of_input[:, t].chunk(3, -1), of_state.chunk(3, -1)
            z, n = (z_x + z_h).sigmoid(), (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
            h = n + z * (h - n)
        outputs.append(h)
    return torch.stack(outputs, 1)


def torchrl_sides(cell: str, layer: nn.RNNBase, x: Tensor, is_init: Tensor) -> Sides:
    try:
        import torchrl.modules as peers
    except ImportError:
        return {}
    kind = {"lstm": peers.LSTMModule, "gru": peers.GRUModule}[cell]
    states = ["h", "c"] if cell == "lstm" else ["h"]
    sides: Sides = {}
    for backend in ("pad", "scan"):
        module = kind(
            **{cell: type(layer)(layer.input_size, layer.hidden_size, layer.num_layers, batch_first=True)},
            in_keys=["o", *states, "is_init"],
            out_keys=["f", *(("next", name) for name in states)],
            recurrent_backend=backend,
            default_recurrent_mode=True,
        )
        getattr(module, cell).load_state_dict(layer.state_dict())

        def run(module: Any = module) -> Tensor:
            zeros = {name: x.new_zeros(*x.shape[:2], layer.num_layers, HIDDEN) for name in states}
            return module(TensorDict({"o": x, "is_init": is_init.unsqueeze(-1), **zeros}, x.shape[:2]))["f"]

        sides[f"TorchRL {backend}"] = run
    return sides


def sequences(cell: str, layers: int, rounds: int, *, peers: bool) -> None:
    torch.manual_seed(0)
    layer = LAYERS[cell](WIDTH, HIDDEN, layers, batch_first=True)
    x = torch.randn(BATCH, TIME, WIDTH, requires_grad=True)
    is_init, grad = torch.rand(BATCH, TIME) < SHARE, torch.randn(BATCH, TIME, HIDDEN)
    parts = 2 if cell == "lstm" else 1
    first = (torch.zeros(BATCH, layers, HIDDEN),) * parts
    stored = (torch.zeros(BATCH, TIME, layers, HIDDEN),) * parts
    floor = f"torch.nn.{layer.mode}, no resets (floor)"
    outputs: Sides = {floor: lambda: layer(x)[0]}
    for name in ("auto", "scan", "pad"):
        backend, said = find_backend("benchmark", cell, name, CPU)
        outputs[f"{name}: {said.name} of {said.distribution}"] = lambda backend=backend: backend(
            layer, x, first, is_init, stored
        )[0]
    full = RecurrentOptions(recompute="full")
    outputs["scan in plain torch"] = lambda: ScanBackend()(layer, x, first, is_init, stored)[0]
    outputs["scan in plain torch, recompute='full'"] = lambda: ScanBackend()(layer, x, first, is_init, stored, full)[0]
    if layers == 1:
        keep = (~is_init).float().unsqueeze(-1)
        outputs["Python loop"] = lambda: python_loop(layer, x, keep)
    theirs = torchrl_sides(cell, layer, x, is_init) if peers else {}
    leaves = [x, *layer.parameters()]

    # TorchRL holds copies of the weights: there all gradients are those of its own.
    sides = {name: lambda run=run: torch.autograd.grad(run(), leaves, grad) for name, run in outputs.items()}
    sides |= {name: lambda run=run: run().backward(grad) for name, run in theirs.items()}
    title = f"{cell}, {layers} layer(s), [{BATCH}, {TIME}, {WIDTH}] to {HIDDEN}, {SHARE:.0%} resets, forward + backward"
    show(title, medians(sides, rounds), floor)


def choices(cell: str, rounds: int) -> None:
    """What `auto` takes beside what else there is, at several shapes: forward and backward, and forward alone."""
    print(f"\n{cell}: CPU ms of auto, and of the back ends by name; auto / best")
    print(f"{'rows x steps, inputs to units, layers, resets':50}{'':9}{'auto':>9}{'scan':>9}{'pad':>9}{'ratio':>8}")
    for shape in SHAPES:
        choice(cell, rounds, *shape)


def choice(cell: str, rounds: int, rows: int, length: int, width: int, hidden: int, layers: int, share: float) -> None:
    torch.manual_seed(0)
    layer = LAYERS[cell](width, hidden, layers, batch_first=True)
    x = torch.randn(rows, length, width, requires_grad=True)
    is_init, grad = torch.rand(rows, length) < share, torch.randn(rows, length, hidden)
    parts = 2 if cell == "lstm" else 1
    first = (torch.zeros(rows, layers, hidden),) * parts
    stored = (torch.zeros(rows, length, layers, hidden),) * parts
    leaves = [x, *layer.parameters()]
    runs: Sides = {}
    for name in ("auto", "scan", "pad"):
        backend, _ = find_backend("benchmark", cell, name, CPU)
        runs[name] = lambda backend=backend: backend(layer, x, first, is_init, stored)[0]
    trained = {name: lambda run=run: torch.autograd.grad(run(), leaves, grad) for name, run in runs.items()}
    shape = f"{rows} x {length}, {width} to {hidden}, {layers}, {share:.0%}"
    for kind, sides in (("trained", trained), ("run", {name: torch.no_grad()(run) for name, run in runs.items()})):
        cpu = {name: figures[0] for name, figures in medians(sides, rounds, warm=True).items()}
        ratio = cpu["auto"] / min(cpu.values())
        print(f"{shape:50}{kind:9}" + "".join(f"{cpu[name]:9.2f}" for name in runs) + f"{ratio:8.2f}")


def steps(cell: str, rounds: int, rows: int = 16) -> None:
    """One policy step of `rows` environments, the state carried on, episodes ending now and then."""
    torch.manual_seed(0)
    kind = {"lstm": LSTMModule, "gru": GRUModule}[cell]
    module = kind(WIDTH // 2, HIDDEN, in_key="observation", out_key="features")
    plain = as_function(module)
    assert plain is not None
    by_hand = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell](WIDTH // 2, HIDDEN)
    xs, flags = torch.randn(TIME, rows, WIDTH // 2), torch.rand(TIME, rows, 1) < SHARE

    def hand() -> None:
        state = (torch.zeros(rows, HIDDEN),) * len(module.states)
        for x, flag in zip(xs, flags, strict=True):
            keep = (~flag).float()
            state = tuple(part * keep for part in state)
            after = by_hand(x, state if cell == "lstm" else state[0])
            state = after if cell == "lstm" else (after,)

    def lowered() -> None:
        state = tuple(one.start((rows,)) for one in module.states)
        for x, flag in zip(xs, flags, strict=True):
            _, *state = plain.fn(x, *state, flag)

    def module_calls() -> None:
        state = tuple(one.start((rows,)) for one in module.states)
        for x, flag in zip(xs, flags, strict=True):
            td = TensorDict(observation=x, is_init=flag, batch_size=[rows])
            for one, part in zip(module.states, state, strict=True):
                td[one.name] = part
            module(td)
            state = tuple(td["next"][one.name] for one in module.states)

    floor = f"loop with torch.nn.{cell.upper()}Cell by hand"
    with torch.no_grad(), set_recurrent_mode(False):
        figures = medians({floor: hand, "lowered, as a collector runs it": lowered, "TensorDict": module_calls}, rounds)
    show(f"{cell}, {TIME} single steps of {rows} environments", figures, floor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--choices", action="store_true", help="only what `auto` takes, at several shapes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for cell in LAYERS:
        if options.choices:
            choices(cell, options.rounds)
            continue
        sequences(cell, options.layers, options.rounds, peers=not options.no_peers)
        steps(cell, options.rounds)


if __name__ == "__main__":
    main()
