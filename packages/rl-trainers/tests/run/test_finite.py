"""Observations, rewards and data that are not finite are named by entry and first row, in every recipe."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import RLError
from rl.core.registry import load
from rl.replay import ReplayBuffer, TensorStorage
from rl.replay.datasets import register_dataset

SMALL = {"num_envs": 2, "total_frames": 256, "frames_per_batch": 64, "eval_episodes": 1, "final_eval_episodes": 1,
         "num_cells": (8,), "loggers": ("csv",)}  # fmt: skip


class Broken(gymnasium.Env):
    """Eight steps an episode; the step `at` of its life has one value that is not finite."""

    def __init__(self, where, value, choice, at=21):
        self._where, self._value, self._at, self._life = where, float(value), at, 0
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2) if choice else gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        self._steps, self._life = self._steps + 1, self._life + 1
        broken = self._life == self._at
        seen = np.array([1, self._value if broken and self._where == "observation" else 1], np.float32)
        reward = self._value if broken and self._where == "reward" else 1.0
        return seen, reward, self._steps == 8, False, {}


if "Broken-v0" not in gymnasium.registry:
    gymnasium.register("Broken-v0", entry_point=Broken)

DISCRETE = ["ppo", "a2c", "impala", "ppo-rnd", "dqn", "c51", "qrdqn", "rainbow", "discrete-sac"]
CONTINUOUS = ["sac", "td3", "ddpg", "tqc", "redq", "crossq", "ppo"]
CASES = [(name, True) for name in DISCRETE] + [(name, False) for name in CONTINUOUS]


def config_of(recipe, **settings):
    config = load("recipe", recipe).config
    more = {name: 64 for name in ("minibatch_size", "batch_size") if hasattr(config, name)}
    more |= {"learning_starts": 1000} if hasattr(config, "learning_starts") else {}
    return config(**{**SMALL, **more, **settings})


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("where", ["observation", "reward"])
@pytest.mark.parametrize(("recipe", "choice"), CASES)
def test_the_entry_and_its_first_step_are_named(recipe, choice, where, value, tmp_path):
    """Step 21 of each of two environments: 42 frames; the first environment is stepped first."""
    config = config_of(recipe, env="Broken-v0", env_kwargs={"where": where, "value": value, "choice": choice})
    message = rf"{where}'\)? of 'Broken-v0' became {value} after 42 frames \(environment 0, step 20 of the batch\)"
    with pytest.raises(RLError, match=message):
        load("recipe", recipe).train(config, out=tmp_path / "run", display="none")


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_an_infinite_loss_names_the_finite_entry_whose_square_overflows(where, tmp_path):
    kwargs = {"where": where, "value": "1e30", "choice": False}
    config = config_of("sac", env="Broken-v0", env_kwargs=kwargs, learning_starts=16)
    with pytest.raises(RLError, match=rf"became .*{where}'?\)? of 'Broken-v0' reached 1e\+30, whose square overflows"):
        load("recipe", "sac").train(config, out=tmp_path / "run", display="none")


def test_an_entry_that_no_policy_reads_may_be_infinite(tmp_path):
    """Here the first of two entries, which the settings leave out."""
    kwargs = {"where": "observation", "value": "inf", "choice": True}
    config = config_of("ppo", env="Broken-v0", env_kwargs=kwargs, observation_indices=(0,))
    result = load("recipe", "ppo").train(config, out=tmp_path / "run", display="none")
    assert result.train_frames == 256
    assert math.isfinite(result.eval_return_mean)


def rows(name, batch_size=None, **settings):
    """512 steps, of which row 300 has an observation that is infinite."""
    del name, settings
    seen = torch.ones(512, 2)
    seen[300, 1] = torch.inf
    over = (torch.arange(512) % 8 == 7).unsqueeze(-1)
    after = TensorDict(observation=torch.ones(512, 2), reward=torch.ones(512, 1), done=over, terminated=over,
                       batch_size=[512])  # fmt: skip
    data = TensorDict(observation=seen, action=torch.zeros(512, 1), next=after, batch_size=[512])
    return ReplayBuffer(storage=TensorStorage(data), batch_size=batch_size)


@pytest.mark.parametrize("recipe", ["bc", "td3-bc", "iql", "cql", "sac", "gail"])
def test_the_row_of_a_data_set_is_named(recipe, tmp_path):
    register_dataset("broken", rows, replace=True)
    online = {"num_envs": 2, "frames_per_batch": 64} if recipe in ("sac", "gail") else {}
    config = load("recipe", recipe).config(
        env="Broken-v0", env_kwargs={"where": "", "value": "0", "choice": False}, dataset="broken:rows",
        total_frames=300, eval_episodes=1, final_eval_episodes=1, log_every=100, loggers=("csv",),
        **{"minibatch_size" if recipe == "gail" else "batch_size": 64}, **online,
    )  # fmt: skip
    with pytest.raises(RLError, match="'observation' of broken:rows is inf in row 300"):
        load("recipe", recipe).train(config, out=tmp_path / "run", display="none")


def test_a_gradient_that_is_not_finite_ends_the_run(monkeypatch, tmp_path):
    """The losses stay finite, and so does everything that goes in."""
    from rl.trainers.loops import updater

    clip = updater.clip_gradients
    monkeypatch.setattr(updater, "clip_gradients", lambda *args: clip(*args) * torch.nan)
    with pytest.raises(RLError, match="gradient_norm became nan after 64 frames"):
        load("recipe", "a2c").train(
            config_of("a2c", env="CartPole-v1", log_every=64), out=tmp_path / "run", display="none"
        )


def test_weights_that_are_not_finite_end_the_run(monkeypatch, tmp_path):
    """In sac, which has no norm of gradients."""
    from rl.trainers.loops import off_policy

    def broken(self, frames):
        with torch.no_grad():
            next(self.loss.actor_network.parameters()).fill_(torch.nan)
        return dict

    monkeypatch.setattr(off_policy.OffPolicyUpdater, "__call__", broken)
    config = config_of("sac", env="pendulum", max_episode_steps=20, log_every=64)
    with pytest.raises(RLError, match="the weights became nan or inf after 64 frames"):
        load("recipe", "sac").train(config, out=tmp_path / "run", display="none")
