"""Checks of the section "benchmarks": times of replay, recurrent layers, returns, collection and updates on a device.

Figures are microseconds unless their name says otherwise: medians of interleaved rounds in one process. Without a
device the same code runs on the CPU with the smallest sizes and one round; its figures mean nothing. The checks come in
the order of importance and take about 70 seconds on an H200.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from gpu_checks.harness import Call, Check, Context, Figures, Gaussian, Goal, Skipped, capture, medians
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.collectors import Collector
from rl.envs import CartPoleEnv, PendulumEnv
from rl.modules import MLP, Categorical, IndependentNormal, ProbabilisticActor, ValueOperator
from rl.objectives import ClipPPOLoss
from rl.objectives.value import GAE
from rl.objectives.value.functional import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
    vtrace_advantage_estimate,
)
from rl.replay import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, TensorDictPrioritizedReplayBuffer

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
BANDWIDTH = 4e12
"""Bytes a second that the memory of an H100 or H200 moves, roughly."""
kernels: Any = torch  # those on many tensors have no public names


# --------------------------------------------------------------------------------------------------- measuring


def script(path: str) -> ModuleType:
    """Return a benchmark script of a package as a module; scripts beside it can be imported by their names.

    Args:
        path: of the file, below ``packages/``.
    """
    file = PACKAGES / path
    name = f"gpu_checks_script_{file.stem}"
    if name not in sys.modules:
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None, f"{file} is no script"
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def measure(sides: Mapping[str, Call], device: torch.device, *, dry: bool, seconds: float = 1.0) -> dict[str, float]:
    """Median microseconds of each side, in about `seconds` altogether; one call of each if `dry`.

    Args:
        sides: functions without arguments, by name.
        device: where they compute.
        dry: one round of one call.
        seconds: for all sides and rounds, without the calls that warm up.
    """
    if dry:
        return medians(sides, device, rounds=1, repeats=1, warm_up=1)
    once = medians(sides, device, rounds=1, repeats=1, warm_up=3)  # the device is warm, and its allocator
    rounds = 7
    repeats = int(seconds * 1e6 / rounds / sum(once.values()))
    return medians(sides, device, rounds=rounds, repeats=min(50, max(1, repeats)), warm_up=0)


def add_prefix(prefix: str, figures: Mapping[str, float | str]) -> Figures:
    """Figures whose names begin with a prefix."""
    return {f"{prefix}, {name}": value for name, value in figures.items()}


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Products of float32 in ``"tf32"`` or ``"ieee"`` within the block, also those of cuDNN's recurrent layers."""
    kinds: Any = [torch.backends.cuda.matmul, torch.backends.cudnn.rnn]
    before = [kind.fp32_precision for kind in kinds]
    for kind in kinds:
        kind.fp32_precision = precision
    try:
        yield
    finally:
        for kind, old in zip(kinds, before, strict=True):
            kind.fp32_precision = old


def adam(parameters: Any, device: torch.device, rate: float = 3e-4) -> torch.optim.Adam:
    """Fused Adam, that a CUDA graph can hold."""
    return torch.optim.Adam(parameters, lr=rate, fused=True, capturable=device.type == "cuda")


# ------------------------------------------------------------------------------------------ prioritized replay


def needs_tree(device: torch.device) -> None:
    """Raise if the tree of rl-prio-cuda should run here and cannot.

    Raises:
        Skipped: if it is not built for this machine; the reason says what is missing.
    """
    if device.type == "cuda":
        from rl.prio_cuda import why_not

        if reason := why_not():
            raise Skipped(reason)


