"""Schedules of settings over a run, against torch's and against closed forms."""

import math
from dataclasses import replace

import pytest
import torch

from rl.core.errors import ArgumentError
from rl.trainers import Callback, DQNConfig, PPOConfig, TD3Config
from rl.trainers._schedules import learning_rate_factor, remaining  # one function for all recipes
from rl.trainers.algorithms.dqn import DQN
from rl.trainers.algorithms.ppo import PPO
from rl.trainers.algorithms.td3 import TD3
from rl.trainers.loops.updater import MinibatchUpdater

QUICK = {"total_frames": 640, "num_envs": 2, "eval_every": 10**6, "eval_episodes": 1, "final_eval_episodes": 1,
         "num_cells": (8,), "loggers": ("csv",)}  # fmt: skip
OFF_POLICY = {"frames_per_batch": 64, "learning_starts": 0, "batch_size": 8, "buffer_size": 640, "utd_ratio": 0.03125}
CONFIGS = {
    "ppo": (PPO, PPOConfig(**QUICK, env="test/guess", frames_per_batch=64, minibatch_size=32, epochs=1)),
    "dqn": (DQN, DQNConfig(**QUICK, env="test/guess", **OFF_POLICY)),
    "td3": (TD3, TD3Config(**QUICK, env="pendulum", max_episode_steps=20, **OFF_POLICY)),
}
STARTS = [64 * i for i in range(10)]  # frames before each batch


class Watch(Callback):
    """Metrics of each iteration."""

    def __init__(self):
        self.metrics = []

    def on_update(self, run, metrics):
        self.metrics.append(dict(metrics))


def watched(recipe, config, name, tmp_path):
    watch = Watch()
    recipe.train(config, out=tmp_path / "run", display="none", callbacks=[watch])
    return [metrics.get(name) for metrics in watch.metrics]


def of_torch(scheduler, steps):
    """Factors of a scheduler of torch, after 0, 1, ... steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule, found = scheduler(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("shape", "scheduler"),
    [
        ("cosine", lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 10)),
        ("linear", lambda one: torch.optim.lr_scheduler.LinearLR(one, 1.0, 1e-12, 10)),
        (True, lambda one: torch.optim.lr_scheduler.LinearLR(one, 1.0, 1e-12, 10)),
        (False, lambda one: torch.optim.lr_scheduler.ConstantLR(one, 1.0, 10)),
    ],
)
def test_shapes_are_those_of_torch(shape, scheduler):
    assert [remaining(shape, i / 10) for i in range(10)] == pytest.approx(of_torch(scheduler, 10))


def test_a_warm_up_is_that_of_torch():
    def scheduler(optimizer):
        rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-12, 1.0, 4)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[4])

    found = [learning_rate_factor("cosine", i / 20, 4 / 20) for i in range(20)]
    assert found == pytest.approx(of_torch(scheduler, 20), abs=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_learning_rate_falls_as_a_cosine_after_its_warm_up(name, tmp_path):
    recipe, config = CONFIGS[name]
    config = replace(config, learning_rate=0.004, anneal_lr="cosine", warmup_frames=128)
    waves = [(1 + math.cos(math.pi * (frames - 128) / 512)) / 2 for frames in STARTS[2:]]
    assert watched(recipe, config, "learning_rate", tmp_path) == pytest.approx(
        [0.0, 0.002, *(0.004 * w for w in waves)]
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_line_has_the_names_true_and_linear(name, tmp_path):
    recipe, config = CONFIGS[name]
    for shape in (True, "linear"):
        found = watched(recipe, replace(config, anneal_lr=shape), "learning_rate", tmp_path / str(shape))
        assert found == [config.learning_rate * (1 - frames / 640) for frames in STARTS]  # to the last digit


def test_the_clip_range_falls_as_a_cosine_after_the_warm_up(tmp_path, monkeypatch):
    seen, anneal = [], MinibatchUpdater.anneal

    def watch(updater, progress):
        anneal(updater, progress)
        seen.append({float(loss.clip_epsilon) for loss in updater._losses})

    monkeypatch.setattr(MinibatchUpdater, "anneal", watch)
    recipe, config = CONFIGS["ppo"]
    recipe.train(replace(config, anneal_clip_epsilon="cosine", warmup_frames=128), out=tmp_path / "run", display="none")
    waves = [(1 + math.cos(math.pi * max(frames - 128, 0) / 512)) / 2 for frames in STARTS]
    assert [one for (one,) in seen] == pytest.approx([0.2 * wave for wave in waves])


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        (False, lambda done: 0.0),
        ("linear", lambda done: done),
        ("cosine", lambda done: (1 - math.cos(math.pi * done)) / 2),
    ],
)
def test_random_actions_become_rare_in_the_shape_of_the_setting(shape, share, tmp_path):
    recipe, config = CONFIGS["dqn"]
    config = replace(config, anneal_eps=shape, eps_init=0.8, eps_end=0.2, annealing_num_steps=320, warmup_frames=64)
    expected = [0.8 - 0.6 * share(min(max(frames + 64 - 64, 0) / 320, 1.0)) for frames in STARTS]
    assert watched(recipe, config, "epsilon", tmp_path) == pytest.approx(expected, abs=0.6 / 320)


@pytest.mark.parametrize("noise", ["normal", "ou"])
def test_noise_on_actions_falls_to_nothing(noise, tmp_path, monkeypatch):
    """The scale of the noise at the start and after each batch."""
    from rl.trainers.loops import off_policy

    seen, anneal = [], off_policy._anneal_noise

    def watch(config, module, before, after):
        anneal(config, module, before, after)
        seen.append(float(module.eps if noise == "ou" else module.sigma))

    monkeypatch.setattr(off_policy, "_anneal_noise", watch)
    recipe, config = CONFIGS["td3"]
    config = replace(config, noise=noise, exploration_noise=0.5, anneal_exploration_noise=True, warmup_frames=128)
    recipe.train(config, out=tmp_path / "run", display="none")
    full = 1.0 if noise == "ou" else 0.5 * 2  # half the width of the bounds of Pendulum, -2 to 2
    left = [1 - max(frames - 128, 0) / 512 for frames in (0, *(frames + 64 for frames in STARTS))]
    assert seen == pytest.approx([full * one for one in left])
    seen.clear()
    recipe.train(replace(config, total_frames=1152), resume=tmp_path / "run", display="none")
    assert seen[0] == pytest.approx(full * (1 - 512 / 1024))  # on the curve to the new end


def test_bad_schedules_are_rejected():
    with pytest.raises(ArgumentError, match="anneal_lr must be true, false, linear or cosine, got 'exponential'"):
        PPOConfig(anneal_lr="exponential")
    with pytest.raises(ArgumentError, match=r"warmup_frames must be below total_frames \(640\), got 640"):
        replace(CONFIGS["td3"][1], warmup_frames=640)
    with pytest.raises(ArgumentError, match=r"eps_end must be at most eps_init, got 0\.5"):
        DQNConfig(eps_init=0.2, eps_end=0.5)
