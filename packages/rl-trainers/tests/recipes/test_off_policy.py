"""The recipes of off-policy actor-critic algorithms: they learn, resume exactly and refuse what they cannot train."""

import dataclasses

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import SpecError
from rl.core.testing import check_recipe
from rl.objectives import SoftUpdate
from rl.trainers import (
    DDPGConfig,
    REDQConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
    load_checkpoint,
    load_policy,
    make_env,
    train_ddpg,
    train_redq,
    train_sac,
    train_td3,
    train_tqc,
)
from rl.trainers.recipes.ddpg._config import DDPG
from rl.trainers.recipes.redq._config import REDQ
from rl.trainers.recipes.sac._config import SAC
from rl.trainers.recipes.td3._config import TD3
from rl.trainers.recipes.tqc._config import TQC

RECIPES = {
    "sac": (SAC, SACConfig, train_sac),
    "td3": (TD3, TD3Config, train_td3),
    "ddpg": (DDPG, DDPGConfig, train_ddpg),
    "tqc": (TQC, TQCConfig, train_tqc),
    "redq": (REDQ, REDQConfig, train_redq),
}
SMALL = {
    "env": "pendulum",
    "max_episode_steps": 20,
    "num_envs": 4,
    "total_frames": 512,
    "frames_per_batch": 64,
    "updates_per_step": 0.1,
    "minibatch_size": 32,
    "buffer_size": 1000,
    "learning_starts": 128,
    "hidden": (16,),
    "eval_every": 256,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "log_every": 100,
    "loggers": ("csv",),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_conforms(name):
    assert check_recipe(RECIPES[name][0]).not_exercised == ["training: call `train` in a test of its own"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    _, kind, train = RECIPES[name]
    more = {} if name in ("td3", "redq") else {"n_step": 3, "sampler": "prioritized:{alpha: 0.6, beta: 0.4}"}
    config = kind(**SMALL, **more)
    whole = train(config, out=tmp_path / "whole", display="none")
    train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 320)
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert resumed.eval_return_mean == whole.eval_return_mean
    last = "checkpoints/last.safetensors"
    one, two = (load_checkpoint(tmp_path / run / last)["policy"] for run in ("whole", "half"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", RECIPES)
def test_the_policy_acts_within_the_bounds(name, tmp_path):
    _, kind, train = RECIPES[name]
    train(kind(**SMALL), out=tmp_path / "run", display="none")
    policy = load_policy(tmp_path / "run")
    action = policy(TensorDict(observation=100 * torch.randn(50, 3), batch_size=[50]))["action"]
    assert action.shape == (50, 1)
    assert action.abs().max() <= 2.0


@pytest.mark.parametrize(("name", "expected"), [("td3", 21), ("sac", 42)])
def test_targets_move_with_the_actor(name, expected, tmp_path, monkeypatch):
    moves, step = [], SoftUpdate.step
    monkeypatch.setattr(SoftUpdate, "step", lambda updater: (moves.append(1), step(updater)))
    _, kind, train = RECIPES[name]
    train(kind(**SMALL), out=tmp_path / "run", display="none")
    assert len(moves) == expected  # 7 rounds of 6 gradient steps


@pytest.mark.parametrize("name", RECIPES)
def test_discrete_actions_are_refused(name, tmp_path):
    _, kind, train = RECIPES[name]
    with pytest.raises(SpecError, match=f"{name} trains vectors of bounded floats.*dqn or ppo"):
        train(kind(**{**SMALL, "env": "CartPole-v1"}), out=tmp_path / "run", display="none")


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (SACConfig, {"alpha_init": 0.0}),
        (TD3Config, {"policy_delay": 0}),
        (DDPGConfig, {"exploration_noise": -1.0}),
        (TQCConfig, {"dropped": 25}),
        (REDQConfig, {"subset": 11}),
        (SACConfig, {"updates_per_step": 0.0001}),
        (SACConfig, {"n_step": 0}),
    ],
)
def test_settings_out_of_range(kind, wrong):
    with pytest.raises(SpecError, match=next(iter(wrong))):
        kind(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_they_learn_to_swing_up_a_pendulum(name, tmp_path):
    _, kind, train = RECIPES[name]
    more = {"critics": 3} if name == "redq" else {}
    config = kind(env="pendulum", num_envs=4, total_frames=8000, hidden=(64, 64), loggers=("csv",), **more)
    config = dataclasses.replace(config, learning_rate=1e-3, minibatch_size=128)
    assert train(config, out=tmp_path / "run", display="none").eval_return_mean > -400
    assert make_env("pendulum", 1, seed=0).action_spec.shape == (1, 1)
