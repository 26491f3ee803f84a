"""Checks of the section "recipes": collectors, replay, losses and recipes with everything on the device.

A comparison with the CPU feeds both sides the same networks, batches and random numbers, so that only rounding differs.
Without a device (``dry``) the same code runs on the CPU with the smallest sizes; what needs CUDA is skipped after its
code has run once.
"""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_checks.harness import Check, Context, Figures, Gaussian, Goal, Skipped, wait
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from rl.collectors import Collector
from rl.core.specs import Categorical as CategoricalSpec
from rl.core.specs import Composite, Unbounded
from rl.envs import CartPoleEnv, PendulumEnv, RewardSum, StepCounter, TransformedEnv
from rl.envs.native._base import NativeEnv
from rl.modules import (
    MLP,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from rl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate, TD3Loss
from rl.objectives.value import GAE, TDLambdaEstimator, VTrace
from rl.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from rl.trainers import (
    DQNConfig,
    MAPPOConfig,
    PPOConfig,
    Run,
    RunConfig,
    SACConfig,
    TD3Config,
    evaluate,
    load_policy,
    load_run,
    make_env,
)
from rl.trainers.actors import on_policy_critic
from rl.trainers.algorithms import mappo, ppo
from rl.trainers.algorithms.dqn import dqn_loss, dqn_policy
from rl.trainers.algorithms.sac import policy as sac_policy
from rl.trainers.algorithms.sac import sac_loss
from rl.trainers.algorithms.td3 import policy as td3_policy
from rl.trainers.algorithms.td3 import td3_loss
from rl.trainers.envs import env_options
from rl.trainers.loops import off_policy, q_learning
from rl.trainers.replay import stored_keys

CPU = torch.device("cpu")
FLAGS = ("reward", "done", "terminated")
NOISY = ("sac", "td3")
"""Recipes whose losses draw random numbers."""
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
"""Largest differences of what was computed once, in float32, on two devices."""
DRIFT = {"rtol": 1e-2, "atol": 2e-3}
"""The same after several steps of Adam, whose first steps follow the sign of a gradient, however small."""


# ---------------------------------------------------------------------------------------------------- tools


@contextmanager
def exact() -> Generator[None]:
    """Multiply matrices in float32, not in TF32, within the block."""
    kinds: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "rnn", None)]
    kinds = [kind for kind in kinds if hasattr(kind, "fp32_precision")]
    before = [kind.fp32_precision for kind in kinds]
    for kind in kinds:
        kind.fp32_precision = "ieee"
    try:
        yield
    finally:
        for kind, old in zip(kinds, before, strict=True):
            kind.fp32_precision = old