def tree(rows: int, device: torch.device, dry: bool) -> Figures:
    """Update from errors and weighted samples, one after the other, for 256 and 4,096 rows; about 4 seconds.

    The sides are those of rl-prio-cuda's ``benchmarks/tree.py``. Without a device its tree is left out.
    """
    needs_tree(device)
    rows = 1000 if dry else rows
    makes = script("rl-prio-cuda/benchmarks/tree.py").MAKES
    names = ("cuda", "torch tree", "cumsum") if device.type == "cuda" else ("torch tree", "cumsum")
    made = {name: makes[name](rows, device) for name in names}
    figures: Figures = {}
    for batch in (8,) if dry else (256, 4096):
        index, error = torch.randint(rows, (batch,), device=device), torch.randn(batch, device=device)

        def both(update: Any, sample: Any, index: Tensor = index, error: Tensor = error) -> None:
            update(index, error)
            sample(len(index))

        sides: dict[str, Call] = {name: partial(both, *one) for name, one in made.items()}
        if "cuda" in sides:
            update, sample = made["cuda"]
            sides["captured"] = capture(sides["cuda"], device)
            sides["update"], sides["sample"] = partial(update, index, error), partial(sample, batch)
        times = measure(sides, device, dry=dry)
        figures |= add_prefix(f"{batch} rows", times)
        if "cuda" in times:
            others = ("torch tree", "cumsum")
            figures |= add_prefix(f"{batch} rows", {f"{one} / cuda": times[one] / times["cuda"] for one in others})
    return figures


def transitions(rows: int, device: torch.device) -> TensorDict:
    """Measure steps of an environment with 17 observations and 6 actions: seven entries."""
    after = TensorDict(
        observation=torch.randn(rows, 17, device=device),
        reward=torch.randn(rows, 1, device=device),
        done=torch.rand(rows, 1, device=device) < 0.05,
        terminated=torch.rand(rows, 1, device=device) < 0.02,
        batch_size=[rows],
    )
    first = {"observation": torch.randn(rows, 17, device=device), "action": torch.rand(rows, 6, device=device)}
    return TensorDict({**first, "number": torch.arange(rows, device=device), "next": after}, batch_size=[rows])


def whole_buffer(device: torch.device, dry: bool) -> Figures:
    """`TensorDictPrioritizedReplayBuffer`: a sample and its new priorities, against tree and `index_select` by hand.

    About 3 seconds, and 0.2 GB.
    """
    needs_tree(device)
    rows, figures = 1000 if dry else 10**6, Figures()
    data = transitions(rows, device)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(rows, device=device))
    buffer.extend(data)
    update, draw = script("rl-prio-cuda/benchmarks/tree.py").MAKES["cuda" if device.type == "cuda" else "torch tree"](
        rows, device
    )
    leaves: list[Any] = list(data.values(include_nested=True, leaves_only=True))
    for batch in (8,) if dry else (256, 4096):
        error = torch.rand(batch, device=device)

        def ours(batch: int = batch, error: Tensor = error) -> None:
            sample = buffer.sample(batch)
            sample["td_error"] = error
            buffer.update_tensordict_priority(sample)

        def by_hand(batch: int = batch, error: Tensor = error) -> None:
            index, _ = draw(batch)
            for leaf in leaves:
                leaf.index_select(0, index)
            update(index, error)

        sides = {"buffer": ours, "by hand": by_hand}
        if device.type == "cuda":
            sides["by hand, captured"] = capture(by_hand, device)
        times = measure(sides, device, dry=dry)
        figures |= add_prefix(f"{batch} rows", {**times, "buffer / by hand": times["buffer"] / times["by hand"]})
    return {**figures, "tree": str(getattr(buffer.sampler, "backend", ""))}


