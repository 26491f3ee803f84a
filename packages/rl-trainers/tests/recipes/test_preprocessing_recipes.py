"""Trainings with normalized observations and rewards, and of Atari games."""

import dataclasses
import math

import pytest
import torch

from rl.core.cli import main
from rl.trainers import (
    DiscreteSACConfig,
    DQNConfig,
    PPOConfig,
    evaluate,
    load_checkpoint,
    load_run,
    train_discrete_sac,
    train_dqn,
    train_ppo,
)

# an evaluation is repeated with the seed that the run derived for it
from rl.trainers._device import seeds_of
from rl.trainers.loggers import read_metrics

NORMALIZED = {"normalize_observation": True, "normalize_reward": True}
SMALL = {"num_envs": 2, "eval_episodes": 3, "final_eval_episodes": 3, "loggers": ("csv",)}
PPO = PPOConfig(**SMALL, **NORMALIZED, env="pendulum", total_frames=1024, frames_per_batch=256, minibatch_size=64,
                eval_every=256, max_episode_steps=40)  # fmt: skip
DQN = DQNConfig(**SMALL, **NORMALIZED, env="CartPole-v1", total_frames=1024, learning_starts=128, eval_every=256)


@pytest.mark.parametrize(("train", "config"), [(train_ppo, PPO), (train_dqn, DQN)], ids=["ppo", "dqn"])
def test_rl_eval_repeats_the_evaluations_of_the_run(train, config, tmp_path, capsys):
    train(config, out=tmp_path / "run", display="none")
    columns = read_metrics(tmp_path / "run" / "metrics.csv")
    logged = [value for value in columns["eval/return_mean"] if not math.isnan(value)]
    seed = seeds_of(config.seed).evaluation
    best, last = (load_run(tmp_path / "run", kind) for kind in ("best", "last"))
    assert float(evaluate(best, episodes=3, seed=seed).mean()) == max(logged)
    assert float(evaluate(last, episodes=3, seed=seed).mean()) == logged[-1]
    count = {kind: float(run.statistics[0]["stats"][0][1]["count"]) for kind, run in (("best", best), ("last", last))}
    assert count["best"] <= count["last"]
    assert count["last"] >= config.total_frames
    assert main(["eval", "run", "--episodes", "3", "--seed", str(seed)]) == 0
    assert f"return {max(logged):.2f} ± " in capsys.readouterr().out


def test_metrics_show_the_rewards_of_the_environment(tmp_path):
    """With weights that nothing moves, the episodes are the same."""
    rows = {}
    for normalize in (False, True):
        config = dataclasses.replace(
            PPO, learning_rate=1e-30, normalize_observation=False, normalize_reward=normalize, anneal_lr=False
        )
        train_ppo(config, out=tmp_path / str(normalize), display="none")
        rows[normalize] = read_metrics(tmp_path / str(normalize) / "metrics.csv")
    for column in ("rollout/return_mean", "rollout/length_mean", "rollout/episodes", "eval/return_mean"):
        for raw, normalized in zip(rows[False][column], rows[True][column], strict=True):
            assert normalized == pytest.approx(raw, rel=1e-5, nan_ok=True)
    assert rows[True]["train/loss_critic"][-1] != pytest.approx(rows[False]["train/loss_critic"][-1], rel=0.1)


def test_the_best_policy_is_evaluated_with_its_own_statistics(tmp_path):
    """The final evaluation of the run is that of `rl eval` with the same seed."""
    result = train_ppo(PPO, out=tmp_path / "run", display="none")
    best = load_run(tmp_path / "run")
    again = evaluate(best, episodes=3, seed=seeds_of(0).final_evaluation)
    assert float(again.mean()) == result.eval_return_mean


def test_a_resumed_run_has_the_statistics_of_the_checkpoint(tmp_path):
    train_ppo(PPO, out=tmp_path / "run", display="none", should_stop=lambda frames: frames >= 512)
    state = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")
    environment = state["collector"]["env"]["transform"]["transforms"]
    stats = next(one for one in environment if "stats" in one)["stats"][0][1]
    (saved,) = state["run"]["statistics"]
    assert all(torch.equal(saved["stats"][0][1][part], stats[part]) for part in ("count", "mean", "square"))
    assert 512 <= float(stats["count"]) < 600  # a value for each reset and step


@pytest.mark.slow
def test_ppo_swings_the_pendulum_up_faster_with_normalization(tmp_path):
    config = PPOConfig(env="pendulum", total_frames=40_960, num_envs=4, frames_per_batch=2048, gamma=0.9,
                       eval_every=10_240, loggers=("csv",), **NORMALIZED)  # fmt: skip
    result = train_ppo(config, out=tmp_path / "run", display="none")
    assert result.eval_return_mean > -900  # -740 in 41,000 frames; -1,020 without, -1,200 at random


def test_ppo_balances_the_pole_with_normalization(tmp_path):
    config = PPOConfig(total_frames=10_240, eval_every=2_560, loggers=("csv",), **NORMALIZED)
    result = train_ppo(config, out=tmp_path / "run", display="none")
    returns = read_metrics(tmp_path / "run" / "metrics.csv")["rollout/return_mean"]
    assert returns[0] < 40
    assert result.eval_return_mean > 300


ATARI = {**SMALL, "env": "ALE/Pong-v5", "atari": True, "total_frames": 2000, "num_envs": 4, "eval_every": 2000,
         "eval_episodes": 2, "max_episode_steps": 60, "num_cells": (32,),
         "env_kwargs": {"repeat_action_probability": 0.0}}  # fmt: skip


@pytest.mark.parametrize(
    ("train", "config"),
    [
        pytest.param(train_ppo, PPOConfig(**ATARI, frames_per_batch=400, minibatch_size=200, epochs=1), id="ppo"),
        pytest.param(train_dqn, DQNConfig(**ATARI, frames_per_batch=200, learning_starts=400, utd_ratio=0.01,
                                          batch_size=16, buffer_size=400), id="dqn"),
        pytest.param(train_discrete_sac, DiscreteSACConfig(**ATARI, frames_per_batch=200, learning_starts=400,
                                                           utd_ratio=0.01, batch_size=16, buffer_size=400),
                     id="discrete-sac"),
    ],
)  # fmt: skip
def test_an_atari_game_is_trained_saved_resumed_and_evaluated(train, config, tmp_path):
    pytest.importorskip("ale_py")
    half = train(config, out=tmp_path / "run", display="none", should_stop=lambda frames: frames >= 800)
    assert (half.interrupted, half.train_frames) == (True, 800)
    result = train(config, resume=tmp_path / "run", display="none")
    assert result.train_frames == 2000
    assert read_metrics(tmp_path / "run" / "metrics.csv")["rollout/length_mean"][-1] == 60
    scores = evaluate(tmp_path / "run", episodes=2, seed=seeds_of(0).final_evaluation)
    assert scores.shape == (2,)
    assert torch.equal(scores, scores.round())
    assert -21 <= float(scores.mean()) <= 21