class NumbersOfTheCPU(TorchDispatchMode):
    """Draw all random numbers from the generator of the CPU and move them, so that both devices get the same."""

    STARTS = ("rand", "normal", "uniform", "bernoulli", "exponential", "multinomial", "geometric", "log_normal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        if not name.startswith(self.STARTS):
            return func(*args, **kwargs)
        tensors = [one for one in args if isinstance(one, Tensor)]
        device = torch.device(kwargs.get("device") or (tensors[0].device if tensors else CPU))
        if device.type == "cpu":
            return func(*args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = CPU
        out = func(*tree_map_only(Tensor, Tensor.cpu, args), **tree_map_only(Tensor, Tensor.cpu, kwargs))
        if name.endswith("_"):
            return args[0].copy_(out)
        return tree_map_only(Tensor, lambda one: one.to(device), out)


def alike(found: Any, expected: Any, what: str, **tolerance: float) -> float:
    """Raise if two tensors differ by more than rounding; returns the largest absolute difference."""
    found, expected = (torch.as_tensor(one).detach().cpu().double() for one in (found, expected))
    shapes = tuple(found.shape), tuple(expected.shape)
    assert shapes[0] == shapes[1], f"{what}: {shapes[0]} on the device, {shapes[1]} on the CPU"
    tolerance = {**ROUNDING, **tolerance}
    if not torch.allclose(found, expected, equal_nan=True, **tolerance):
        worst = int((found - expected).abs().nan_to_num(math.inf).flatten().argmax())
        raise AssertionError(
            f"{what}: {found.flatten()[worst]:.7g} on the device, {expected.flatten()[worst]:.7g} on the CPU, at"
            f" {worst} of {found.numel()}; allowed are {tolerance}"
        )
    return float((found - expected).abs().max()) if found.numel() else 0.0


def tensors_of(thing: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a module, an optimizer, a TensorDict or containers of them, with their names."""
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, nn.Module):
        yield from ((f"{name}.{key}", one) for key, one in [*thing.named_parameters(), *thing.named_buffers()])
    elif isinstance(thing, torch.optim.Optimizer):
        for at, state in enumerate(thing.state.values()):
            yield from tensors_of(state, f"{name}.{at}")
    elif isinstance(thing, TensorDictBase):
        yield from ((f"{name}{key}", one) for key, one in thing.items(True, True))
    elif isinstance(thing, Mapping):
        for key, one in thing.items():
            yield from tensors_of(one, f"{name}.{key}")
    elif isinstance(thing, list | tuple):
        for at, one in enumerate(thing):
            yield from tensors_of(one, f"{name}.{at}")


def all_on(thing: Any, device: torch.device, what: str) -> None:
    """Raise if a tensor is elsewhere, or if there is none."""
    found = list(tensors_of(thing))
    assert found, f"{what} has no tensors"
    elsewhere = [f"{name} on {one.device}" for name, one in found if one.device.type != device.type]
    assert not elsewhere, f"{what} should be on {device}: {', '.join(elsewhere[:8])} ({len(elsewhere)} of {len(found)})"


def finite(thing: Any, what: str) -> None:
    """Raise if a floating-point number is infinite or NaN."""
    bad = [name for name, one in tensors_of(thing) if one.is_floating_point() and not bool(one.isfinite().all())]
    assert not bad, f"{what} is not finite: {', '.join(bad[:8])}"


def places_that_wait(call: Callable[[], object], device: torch.device) -> Counter[str]:
    """Where `call` makes the host wait for the device, as ``file:line function``, with how often.

    All places are reported, where `torch.cuda.set_sync_debug_mode` would raise at the first.
    """
    found: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA" in str(message):
            frames = [frame for frame in traceback.extract_stack()[:-1] if not _is_of_torch(frame.filename)]
            place = next((one for one in reversed(frames) if "/rl/" in one.filename), frames[-1])
            found[f"{place.filename.rpartition('/src/')[2]}:{place.lineno} {place.name}"] += 1

    wait(device)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return found


def _is_of_torch(path: str) -> bool:
    return path.startswith("<") or any(part in path for part in ("/torch/", "/tensordict/", "/warnings.py"))


def never_waits(call: Callable[[], object], device: torch.device, what: str) -> None:
    """Raise if `call`, after two calls that warm up, makes the host wait; without CUDA it is only called.

    Raises:
        Skipped: without CUDA.
    """
    for _ in range(2):
        call()
    if device.type != "cuda":
        raise Skipped("counting what waits for the device needs CUDA; the code ran on the CPU")
    found = places_that_wait(call, device)
    listed = "; ".join(f"{place} ({count} times)" for place, count in found.most_common(12))
    assert not found, f"{what} waits for the device {found.total()} times: {listed}"


# ------------------------------------------------------------------------------------------ a group of agents


class PairEnv(NativeEnv):
    """Two agents on a line, each paid for being near its target; ends when one is far away.

    The whole state is in the observation ``[*B, 2, 3]``: own place, that of the other, target.
    """

    def __init__(self, batch_size: Iterable[int] = (), device: Any = None, seed: int | None = None) -> None:
        super().__init__(batch_size, device, seed)
        self.observation_spec = Composite({("agents", "observation"): Unbounded((2, 3))})
        self.action_spec = Composite({("agents", "action"): CategoricalSpec(2, shape=(2,))})
        self.reward_spec = Composite({("agents", "reward"): Unbounded((2, 1))})

    def _reset_leaves(self, mask: Tensor | None) -> dict[Any, Tensor]:
        del mask
        place, target = self._rand(2, 2).sub(0.5).unbind(-1)
        return {("agents", "observation"): self._observe(place, target), **self._flags(place[..., 0] > 9)}

    def _step_leaves(self, root: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        place, _, target = root["agents", "observation"].unbind(-1)
        place = place + 0.2 * root["agents", "action"] - 0.1
        reward = -(place - target).abs().unsqueeze(-1)
        over = (place.abs() > 1).any(-1)
        seen = self._observe(place, target)
        return {("agents", "observation"): seen, ("agents", "reward"): reward, **self._flags(over)}

    @staticmethod
    def _observe(place: Tensor, target: Tensor) -> Tensor:
        return torch.stack([place, place.flip(-1), target], -1)


# ------------------------------------------------------------------------------------- the recipes and their parts


@dataclass
class Trainee:
    """What a recipe builds, with its own learner.

    Args:
        env: the environment.
        acting: what collects.
        state: module with everything that is trained.
        take: gives a collected batch to the learner.
        update: a round of updates, with the figures that it logs.
        learner: the recipe's learner.
        kept: what else has tensors, for example the replay buffer's rows.
    """

    env: Any
    acting: Any
    state: nn.Module
    take: Callable[[TensorDictBase], object]
    update: Callable[[], Callable[[], dict[str, float]]]
    learner: Any
    kept: Callable[[], Any] = field(default=dict)


def config_of(name: str, device: torch.device, *, dry: bool, **changes: Any) -> RunConfig:
    """Return settings of a short run of a recipe; ``lstm`` is ppo with a memory."""
    small: dict[str, Any] = {
        "device": str(device),
        "num_envs": 8,
        "frames_per_batch": 128 if dry else 512,
        "total_frames": 256 if dry else 2048,
        "num_cells": (16,) if dry else (64, 64),
        "eval_every": 10**6,
        "eval_episodes": 2,
        "final_eval_episodes": 2,
        "log_every": 64,
        "checkpoint_every": 10**6,
        "loggers": ("csv",),
    }
    size = 64 if dry else 128
    replayed = {
        "batch_size": size,
        "learning_starts": 0,
        "buffer_size": 4096,
        "utd_ratio": 8 / small["frames_per_batch"],
    }
    own: dict[str, tuple[type[RunConfig], dict[str, Any]]] = {
        "ppo": (PPOConfig, {"env": "cartpole", "minibatch_size": size, "epochs": 2}),
        "lstm": (
            PPOConfig,
            {
                "env": "cartpole",
                "minibatch_size": size,
                "epochs": 2,
                "policy": "lstm",
                "recurrent_size": 32,
                "sequence_length": 16,
            },
        ),
        "mappo": (
            MAPPOConfig,
            {"env": f"{__name__}:PairEnv", "minibatch_size": size, "epochs": 2, "max_episode_steps": 20},
        ),
        "dqn": (DQNConfig, {"env": "cartpole", **replayed}),
        "sac": (SACConfig, {"env": "pendulum", **replayed}),
        "td3": (TD3Config, {"env": "pendulum", **replayed}),
    }
    kind, settings = own[name]
    return kind(**{**small, **settings, **changes})


def trainee(name: str, config: Any) -> Trainee:
    """Return the parts of a recipe, made as the recipe makes them."""
    torch.manual_seed(0)
    env = make_env(config.env, config.num_envs, seed=1, device=config.device, **env_options(config))
    if name in ("ppo", "lstm", "mappo"):
        return _on_policy(name, config, env)
    return _q_learning(config, env) if name == "dqn" else _off_policy(name, config, env)


def _on_policy(name: str, config: Any, env: Any) -> Trainee:
    actor = (mappo if name == "mappo" else ppo).policy(config, env)
    critic = mappo.critic(config, env) if name == "mappo" else on_policy_critic(config, env)
    learner = (mappo if name == "mappo" else ppo).updater(config, env, actor, critic)
    acting = actor if config.policy == "mlp" else TensorDictSequential(actor, critic)
    held: dict[str, TensorDictBase] = {}

    def take(batch: TensorDictBase) -> None:
        with torch.no_grad():
            held["batch"] = learner.estimate(batch)

    state = nn.ModuleList([actor, critic])
    return Trainee(env, acting, state, take, lambda: learner(held["batch"]), learner, lambda: held["batch"])


def _off_policy(name: str, config: Any, env: Any) -> Trainee:
    make_policy, make_loss = {"sac": (sac_policy, sac_loss), "td3": (td3_policy, td3_loss)}[name]
    policy = make_policy(config, env)
    loss = make_loss(config, env, policy)
    buffer = off_policy._buffer(config)
    every = config.policy_delay if name == "td3" else 1
    keys = stored_keys(loss, env)
    learner = off_policy.OffPolicyUpdater(config, loss, buffer, every, (0.9, 0.999))

    def store(batch: TensorDictBase) -> None:
        buffer.extend(batch.select(*keys).reshape(-1))

    return Trainee(env, policy, loss, store, lambda: learner(10**6), learner, lambda: buffer[:])


def _q_learning(config: Any, env: Any) -> Trainee:
    policy = dqn_policy(config, env)
    loss = dqn_loss(config, env, policy)
    buffer = q_learning.transitions_buffer(config)
    keys = stored_keys(loss, env)
    learner = q_learning.QUpdater(config, loss, buffer, 0)

    def store(batch: TensorDictBase) -> None:
        buffer.extend(batch.select(*keys).reshape(-1))

    return Trainee(env, policy, loss, store, lambda: learner(10**6, 10**6), learner, lambda: buffer[:])


def losses_of(learner: Any) -> list[dict[str, Tensor]]:
    """Return a list that gets the losses of each following update."""
    seen: list[dict[str, Tensor]] = []
    step = learner.step

    def record(out: Any, *args: Any) -> Any:
        norm = step(out, *args)
        values = {**dict(out.items()), **({} if norm is None else {"gradient_norm": norm})}
        seen.append({str(key): one.detach() for key, one in values.items() if one.numel() == 1})
        return norm

    learner.step = record
    return seen


def collect_batch(one: Trainee, config: Any) -> TensorDictBase:
    """Return a batch that the trainee collects."""
    collector = Collector(one.env, one.acting, frames_per_batch=config.frames_per_batch)
    return collector.collect()


def same_losses(name: str, device: torch.device, dry: bool) -> Figures:
    """Check that the recipe's updates on the device give the losses of those on the CPU.

    Both sides have the same weights and the batch that the CPU collected. Indices of minibatches come from the
    generator of the CPU in both, and so does here all noise.
    """
    here_config, there_config = (config_of(name, where, dry=dry) for where in (CPU, device))
    here, there = trainee(name, here_config), trainee(name, there_config)
    there.state.load_state_dict(here.state.state_dict())
    batch = collect_batch(here, here_config)
    losses: list[list[dict[str, Tensor]]] = []
    with exact():
        for side, where in ((here, CPU), (there, device)):
            side.take(batch.clone().to(where))
            seen = losses_of(side.learner)
            torch.manual_seed(3)
            with NumbersOfTheCPU() if name in NOISY else nullcontext():  # a mode may change which kernels run
                figures = side.update()
            finite({key: torch.tensor(value) for key, value in figures().items()}, f"figures of {name} on {where}")
            losses.append(seen)
    assert len(losses[0]) == len(losses[1]) > 1, f"{len(losses[0])} updates on the CPU, {len(losses[1])} on the device"
    worst, elsewhere = 0.0, set[str]()
    for number, (expected, found) in enumerate(zip(*losses, strict=True)):
        assert expected.keys() == found.keys(), f"update {number}: {expected.keys()} and {found.keys()}"
        for key, value in expected.items():
            if found[key].device.type != device.type:
                elsewhere.add(f"{key} on {found[key].device}")  # reported last: numbers say more
            tolerance = {} if number == 0 else DRIFT
            worst = max(worst, alike(found[key], value, f"{name}, update {number}, {key}", **tolerance))
    listed = ", ".join(sorted(elsewhere))
    assert not elsewhere, f"the losses agree, but outputs of {name} should be on {device}: {listed}"
    all_on(there.state, device, f"networks of {name}")
    all_on(there.kept(), device, f"rows of {name}")
    return {"updates": float(len(losses[0])), "largest difference of a loss": worst}


@contextmanager
def spy() -> Generator[dict[str, Any]]:
    """Within the block, the parts and the batches of a run are noted."""
    seen: dict[str, Any] = {"batches": []}
    training, record = Run.training, Run.record_episodes

    def note_training(run: Run, **options: Any) -> Any:
        seen["parts"] = options["parts"]
        return training(run, **options)

    def noted_record(run: Run, batch: TensorDictBase) -> None:
        seen["batches"].append({one.device.type for _, one in tensors_of(batch)})
        record(run, batch)

    Run.training, Run.record_episodes = note_training, noted_record
    try:
        yield seen
    finally:
        Run.training, Run.record_episodes = training, record


def train_recipe(name: str, config: RunConfig, out: Path, **options: Any) -> Any:
    """Train with the public function of a recipe; `out` may be a run that `options` resumes."""
    from rl.core.registry import load

    train = load("recipe", {"lstm": "ppo"}.get(name, name)).train
    return train(config, **({} if "resume" in options else {"out": out}), display="none", **options)


def end_to_end(name: str, device: torch.device, dry: bool, **changes: Any) -> Figures:
    """Check that the public function of a recipe trains on the device, and everything of it is there."""
    config = config_of(name, device, dry=dry, **changes)
    with tempfile.TemporaryDirectory() as folder, spy() as seen:
        result = train_recipe(name, config, Path(folder, "run"))
        with Path(folder, "run", "metrics.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    assert result.train_frames == config.total_frames, f"trained {result.train_frames} frames of {config.total_frames}"
    assert math.isfinite(result.eval_return_mean), f"the return of the evaluation is {result.eval_return_mean}"
    last = {key: value for key, value in rows[-1].items() if key.startswith("train/")}
    bad = [f"{key}={value!r}" for key, value in last.items() if not value or not math.isfinite(float(value))]
    if name in ("sac", "td3"):  # no entropy of td3, for example: a column without a value
        bad = [text for text in bad if not text.endswith("=''")]
    assert last, f"{name} wrote no metrics"
    assert not bad, f"metrics of {name} are not finite: {', '.join(bad)}"
    for part, one in seen["parts"].items():
        if isinstance(one, nn.Module):
            all_on(one, device, f"the part {part} of {name}")
            finite(one, f"the part {part} of {name}")
        elif isinstance(one, torch.optim.Optimizer):
            moments = [[state[key] for key in state if key != "step"] for state in one.state.values()]
            all_on(moments, device, f"the optimizer of {name}")
        elif isinstance(one, ReplayBuffer):
            all_on(one[:], device, f"the rows in the buffer of {name}")
    devices = set().union(*seen["batches"])
    assert devices == {device.type}, f"batches of {name} are on {sorted(devices)}"
    return {"frames": float(result.train_frames), "seconds": result.train_seconds}


# --------------------------------------------------------------------------------------- everything on the device


def cartpole_parts(env: Any, device: torch.device) -> tuple[Any, Any]:
    """Actor and critic of the native CartPole."""
    net = partial(MLP, 4, num_cells=[32], activation_class=nn.Tanh, device=device)
    actor = ProbabilisticActor(
        TensorDictModule(net(out_features=2), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    return actor, ValueOperator(net(out_features=1), in_keys=["observation"])


def pendulum_parts(env: Any, device: torch.device, kind: Any = TanhNormal) -> tuple[Any, Any]:
    """Actor and critic of the native Pendulum."""
    net = partial(MLP, 3, num_cells=[32], activation_class=nn.Tanh, device=device)
    actor = ProbabilisticActor(
        TensorDictModule(Gaussian(net(out_features=2)), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=kind,
        return_log_prob=True,
    )
    return actor, ValueOperator(net(out_features=1), in_keys=["observation"])


PARTS = {"pendulum": (PendulumEnv, pendulum_parts), "cartpole": (CartPoleEnv, cartpole_parts)}


def returns_by_hand(reward: Tensor, done: Tensor) -> Tensor:
    """Sum of the rewards of the running episode after each step ``[B, T]``, which begins with the first step."""
    total, sums = torch.zeros_like(reward[:, 0]), []
    for step in range(reward.shape[1]):
        total = total + reward[:, step]
        sums.append(total)
        total = total.masked_fill(done[:, step], 0)
    return torch.stack(sums, 1)


def update_ppo(loss: Any, optimizer: torch.optim.Optimizer, rows: TensorDictBase) -> TensorDictBase:
    """Four updates from shuffled quarters of the rows; the losses of the last one."""
    for index in torch.randperm(len(rows), device=rows["advantage"].device).chunk(4):
        out = loss(rows[index])
        optimizer.zero_grad()
        (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
        nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
        optimizer.step()
    return out


def ppo_by_hand(which: str, device: torch.device, dry: bool) -> Figures:
    """Collector, transforms, GAE, ClipPPOLoss and Adam with a native environment."""
    make, parts = PARTS[which]
    torch.manual_seed(0)
    count, steps = (8, 24) if dry else (4096, 24)
    env = make(batch_size=[count], device=device, seed=0)
    env = TransformedEnv(TransformedEnv(env, StepCounter(max_steps=10)), RewardSum())
    actor, critic = parts(env, device)
    estimate = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, actor, frames_per_batch=count * steps)
    out: Any = {}
    for number in range(2):
        batch = collector.collect()
        all_on(batch, device, f"batch of {which}")
        if number == 0:
            reward, done = (batch["next", key].squeeze(-1).cpu() for key in ("reward", "done"))
            alike(batch["next", "episode_reward"].squeeze(-1), returns_by_hand(reward, done), "episode_reward")
            lengths = returns_by_hand(torch.ones_like(reward), done)
            alike(batch["next", "step_count"].squeeze(-1), lengths, "step_count", rtol=0, atol=0)
            assert float(lengths.max()) == 10, f"an episode had {float(lengths.max())} steps, and the limit is 10"
            assert bool((batch["next", "done"].cpu().squeeze(-1) == done).all() and done.any()), "no episode ended"
        with torch.no_grad():
            estimate(batch)
        rows = batch.reshape(-1)
        out = update_ppo(loss, optimizer, rows)
        all_on(batch, device, f"estimates of {which}")
        all_on(out, device, f"losses of {which}")
        finite({**dict(out.items()), "advantage": batch["advantage"]}, f"losses of {which}")
    all_on(loss, device, f"loss of {which}")
    return {"frames": float(2 * batch.numel())}


def physics_is_the_same(which: str, device: torch.device, dry: bool) -> Figures:
    """Check that a step from the same states with the same actions gives the outcome of the CPU."""
    make, _ = PARTS[which]
    count = 8 if dry else 4096
    here, there = (make(batch_size=[count], device=where, seed=0) for where in (CPU, device))
    root = here.reset()
    root.set("action", here.action_spec.rand())
    worst = 0.0
    for number in range(3):
        moved = root.clone().to(device)
        expected, found = here.step(root)["next"], there.step(moved)["next"]
        all_on(found, device, f"step of {which}")
        for key in expected.keys():
            worst = max(worst, alike(found[key], expected[key], f"{which}, step {number}, {key}"))
        root = expected.exclude("reward").set("action", here.action_spec.rand())
    return {"largest difference": worst}


# --------------------------------------------------------------------------------------------- collectors


def deterministic(device: torch.device, **settings: Any) -> TensorDictBase:
    """Two batches of a deterministic policy on the native Pendulum, one after the other."""
    torch.manual_seed(0)
    env = TransformedEnv(PendulumEnv(batch_size=[64], device=device, seed=0), StepCounter(max_steps=10))
    net = nn.Sequential(MLP(3, 1, num_cells=[32], device=device), nn.Tanh())
    policy = TensorDictModule(net, ["observation"], ["action"])
    collector = Collector(env, policy, frames_per_batch=64 * 12, **settings)
    both = torch.cat([collector.collect(), collector.collect()], 1)
    alike(both["action"], net(both["observation"]), "action of a deterministic policy and that of the plain module")
    return both


def fast_policy(device: torch.device, settings: Mapping[str, Any]) -> Figures:
    """Check that a compiled or recorded policy acts as the plain one, and a stochastic one draws new numbers."""
    with exact():  # the same seed, states and so actions
        plain, fast = deterministic(device), deterministic(device, **settings)
        for key in ("observation", "action"):
            alike(fast[key], plain[key], f"{key} with {dict(settings)}, and of the plain policy", **DRIFT)
        torch.manual_seed(0)
        env = PendulumEnv(batch_size=[256], device=device, seed=0)
        actor, _ = pendulum_parts(env, device, IndependentNormal)
        batch = Collector(env, actor, frames_per_batch=256 * 16, **settings).collect()
        with torch.no_grad():
            score = actor.get_dist(batch).log_prob(batch["action"])
        alike(batch["action_log_prob"], score, "action_log_prob, and that of the plain policy", rtol=1e-3, atol=1e-3)
    noise = ((batch["action"] - batch["loc"]) / batch["scale"]).squeeze(-1)
    mean, deviation = float(noise.mean()), float(noise.std())
    assert max(abs(mean), abs(deviation - 1)) < 0.1, f"noise has mean {mean:.3f} and deviation {deviation:.3f}"
    repeated = [t for t in range(1, 16) if bool((noise[:, t] == noise[:, t - 1]).all())]
    assert not repeated, f"the noise of the steps {repeated} is that of the steps before them"
    return {"mean of noise": mean, "deviation of noise": deviation}


def cudagraph_policy(device: torch.device) -> Figures:
    """`Collector(cudagraph_policy=True)`."""
    if device.type != "cuda":
        raise Skipped("CUDA graphs need CUDA")
    return fast_policy(device, {"cudagraph_policy": True})


def compile_policy(device: torch.device, dry: bool) -> Figures:
    """`Collector(compile_policy=True)`."""
    if dry:
        raise Skipped("compiling takes most of a minute; dry leaves it out")
    return fast_policy(device, {"compile_policy": True})


def compiled_recipe(name: str, device: torch.device, dry: bool) -> Figures:
    """Train a recipe with ``--compile``."""
    if dry:
        raise Skipped("compiling takes most of a minute; dry leaves it out")
    return end_to_end(name, device, dry, compile=True)


def waits_of_collector(path: str, device: torch.device, dry: bool) -> Figures:
    """How often a collector waits for the device, for each step of a batch."""
    torch.manual_seed(0)
    steps = 8 if dry else 64
    env: Any = PendulumEnv(batch_size=[64], device=device, seed=0)
    if path == "transforms":
        env = TransformedEnv(TransformedEnv(env, StepCounter(max_steps=10)), RewardSum())
    actor, _ = pendulum_parts(env, device)
    policy = partial(actor.__call__) if path == "opaque policy" else actor  # a function has no leaf form
    collector = Collector(env, policy, frames_per_batch=64 * steps)
    for _ in range(2):
        collector.collect()
    if device.type != "cuda":
        raise Skipped("counting what waits for the device needs CUDA; the code ran on the CPU")
    found = places_that_wait(collector.collect, device)
    figures: Figures = {"waits per step": found.total() / steps}
    return figures | {f"at {place}": count / steps for place, count in found.most_common(4)}


# ------------------------------------------------------------------------------------------- updates that never wait


def recipe_never_waits(name: str, device: torch.device, dry: bool) -> None:
    """Measure a round of updates of a recipe's own learner; its figures are read afterwards."""
    config = config_of(name, device, dry=dry)
    one = trainee(name, config)
    one.take(collect_batch(one, config))
    never_waits(one.update, device, f"the update of the recipe {name}")


def storing_never_waits(name: str, device: torch.device, dry: bool) -> None:
    """Estimating advantages, or extending the replay buffer, with a batch on the device."""
    config = config_of(name, device, dry=dry)
    one = trainee(name, config)
    batch = collect_batch(one, config)
    never_waits(lambda: one.take(batch), device, f"taking a batch into the recipe {name}")


def transitions(which: str, device: torch.device, dry: bool) -> tuple[Any, TensorDictBase]:
    """Return a native environment, and transitions of random actions on the device ``[n]``."""
    make, _ = PARTS[which]
    env = make(batch_size=[32], device=device, seed=0)
    batch = Collector(env, None, frames_per_batch=32 * (4 if dry else 32)).collect()
    keys: list[Any] = ["observation", "action", ("next", "observation"), *[("next", key) for key in FLAGS]]
    return env, batch.select(*keys).reshape(-1)


def replayed_by_hand(name: str, device: torch.device, dry: bool) -> Callable[[], object]:
    """One update of SAC, TD3 or DQN from a replay buffer on the device, as the documentation writes it."""
    torch.manual_seed(0)
    env, rows = transitions("cartpole" if name == "dqn" else "pendulum", device, dry)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10_000, device=device), batch_size=64)
    buffer.extend(rows)
    if name == "dqn":
        policy = QValueActor(MLP(4, 2, num_cells=[32], device=device), in_keys=["observation"], spec=env.action_spec)
        loss: Any = DQNLoss(policy, action_space=env.action_spec)
    else:
        critic = ValueOperator(MLP(4, 1, num_cells=[32], device=device), in_keys=["observation", "action"])
        if name == "sac":
            loss = SACLoss(pendulum_parts(env, device)[0], critic)
        else:
            net = nn.Sequential(MLP(3, 1, num_cells=[32], device=device), nn.Tanh())
            spec = env.action_spec[0]  # of one environment
            loss = TD3Loss(TensorDictModule(net, ["observation"], ["action"]), critic, action_spec=spec)
    loss = loss.to(device)
    target = SoftUpdate(loss, tau=0.01)
    optimizer = torch.optim.Adam([one for one in loss.parameters() if one.requires_grad], lr=1e-3)

    def update() -> None:
        out = loss(buffer.sample())
        optimizer.zero_grad()
        torch.stack([value for key, value in out.items() if key.startswith("loss")]).sum().backward()
        nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
        target.step()

    return update


def hand_never_waits(name: str, device: torch.device, dry: bool) -> None:
    """Measure the same with the library's parts put together by hand."""
    if name != "ppo":
        never_waits(replayed_by_hand(name, device, dry), device, f"an update of {name} by hand")
        return
    env = CartPoleEnv(batch_size=[32], device=device, seed=0)
    actor, critic = cartpole_parts(env, device)
    batch = Collector(env, actor, frames_per_batch=32 * 16).collect()
    estimate = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)

    def update() -> None:
        with torch.no_grad():
            rows = estimate(batch.copy()).reshape(-1)
        update_ppo(loss, optimizer, rows)

    never_waits(update, device, "an update of ppo by hand")