def pixels(where: str, device: torch.device, dry: bool) -> Figures:
    """Measure samples of 84 x 84 x 4 pixels of 100,000 rows on the device against `index_select`; 6 seconds, 2.8 GB.

    Args:
        where: ``"device"`` or ``"host"``: where the rows are stored. From the host each sample is copied to the device.
        device: where samples are wanted.
        dry: 100 rows, on the CPU.
    """
    home = device if where == "device" else torch.device("cpu")
    rows, chunk, figures = (100, 50, Figures()) if dry else (100_000, 2000, Figures())
    storage = LazyTensorStorage(rows, device=home)
    pin = where == "host" and device.type == "cuda"
    uniform = ReplayBuffer(storage=storage, pin_memory=pin)
    part = TensorDict(
        pixels=torch.randint(256, (chunk, 84, 84, 4), dtype=torch.uint8, device=home),
        reward=torch.randn(chunk, 1, device=home),
        batch_size=[chunk],
    )
    for _ in range(rows // chunk):
        uniform.extend(part)
    sampler = PrioritizedSampler(rows, alpha=0.6, beta=0.4, device=home)
    ranked = ReplayBuffer(storage=storage, sampler=sampler, pin_memory=pin)
    cells: Any = storage._cells
    frames, reward = cells["pixels"], cells["reward"]
    sources = {"uniform": uniform, "prioritized": ranked}
    for batch in (8,) if dry else (256, 1024):

        def ours(buffer: ReplayBuffer, batch: int = batch) -> object:
            return buffer.sample(batch).to(device, non_blocking=True)

        target = torch.empty(batch, *frames.shape[1:], dtype=torch.uint8, pin_memory=pin, device=home)

        def by_hand(batch: int = batch, target: Tensor = target) -> tuple[Tensor, Tensor]:
            index = torch.randint(rows, (batch,), device=home)
            torch.index_select(frames, 0, index, out=target)
            return target.to(device, non_blocking=True), reward.index_select(0, index).to(device, non_blocking=True)

        sides: dict[str, Call] = {name: partial(ours, buffer) for name, buffer in sources.items()}
        times = measure({**sides, "by hand": by_hand}, device, dry=dry, seconds=1.5)
        moved = batch * frames[0].numel() * (2 if where == "device" else 1)
        floor = 1e6 * moved / (BANDWIDTH if where == "device" else 5e10)
        ratios = {f"{name} / by hand": times[name] / times["by hand"] for name in sides}
        figures |= add_prefix(f"{batch} rows", {**times, **ratios, "floor of the memory or the bus": floor})
    return figures


# -------------------------------------------------------------------------------------------- recurrent layers

Case = tuple[str, int, int, int, str]
"""Cell, batch, time, hidden, precision."""

CASES: tuple[Case, ...] = (
    ("lstm", 64, 128, 256, "tf32"),  # the goal; the others differ in one or two sizes
    ("gru", 64, 128, 256, "tf32"),
    ("lstm", 64, 128, 64, "tf32"),
    ("lstm", 64, 128, 128, "tf32"),
    ("lstm", 64, 128, 512, "tf32"),
    ("lstm", 16, 128, 256, "tf32"),
    ("lstm", 256, 128, 256, "tf32"),
    ("lstm", 64, 32, 256, "tf32"),
    ("lstm", 64, 512, 256, "tf32"),
    ("lstm", 256, 32, 64, "tf32"),
    ("gru", 256, 32, 128, "tf32"),
    ("gru", 16, 512, 64, "tf32"),
    ("lstm", 64, 128, 256, "ieee"),
    ("lstm", 4096, 16, 128, "tf32"),
    ("lstm", 32_768, 16, 64, "tf32"),
)
DRY_CASES: tuple[Case, ...] = (("lstm", 2, 3, 20, "ieee"), ("gru", 2, 3, 20, "ieee"))


def said(case: Case) -> str:
    """Name of a case."""
    cell, batch, steps, hidden, precision = case
    return f"{cell} T {steps} B {batch} H {hidden} {precision}"


def recurrent_sides(device: torch.device) -> ModuleType:
    """Return the sides of rl-recurrent-triton's benchmark.

    Raises:
        Skipped: if its kernels do not run here.
    """
    from rl.recurrent_triton import why_not

    if reason := why_not(device):
        raise Skipped(f"{reason}; TRITON_INTERPRET=1 tries this on a CPU")
    return script("rl-recurrent-triton/benchmarks/recurrent_sides.py")


def layer_calls(case: Case, device: torch.device) -> dict[str, Call]:
    """Measure a layer with resets, forward and both passes, in the kernels, in cuDNN without resets, and with `pad`."""
    sides = recurrent_sides(device)
    cell, batch, steps, hidden, _ = case
    problem = sides.Problem(sides.Size(cell, batch, steps, hidden, 50), device, torch.float32)
    leaves = [problem.x, *problem.layer.parameters()]
    runs = {"triton": sides.triton(problem), "cuDNN": sides.cudnn(problem), "pad": sides.pad(problem)}

    def without_grad(run: Any) -> None:
        with torch.no_grad():
            run()

    def with_grad(run: Any) -> None:
        torch.autograd.grad(run(), leaves, problem.grad)

    calls: dict[str, Call] = {f"{name}, forward": partial(without_grad, run) for name, run in runs.items()}
    return calls | {name: partial(with_grad, run) for name, run in runs.items()}


def layer(case: Case, device: torch.device, dry: bool) -> Figures:
    """Measure a layer with resets at 2 % of the steps against cuDNN without resets and `pad`; about 2 seconds.

    All of it runs as a module does: projections, recurrence and weight gradients.
    """
    with products(case[-1]):
        calls = layer_calls(case, device)
        if device.type == "cuda":
            calls["triton, captured"] = capture(calls["triton"], device)
        times = measure(calls, device, dry=dry, seconds=1.2)
    ratios = {
        f"{left} / {right}{way}": times[left + way] / times[right + way]
        for way in ("", ", forward")
        for left, right in (("triton", "cuDNN"), ("pad", "triton"))
    }
    return {**ratios, **times}


def _layers(device: torch.device, dry: bool) -> Figures:
    """All checks of recurrent layers with the smallest sizes."""
    torch.set_num_threads(1)
    figures: Figures = {}
    for case in DRY_CASES:
        figures |= add_prefix(said(case), layer(case, device, dry))
    return figures


def interpreted_layers(device: torch.device, dry: bool) -> Figures:
    """Do what the checks of recurrent layers do, on a CPU: in a process that imports Triton as an interpreter.

    Raises:
        Skipped: if Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise Skipped("Triton is not installed")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_layers, device, dry).result()
    finally:
        os.environ.pop("TRITON_INTERPRET")
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


# ------------------------------------------------------------------------------------------ returns of episodes


def returns(name: str, device: torch.device, dry: bool) -> Figures:
    """GAE or V-trace of [4096, 64] steps as the library computes it on the device; about 2 seconds.

    Against a loop over time in plain torch, captured too, and against the time in which memory moves its bytes.
    """
    torch.manual_seed(0)
    size = (8, 6, 1) if dry else (4096, 64, 1)
    value, after, reward, log_pi, log_mu = (torch.randn(size, device=device) for _ in range(5))
    done = torch.rand(size, device=device) < 0.02
    terminated = done & (torch.rand(size, device=device) < 0.5)
    rest = value, after, reward, done, terminated
    moved = 5 * 4 + 2  # bytes of an element: three inputs, two outputs, two flags
    if name == "GAE":
        ours = partial(vec_generalized_advantage_estimate, 0.99, 0.95, *rest)
        loop: Callable[[], Any] = partial(generalized_advantage_estimate, 0.99, 0.95, *rest)
        exact = loop()
    else:
        moved += 2 * 4
        ours = partial(vtrace_advantage_estimate, 0.99, log_pi, log_mu, *rest)
        loop = partial(vtrace_loop, 0.99, log_pi, log_mu, *rest)
        exact = loop()
    for found, wanted in zip(ours(), exact, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    sides: dict[str, Call] = {"ours": ours, "loop": loop}
    if device.type == "cuda":
        sides |= {f"{side}, captured": capture(call, device) for side, call in list(sides.items())}
    times = measure(sides, device, dry=dry)
    floor = 1e6 * moved * reward.numel() / BANDWIDTH
    best = times.get("ours, captured", times["ours"])
    ratios = {"loop / ours": times["loop"] / times["ours"], "ours, captured / floor": best / floor}
    return {**times, "floor of the memory": floor, **ratios}


def vtrace_loop(gamma: float, log_pi: Tensor, log_mu: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    """V-trace by its recursion, one step of time after another (Espeholt et al., 2018, remark 1)."""
    value, after, reward, done, terminated = rest
    rho = (log_pi - log_mu).exp().clamp_max(1)
    delta = rho * (reward + gamma * after * ~terminated - value)
    beyond, rows = torch.zeros_like(value[:, 0]), []
    for t in range(value.shape[1] - 1, -1, -1):
        beyond = delta[:, t] + gamma * rho[:, t] * beyond * ~done[:, t]
        rows.append(beyond)
    advantage = torch.stack(rows[::-1], 1)  # both thresholds are 1, so that both weights are the same
    return advantage, advantage + value


# --------------------------------------------------------------------------------------------- collection and PPO

STEPS = 32
RATE = 3e-4


class Task:
    """A native environment with networks of 2 x 64 units on a device.

    Args:
        name: ``"CartPole"`` or ``"Pendulum"``.
        count: number of copies.
        device: where everything is.
    """

    def __init__(self, name: str, count: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.name, self.count, self.device, self.frames = name, count, device, count * STEPS
        cartpole = name == "CartPole"
        self.env: Any = (
            CartPoleEnv([count], device=device, seed=0, categorical_action_encoding=True)
            if cartpole
            else PendulumEnv([count], device=device, seed=0)
        )
        net = partial(MLP, 4 if cartpole else 3, num_cells=[64, 64], activation_class=nn.Tanh, device=device)
        self.body = net(out_features=2)
        keys = ["logits"] if cartpole else ["loc", "scale"]
        self.actor = ProbabilisticActor(
            TensorDictModule(self.body if cartpole else Gaussian(self.body), ["observation"], keys),
            in_keys=keys,
            spec=self.env.action_spec,
            distribution_class=Categorical if cartpole else IndependentNormal,
            return_log_prob=True,
        )
        self.span = torch.tensor([torch.pi, 1.0], device=device)
        self.critic = ValueOperator(net(out_features=1), in_keys=["observation"])

    def collector(self, **options: Any) -> Collector:
        return Collector(self.env, self.actor, frames_per_batch=self.frames, **options)

    def rate(self, microseconds: float) -> float:
        """Frames per second."""
        return 1e6 * self.frames / microseconds

    # The same by hand: nothing but tensors.

    def start(self) -> Tensor:
        """State ``[N, k]`` of new episodes."""
        if self.name == "CartPole":
            return torch.rand(self.count, 4, device=self.device) * 0.1 - 0.05
        return (torch.rand(self.count, 2, device=self.device) * 2 - 1) * self.span

    def observe(self, state: Tensor) -> Tensor:
        if self.name == "CartPole":
            return state
        th, speed = state.unbind(-1)
        return torch.stack([th.cos(), th.sin(), speed], -1)

    def act(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return action and log-probability, both ``[N]``."""
        out = self.body(seen)
        if self.name == "CartPole":
            logits = out.log_softmax(-1)
            action = (torch.rand_like(logits[:, 0]) < logits[:, 1].exp()).long()
            return action, logits.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        loc, raw = out.unbind(-1)
        log_scale, noise = raw.clamp(-5, -2), torch.randn_like(loc)
        return loc.tanh() + log_scale.exp() * noise, -0.5 * noise.square() - log_scale - 0.9189385

    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Next state, reward ``[N]`` and end ``[N]``."""
        if self.name == "CartPole":
            x, speed, angle, turn = state.unbind(-1)
            cos, sin = angle.cos(), angle.sin()
            pull = (20.0 * action - 10.0 + 0.05 * turn.square() * sin) / 1.1
            bend = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
            acc = pull - 0.05 * bend * cos / 1.1
            state = torch.stack([x + 0.02 * speed, speed + 0.02 * acc, angle + 0.02 * turn, turn + 0.02 * bend], -1)
            over = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.2094395)
            return state, torch.ones_like(x), over
        th, speed = state.unbind(-1)
        torque = action.clamp(-2, 2)
        angle = (th + torch.pi).remainder(2 * torch.pi) - torch.pi
        cost = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        speed = (speed + (15.0 * th.sin() + 3.0 * torque) * 0.05).clamp(-8, 8)
        return torch.stack([th + speed * 0.05, speed], -1), -cost, torch.zeros_like(th, dtype=torch.bool)


def collect_by_hand(task: Task) -> tuple[Call, dict[str, Tensor]]:
    """Collect in plain torch into tensors ``[N, T, ...]`` that stay where they are; one CUDA graph holds it all."""
    state, out = task.start(), dict[str, Tensor]()

    @torch.no_grad()
    def run() -> None:
        rows: list[tuple[Tensor, ...]] = []
        now = state
        for _ in range(STEPS):
            seen = task.observe(now)
            action, log_prob = task.act(seen)
            after, reward, over = task.advance(now, action)
            rows.append((seen, action, log_prob, task.observe(after), reward, over))
            now = torch.where(over.unsqueeze(-1), task.start(), after)
        state.copy_(now)
        names = ("observation", "action", "log_prob", "after", "reward", "done")
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            if name in out:
                torch.stack(column, 1, out=out[name])
            else:
                out[name] = torch.stack(column, 1)

    run()
    return run, out


def captured_collector(task: Task, **options: Any) -> Collector | None:
    """Return a collector that replays whole steps from CUDA graphs; None where this version has none."""
    if task.device.type != "cuda" or "cudagraph" not in signature(Collector).parameters:
        return None
    collector = task.collector(cudagraph=True, **options)
    for _ in range(4):  # the third batch of one length is the first that is replayed
        collector.collect()
    return collector


def collection(name: str, count: int, device: torch.device, dry: bool) -> Figures:
    """Frames per second of `Collector` with everything on the device, in all its forms, against a loop by hand.

    About 4 seconds. ``no ids`` is without trajectory ids.
    """
    count = 4 if dry else count
    forms: dict[str, dict[str, Any]] = {"plain": {}, "plain, no ids": {"track_traj_ids": False}}
    if device.type == "cuda":
        forms["cudagraph_policy"] = {"cudagraph_policy": True}
    sides: dict[str, Call] = {}
    tasks = {form: Task(name, count, device) for form in forms}
    for form, options in forms.items():
        sides[form] = tasks[form].collector(**options).collect
    task = Task(name, count, device)
    for form, options in {"cudagraph": {}, "cudagraph, no ids": {"track_traj_ids": False}}.items():
        if (recorded := captured_collector(Task(name, count, device), **options)) is not None:
            sides[form] = recorded.collect
    loop, _ = collect_by_hand(task)
    sides["by hand"] = loop
    sides["by hand, captured"] = capture(loop, device)
    times = measure(sides, device, dry=dry, seconds=1.5)
    found = {f"frames/s, {form}": task.rate(us) for form, us in times.items()}
    ratios = {f"{form} / floor": times[form] / times["by hand, captured"] for form in times if "hand" not in form}
    best = max(found[f"frames/s, {form}"] for form in times if "hand" not in form)
    return {**found, "frames/s, best": best, **ratios}


EPOCHS, PARTS = 4, 4


class PPO:
    """Updates of PPO from collected batches: GAE, 4 epochs of 4 minibatches, clipped norm, fused Adam.

    Args:
        task: environment and networks.
    """

    def __init__(self, task: Task) -> None:
        self.task, device = task, task.device
        self.estimate = GAE(gamma=0.99, lmbda=0.95, value_network=task.critic)
        self.loss = ClipPPOLoss(task.actor, task.critic, normalize_advantage=True, diagnostics=False)
        self.optimizer = adam(self.loss.parameters(), device)
        self.index = torch.arange(task.frames // PARTS, device=device)
        self.rows: Any = None
        self.replay: Call | None = None

    def step(self, rows: TensorDictBase) -> None:
        """One minibatch."""
        out = self.loss(rows)
        (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
        nn.utils.clip_grad_norm_(self.loss.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def estimate_rows(self, batch: TensorDictBase) -> TensorDictBase:
        """Return the flat batch with advantages and only what the loss reads."""
        with torch.no_grad():
            return self.estimate(batch).select(*self.loss.in_keys, strict=False).reshape(-1)

    def minibatches(self) -> Iterator[Tensor]:
        for _ in range(EPOCHS):
            yield from torch.randperm(self.task.frames, device=self.task.device).chunk(PARTS)

    def eager(self, batch: TensorDictBase) -> None:
        """All updates from a batch."""
        rows = self.estimate_rows(batch)
        for index in self.minibatches():
            self.step(rows[index])

    def update_in_graph(self, batch: TensorDictBase) -> None:
        """Do the same; the update of a minibatch is replayed from a CUDA graph, which gathers its rows too."""
        rows = self.estimate_rows(batch)
        if self.rows is None:
            self.rows = rows.clone()
            self.replay = capture(lambda: self.step(self.rows[self.index]), self.task.device)
        self.rows.update_(rows)
        assert self.replay is not None
        for index in self.minibatches():
            self.index.copy_(index)
            self.replay()

    def update_all_in_graph(self, batch: TensorDictBase) -> None:
        """Do the same, from estimate to last update in one CUDA graph; order of rows by sorted random numbers."""
        if self.rows is None:
            self.rows = batch.clone()

            def updates() -> None:
                rows = self.estimate_rows(self.rows.copy())
                for _ in range(EPOCHS):
                    order = torch.rand(self.task.frames, device=self.task.device).argsort()
                    for index in order.chunk(PARTS):
                        self.step(rows[index])

            self.replay = capture(updates, self.task.device, warm_up=1)
        self.rows.update_(batch)
        assert self.replay is not None
        self.replay()


def ppo_by_hand(task: Task) -> Call:
    """Collect and update in plain torch, both in CUDA graphs; its loss has the terms of `ClipPPOLoss`."""
    device, critic = task.device, task.critic.module
    collect, data = collect_by_hand(task)
    parameters = [*task.body.parameters(), *critic.parameters()]
    optimizer = adam(parameters, device)

    def scores(seen: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        out = task.body(seen)
        if task.name == "CartPole":
            logits = out.log_softmax(-1)
            return logits.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(logits.exp() * logits).sum(-1)
        loc, raw = out.unbind(-1)
        log_scale = raw.clamp(-5, -2)
        log_prob = -0.5 * ((action - loc.tanh()) / log_scale.exp()).square() - log_scale - 0.9189385
        return log_prob, log_scale + 1.4189385

    def updates() -> None:
        with torch.no_grad():
            value, after = (critic(data[key]).squeeze(-1) for key in ("observation", "after"))
            going = ~data["done"]
            delta = data["reward"] + 0.99 * after * going - value
            total, rows = torch.zeros_like(delta[:, 0]), []
            for t in range(STEPS - 1, -1, -1):
                total = delta[:, t] + 0.9405 * total * going[:, t]
                rows.append(total)
            advantage = torch.stack(rows[::-1], 1)
            target = (advantage + value).flatten()
            flat = [data[key].flatten(0, 1) for key in ("observation", "action", "log_prob")]
            flat += [advantage.flatten(), target]
        for _ in range(EPOCHS):
            for index in torch.rand(task.frames, device=device).argsort().chunk(PARTS):
                seen, action, old, gain, aim = (leaf.index_select(0, index) for leaf in flat)
                gain = (gain - gain.mean()) / gain.std(correction=0).clamp_min(1e-6)
                log_prob, entropy = scores(seen, action)
                ratio = (log_prob - old).exp()
                gained = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                miss = nn.functional.smooth_l1_loss(critic(seen).squeeze(-1), aim)
                (miss - gained - 0.01 * entropy.mean()).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    gather, learn = capture(collect, device), capture(updates, device, warm_up=1)

    def train() -> None:
        gather()
        learn()

    return train


def training(name: str, count: int, device: torch.device, dry: bool) -> Figures:
    """Frames per second of PPO with everything on the device, against plain torch in two CUDA graphs; about 6 seconds.

    ``graph`` replays each minibatch from a CUDA graph, ``all graphs`` also collects from one where the collector can.
    """
    count = 4 if dry else count
    sides: dict[str, Call] = {}
    tasks = {form: Task(name, count, device) for form in ("plain", "graph", "all graphs", "by hand, captured")}

    def trainer(collect: Callable[[], Any], update: Callable[[Any], None]) -> Call:
        return lambda: update(collect())

    for form in ("plain", "graph"):
        learner = PPO(tasks[form])
        update = learner.eager if form == "plain" else learner.update_in_graph
        sides[form] = trainer(tasks[form].collector().collect, update)
    if (recorded := captured_collector(tasks["all graphs"])) is not None:
        sides["all graphs"] = trainer(recorded.collect, PPO(tasks["all graphs"]).update_in_graph)
    for _ in range(4):
        for call in sides.values():
            call()
    sides["by hand, captured"] = ppo_by_hand(tasks["by hand, captured"])
    times = measure(sides, device, dry=dry, seconds=2.0)
    rates = {f"frames/s, {form}": tasks[form].rate(us) for form, us in times.items()}
    best = min(us for form, us in times.items() if "hand" not in form)
    ratios = {f"{form} / floor": times[form] / times["by hand, captured"] for form in times if "hand" not in form}
    return {**rates, "frames/s, best": tasks["plain"].rate(best), **ratios}


def all_in_a_graph(device: torch.device, dry: bool) -> Figures:
    """PPO on 4,096 CartPole copies with GAE and all 16 updates in one CUDA graph; about 3 seconds.

    Batches come without trajectory ids, as the order of these is checked on the host. Raises if it cannot be captured.
    """
    task = Task("CartPole", 4 if dry else 4096, device)
    learner, collector = PPO(task), task.collector(track_traj_ids=False)
    batch = collector.collect()
    learner.update_all_in_graph(batch)
    times = measure({"updates": lambda: learner.update_all_in_graph(batch)}, device, dry=dry)
    before = [one.clone() for one in learner.loss.parameters()]
    learner.update_all_in_graph(batch)
    assert any(bool((a != b).any()) for a, b in zip(before, learner.loss.parameters(), strict=True)), "nothing moved"
    assert all(bool(one.isfinite().all()) for one in learner.loss.parameters()), "a parameter is not finite"
    return times | {"frames/s, updates alone": task.rate(times["updates"])}


# ------------------------------------------------------------------------------------------------------------ SAC


def sac(rows: int, device: torch.device, dry: bool) -> Figures:
    """One SAC update with 2 x 256 networks, eager and in a CUDA graph, against the same by hand; about 2 seconds.

    Both sides are those of rl-objectives' ``benchmarks/sac_update.py``; their losses have to agree.
    """
    parts = script("rl-objectives/benchmarks/sac_update.py")
    parts.ROWS = 8 if dry else rows
    torch.manual_seed(0)
    with device:
        batch = parts.make_batch()
        loss, update = parts.ours(batch, partial(adam, device=device))
        plain = parts.by_hand(batch, loss, partial(adam, device=device))
    for _ in range(3):  # the same numbers, also after updates
        torch.manual_seed(1)
        # Detached: a graph of autograd that is alive when an update is captured ties it to the stream of that graph.
        found = {key: value.detach() for key, value in update().items()}
        torch.manual_seed(1)
        wanted = {key: value.detach() for key, value in plain().items()}
        for key, expected in wanted.items():
            torch.testing.assert_close(found[key], expected, rtol=1e-2, atol=1e-2)
    sides: dict[str, Call] = {"ours": update, "by hand": plain}
    if device.type == "cuda":
        sides |= {f"{name}, captured": capture(call, device) for name, call in list(sides.items())}
    times = measure(sides, device, dry=dry)
    ways = ("", ", captured") if device.type == "cuda" else ("",)
    return {**times, **{f"ours / by hand{way}": times[f"ours{way}"] / times[f"by hand{way}"] for way in ways}}


# ------------------------------------------------------------------------------------------------------ the list


def checks(context: Context) -> list[Check]:
    """Return the checks of this section, the most important first."""
    device, dry = context.device, context.dry
    found: list[Check] = []

    def add(name: str, run: Callable[..., Figures], *args: Any, seconds: float = 60.0, goals: Any = ()) -> None:
        found.append(Check(name, partial(run, *args, device, dry), goals=goals, seconds=seconds))

    of_tree = (Goal("256 rows, cuda", most=60), Goal("256 rows, captured", most=20))
    of_layer = (Goal("triton / cuDNN", most=1.3), Goal("pad / triton", least=3))
    add("priority tree of 10^6 rows", tree, 10**6, goals=of_tree)
    add("4,096 CartPole copies, collected", collection, "CartPole", 4096, goals=(Goal("frames/s, best", least=5e6),))
    add("4,096 CartPole copies, PPO", training, "CartPole", 4096, goals=(Goal("frames/s, best", least=2e6),))
    add("SAC update of 256 rows", sac, 256, goals=(Goal("ours / by hand, captured", most=1.25),))
    if dry:
        add("recurrent layers in Triton's interpreter", interpreted_layers)
    for case in () if dry else CASES:
        add(f"{said(case)}, against cuDNN and pad", layer, case, goals=of_layer if case is CASES[0] else (), seconds=90)
    for name in ("GAE", "V-trace"):
        add(f"{name} of [4096, 64] steps", returns, name)
    add("prioritized buffer of 10^6 rows", whole_buffer)
    for where in ("device", "host"):
        add(f"samples of pixels stored on the {where}", pixels, where)
    add("SAC update of 4,096 rows", sac, 4096)
    add("priority tree of 10^7 rows", tree, 10**7)
    add("32,768 CartPole copies, collected", collection, "CartPole", 32_768)
    add("32,768 CartPole copies, PPO", training, "CartPole", 32_768)
    add("4,096 Pendulum copies, collected", collection, "Pendulum", 4096)
    add("4,096 Pendulum copies, PPO", training, "Pendulum", 4096)
    add("32,768 Pendulum copies, collected", collection, "Pendulum", 32_768)
    add("PPO updates in one CUDA graph", all_in_a_graph)
    return found