# ---------------------------------------------------------------------------------------------------- replay


def number_rows(count: int, device: torch.device) -> TensorDict:
    """Rows that know their number."""
    return TensorDict({"number": torch.arange(count, device=device)}, batch_size=[count], device=device)


def available(backend: str, device: torch.device) -> str:
    """Return the name of a priority tree.

    Raises:
        Skipped: if it is that of rl-prio-cuda, and it cannot be used here.
    """
    if backend == "cuda":
        if device.type != "cuda":
            raise Skipped("the tree of rl-prio-cuda needs CUDA")
        from rl.prio_cuda import why_not

        if reason := why_not():
            raise Skipped(f"rl-prio-cuda cannot be used: {reason}")
    return backend


def check_priorities(backend: str, device: torch.device, dry: bool) -> Figures:
    """Proportions and weights of a prioritized buffer on the device, against those by hand and a CPU twin."""
    rows, draws = (50, 4000) if dry else (1000, 200_000)
    alpha, beta = 0.6, 0.4
    buffers = [
        TensorDictPrioritizedReplayBuffer(
            alpha=alpha,
            beta=beta,
            eps=0.0,
            storage=LazyTensorStorage(2 * rows, device=where),
            backend=tree,
            sampler_device=where,
        )
        for where, tree in ((CPU, "torch"), (device, available(backend, device)))
    ]
    torch.manual_seed(0)
    raw = torch.rand(rows) ** 2 + 0.01
    powers = raw.double() ** alpha
    deviations: list[float] = []
    for buffer in buffers:
        where = buffer.storage.device
        buffer.extend(number_rows(rows, where))
        buffer.update_priority(torch.arange(rows, device=where), raw.to(where))
        sample = buffer.sample(draws)
        all_on(sample, where, "a prioritized sample")
        assert bool((sample["index"] == sample["number"]).all()), "rows of a sample are not those of its index"
        expected = (powers / powers.min()) ** -beta
        alike(sample["priority_weight"], expected[sample["index"].cpu()], "priority_weight", rtol=1e-3, atol=1e-5)
        counts = torch.bincount(sample["index"].cpu(), minlength=rows).double()
        share = powers / powers.sum() * draws
        deviation = float(((counts - share) ** 2 / share).sum() - (rows - 1)) / (2 * (rows - 1)) ** 0.5
        assert abs(deviation) < 6, f"counts on {where} are {deviation:.1f} standard deviations from the proportions"
        deviations.append(deviation)
        # A repeated index keeps its last priority; new rows get the largest one.
        buffer.update_priority(torch.tensor([0, 0, 1], device=where), torch.tensor([9.0, 2.0, 3.0], device=where))
        buffer.extend(number_rows(1, where))
        state = buffer.sampler.state_dict()
        alike(state["raw"][[0, 1, rows]], [2.0, 3.0, 9.0], f"raw priorities on {where} after an update")
    alike(buffers[1].sampler.state_dict()["raw"], buffers[0].sampler.state_dict()["raw"], "raw priorities")
    return {"standard deviations from the proportions": deviations[1], "tree": buffers[1].sampler.backend.name}


def prioritized_without_native(device: torch.device, dry: bool) -> None:
    """Do the same in a process with ``RL_NATIVE=off``, in which plain torch has the tree."""
    program = (
        "import torch; from gpu_checks.recipes import check_priorities;"
        f" found = check_priorities('auto', torch.device('{device}'), {dry}); assert found['tree'] == 'torch', found"
    )
    environment = os.environ | {"RL_NATIVE": "off", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"with RL_NATIVE=off: {done.stderr[-1500:]}"


def prioritized_loop(backend: str, device: torch.device, dry: bool) -> Callable[[], object]:
    """Extend, sample, update the priorities, with the sampler in a plain buffer."""
    rows, backend = 256 if dry else 4096, available(backend, device)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4 * rows, device=device),
        sampler=PrioritizedSampler(4 * rows, alpha=0.6, beta=0.4, backend=backend, device=device),
        batch_size=64,
    )
    data = number_rows(rows, device)
    for _ in range(5):
        buffer.extend(data)

    def loop() -> None:
        buffer.extend(data)
        for _ in range(4):
            sample = buffer.sample()
            sample["td_error"] = torch.rand(64, device=device)
            buffer.update_tensordict_priority(sample)

    return loop


def prioritized_never_waits(device: torch.device, dry: bool) -> None:
    """With the tree of rl-prio-cuda the loop never waits."""
    backend = "cuda" if device.type == "cuda" else "torch"
    never_waits(prioritized_loop(backend, device, dry), device, "extend, sample and update_priority with rl-prio-cuda")


def waits_of_plain_tree(device: torch.device, dry: bool) -> Figures:
    """How often the loop waits with the tree in plain torch, which reads its total at each sample."""
    loop = prioritized_loop("torch", device, dry)
    for _ in range(2):
        loop()
    if device.type != "cuda":
        raise Skipped("counting what waits for the device needs CUDA; the code ran on the CPU")
    found = places_that_wait(loop, device)
    return {"waits per sample": found.total() / 4} | {f"at {place}": n / 4 for place, n in found.most_common(5)}


def slices(device: torch.device, dry: bool) -> None:
    """Slices from a storage on the device are those from a CPU storage with the same random numbers."""
    steps = 64 if dry else 4096
    data = number_rows(steps, CPU)
    data["next"] = TensorDict({"done": (torch.arange(steps) % 9 == 8).unsqueeze(-1)}, batch_size=[steps])
    found = []
    for where in (CPU, device):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(steps, device=where), sampler=SliceSampler(slice_len=4), batch_size=32
        )
        buffer.extend(data.to(where))
        torch.manual_seed(1)
        sample = buffer.sample()
        all_on(sample, where, "a sample of slices")
        found.append(sample)
    for key in ("number", "index", "is_init", ("next", "done"), ("next", "truncated")):
        alike(found[1][key], found[0][key], f"slices, {key}", rtol=0, atol=0)
    assert bool((found[1]["number"].view(-1, 4).diff() == 1).all()), "steps of a slice do not follow each other"


# ------------------------------------------------------------------------------------------------- estimators


def estimates(name: str, device: torch.device, dry: bool) -> Figures:
    """Advantages and targets on the device are those on the CPU, also beside terminated and truncated steps."""
    torch.manual_seed(0)
    count, steps = (4, 12) if dry else (256, 100)
    env = CartPoleEnv(batch_size=[count], seed=0)
    batch = Collector(env, cartpole_parts(env, CPU)[0], frames_per_batch=count * steps, track_traj_ids=False).collect()
    over = torch.rand(count, steps, 1) < 0.1
    truncated = over & (torch.rand(count, steps, 1) < 0.5)
    batch["next"].update({"done": over, "truncated": truncated, "terminated": over & ~truncated})
    batch["next", "reward"] = torch.randn(count, steps, 1)
    results = []
    for where in (CPU, device):
        torch.manual_seed(1)
        actor, critic = (one.to(where) for one in cartpole_parts(env, CPU))
        made: dict[str, Any] = {
            "GAE": partial(GAE, gamma=0.99, lmbda=0.95),
            "GAE, shifted": partial(GAE, gamma=0.99, lmbda=0.95, shifted=True),
            "TD(lambda)": partial(TDLambdaEstimator, gamma=0.99, lmbda=0.9),
            "V-trace": partial(VTrace, gamma=0.99, actor_network=actor),
        }
        with exact(), torch.no_grad():
            results.append(made[name](value_network=critic)(batch.clone().to(where)))
    worst = 0.0
    for key in ("advantage", "value_target"):
        all_on(results[1].select(key), device, name)
        worst = max(worst, alike(results[1][key], results[0][key], f"{name}, {key}", rtol=1e-4, atol=1e-4))
    return {"largest difference": worst}


# ------------------------------------------------------------------------------------------------ checkpoints


def checkpoint(name: str, device: torch.device, dry: bool, *, commands: bool = False) -> Figures:
    """Check that a run saved on the device resumes there, is evaluated, and its policy loads on the CPU."""
    device = torch.device(device.type, 0) if device.type == "cuda" else device  # others may write it without number
    config = config_of(name, device, dry=dry)
    with tempfile.TemporaryDirectory() as folder:
        run, half = Path(folder, "run"), config.total_frames // 2
        first = train_recipe(name, config, run, should_stop=lambda frames: frames >= half)
        assert first.interrupted, "should_stop did not stop the run"
        assert first.train_frames == half, f"stopped after {first.train_frames}, not {half} frames"
        with spy() as seen:
            result = train_recipe(name, config, run, resume=run)
        assert result.train_frames == config.total_frames, f"resumed to {result.train_frames} frames"
        for part, one in seen["parts"].items():
            if isinstance(one, nn.Module):
                all_on(one, device, f"the part {part} of the resumed {name}")
        on_device, on_cpu = (load_run(run, device=where) for where in (str(device), "cpu"))
        all_on(on_device.policy, device, "the policy of load_run")
        all_on(on_cpu.policy, CPU, "the policy of load_run on the CPU")
        all_on(load_policy(run, device="cpu"), CPU, "the policy of load_policy on the CPU")
        weights = dict(on_device.policy.state_dict())
        for key, value in on_cpu.policy.state_dict().items():
            alike(weights[key], value, f"{key} of the loaded policy", rtol=0, atol=0)
        returns = evaluate(run, episodes=2)
        assert bool(returns.isfinite().all()), f"returns of the evaluation are {returns.tolist()}"
        for where in (str(device), "cpu") if commands else ():
            _command_line(["eval", str(run), "--episodes", "2", "--device", where])
        if commands:
            more = str(2 * config.total_frames)
            _command_line(["train", config.recipe, "--resume", str(run), "--total-frames", more])
    return {"return": float(returns.mean())}


def _command_line(words: list[str]) -> None:
    """Run the command ``rl`` in a process of its own."""
    program = "import sys; from rl.core.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    if words[0] == "train":
        words = [*words, "--display", "none"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, check=False
    )
    said = (done.stderr or done.stdout)[-1500:]
    assert done.returncode == 0, f"rl {' '.join(words)} ended with {done.returncode}: {said}"


# ------------------------------------------------------------------------------------------------------ the list


def checks(context: Context) -> list[Check]:  # noqa: C901, PLR0912  a list
    """Return the checks of this section."""
    device, dry = context.device, context.dry
    names = {"ppo": "ppo", "lstm": "recurrent ppo", "mappo": "mappo", "dqn": "dqn", "sac": "sac", "td3": "td3"}
    both: dict[str, Any] = {"device": device, "dry": dry}
    found: list[Check] = []

    def add(
        name: str, run: Callable[..., Any], *args: Any, seconds: float = 60.0, goals: Any = (), **given: Any
    ) -> None:
        found.append(Check(name, partial(run, *args, **given), goals=goals, seconds=seconds))

    for which in PARTS:
        add(f"a step of {which} is that of the CPU", physics_is_the_same, which, **both)
        add(f"ppo by hand with {which} on the device, and its transforms", ppo_by_hand, which, **both)
    for name in ("GAE", "GAE, shifted", "TD(lambda)", "V-trace"):
        add(f"{name} is that of the CPU", estimates, name, **both)
    for name, said in names.items():
        add(f"losses of the first updates of {said} are those of the CPU", same_losses, name, **both)
    for name, said in names.items():
        add(f"the recipe {said} trains on the device", end_to_end, name, seconds=120, **both)
    for name in ("ppo", "dqn"):
        add(
            f"the recipe {name} trains on the device with a simulator on the CPU",
            end_to_end,
            name,
            env="CartPole-v1",
            seconds=120,
            **both,
        )
    add(
        "the recipe dqn trains on the device with prioritized replay",
        end_to_end,
        "dqn",
        sampler="prioritized:{alpha: 0.6, beta: 0.4}",
        seconds=120,
        **both,
    )
    add("the recipe sac trains with clipped gradients", end_to_end, "sac", max_grad_norm=1.0, seconds=120, **both)
    for name in ("ppo", "sac", "dqn", "td3"):
        add(f"an update of {name} by hand never waits", hand_never_waits, name, **both)
    for name, said in names.items():
        add(f"the updates of the recipe {said} never wait", recipe_never_waits, name, **both)
    for name in ("ppo", "dqn", "sac"):
        add(f"taking a batch into the recipe {name} never waits", storing_never_waits, name, **both)
    for name in ("ppo", "lstm", "dqn", "sac"):
        said = f"a run of {names[name]} saved on the device resumes, and is loaded on the CPU"
        add(said, checkpoint, name, commands=name == "ppo", seconds=180, **both)
    one = (Goal("waits per step", most=1.1),)  # one each step, three each batch
    for path in ("plain", "transforms", "opaque policy"):
        add(f"waits of a collector, {path}", waits_of_collector, path, goals=one, **both)
    for backend in ("torch", "cuda"):
        add(f"prioritized replay with the tree {backend}", check_priorities, backend, **both)
    add("prioritized replay with RL_NATIVE=off", prioritized_without_native, **both)
    add("prioritized replay on the device never waits", prioritized_never_waits, **both)
    add("waits of prioritized replay with the tree torch", waits_of_plain_tree, **both)
    add("slices from a storage on the device", slices, **both)
    add("Collector(cudagraph_policy=True)", cudagraph_policy, device=device)
    add("Collector(compile_policy=True)", compile_policy, seconds=180, **both)
    for name in ("ppo", "sac", "dqn"):
        add(f"the recipe {name} with --compile", compiled_recipe, name, seconds=240, **both)
    return found
