"""The recipes in ppo's loop: they learn, resume exactly, refuse what they cannot train, and compute what they claim."""

import pytest
import torch
from rl_trainers_test_envs import FakeEnv, GuessEnv

from rl.collectors import Collector
from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Unbounded
from rl.trainers import (
    A2CConfig,
    ImpalaConfig,
    PPORNDConfig,
    ReinforceConfig,
    evaluate,
    load_checkpoint,
    make_env,
    train_a2c,
    train_impala,
    train_ppo_rnd,
    train_reinforce,
)
from rl.trainers.actors import on_policy_actor, on_policy_critic

# rewards and returns are compared with loops; a training shows neither
from rl.trainers.algorithms._intrinsic import IntrinsicReward
from rl.trainers.algorithms.a2c import A2C
from rl.trainers.algorithms.impala import IMPALA
from rl.trainers.algorithms.ppo_rnd import PPO_RND
from rl.trainers.algorithms.reinforce import REINFORCE
from rl.trainers.algorithms.reinforce import updater as reinforce_updater

RECIPES = {
    "a2c": (A2C, A2CConfig, train_a2c),
    "reinforce": (REINFORCE, ReinforceConfig, train_reinforce),
    "impala": (IMPALA, ImpalaConfig, train_impala),
    "ppo-rnd": (PPO_RND, PPORNDConfig, train_ppo_rnd),
}
SMALL = {
    "env": "test/guess",
    "num_envs": 4,
    "total_frames": 512,
    "frames_per_batch": 64,
    "num_cells": (16,),
    "eval_every": 256,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "log_every": 100,
    "loggers": ("csv",),
}
MORE = {"ppo-rnd": {"minibatch_size": 32, "epochs": 2, "sequence_length": 8}}


def config_of(name, **settings):
    return RECIPES[name][1](**{**SMALL, **MORE.get(name, {}), **settings})


def policies(folder, *runs):
    found = [load_checkpoint(folder / run / "checkpoints" / "last.safetensors")["policy"] for run in runs]
    return [torch.cat([value.flatten() for value in policy.values()]) for policy in found]


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_learns_to_guess(name, tmp_path):
    config = config_of(name, total_frames=4096, learning_rate=0.01, final_eval_episodes=5)
    assert RECIPES[name][2](config, out=tmp_path / "run", display="none").eval_return_mean == 8.0
    assert evaluate(tmp_path / "run", episodes=2).tolist() == [8.0, 8.0]


@pytest.mark.parametrize("policy", ["mlp", "gru"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, policy, tmp_path):
    train = RECIPES[name][2]
    config = config_of(name, policy=policy, recurrent_size=8, normalize_observation=True, normalize_reward=True)
    whole = train(config, out=tmp_path / "whole", display="none")
    train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 320)
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert resumed.eval_return_mean == whole.eval_return_mean
    assert torch.equal(*policies(tmp_path, "whole", "half"))


@pytest.mark.parametrize("env", ["Doubles-v0", "Bits-v0", "Dict-v0"])
@pytest.mark.parametrize("name", RECIPES)
def test_actions_and_observations_of_gymnasium_are_trained(name, env, tmp_path):
    config = config_of(name, env=f"rl_trainers_test_gym:{env}", total_frames=128)
    assert RECIPES[name][2](config, out=tmp_path / "run", display="none").train_frames == 128


@pytest.mark.parametrize("name", RECIPES)
def test_a_refusal_names_the_recipe(name):
    with pytest.raises(SpecError, match=rf"^{name} trains one choice .*an Unbounded float32 \[2, 2\]"):
        RECIPES[name][0].make_policy(config_of(name), FakeEnv(Unbounded((2, 2))))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (A2CConfig, {"optimizer": "sgd"}),
        (A2CConfig, {"lmbda": 1.5}),
        (A2CConfig, {"frames_per_batch": 41}),
        (ReinforceConfig, {"learning_rate": 0.0}),
        (ImpalaConfig, {"epochs": 0}),
        (ImpalaConfig, {"c_thresh": 2.0}),
        (PPORNDConfig, {"intrinsic_weight": 0.0}),
        (PPORNDConfig, {"intrinsic_gamma": 1.1}),
    ],
)
def test_settings_out_of_range_are_rejected(kind, wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        kind(**wrong)


def test_impala_with_one_step_on_each_batch_is_a2c(tmp_path):
    """Importance weights of 1: the targets of V-trace are n-step returns, those of lambda = 1."""
    settings = {"learning_rate": 1e-3, "entropy_coeff": 0.01, "anneal_lr": False}
    train_a2c(config_of("a2c", **settings), out=tmp_path / "a2c", display="none")
    train_impala(config_of("impala", epochs=1, **settings), out=tmp_path / "impala", display="none")
    train_impala(config_of("impala", epochs=2, **settings), out=tmp_path / "twice", display="none")
    a2c, impala, twice = policies(tmp_path, "a2c", "impala", "twice")
    torch.testing.assert_close(a2c, impala, atol=1e-4, rtol=1e-4)
    assert (a2c - twice).abs().max() > 0.01


@pytest.mark.parametrize("baseline", [True, False])
def test_reinforce_weights_actions_by_returns(baseline):
    config = config_of("reinforce", baseline=baseline, gamma=0.9)
    env = GuessEnv(4)
    actor, critic = on_policy_actor(config, env), on_policy_critic(config, env)
    batch = Collector(env, actor, frames_per_batch=4 * 11).collect()  # an episode of 8 steps, and 3 of the next
    value, last = (critic(td)["state_value"].detach().squeeze(-1) for td in (batch.clone(), batch["next"][:, -1]))
    reward, done = batch["next", "reward"].squeeze(-1), batch["next", "done"].squeeze(-1)
    expected, following = torch.zeros_like(reward), last
    for t in reversed(range(11)):
        following = expected[:, t] = reward[:, t] + 0.9 * following * ~done[:, t]
    weight = expected - value if baseline else expected
    learn = reinforce_updater(config, env, actor, critic)
    with torch.no_grad():
        batch = learn.estimate(batch)
    figures = learn(batch)()
    assert figures["loss_actor"] == pytest.approx(float(-(batch["action_log_prob"] * weight).mean()), rel=1e-5)
    assert figures["loss_critic"] == pytest.approx(float((expected - value).square().mean()), rel=1e-4)


def test_intrinsic_returns_continue_over_ends_of_episodes():
    config = config_of("ppo-rnd", lmbda=0.8, intrinsic_gamma=0.9)
    env = make_env("test/guess", 4, seed=0)
    rnd = IntrinsicReward(config, env)
    batch = Collector(env, None, frames_per_batch=4 * 11).collect()
    assert batch["next", "done"].any()
    with torch.no_grad():
        reward = rnd.reward(batch)
        advantage, target = rnd.advantage(batch, reward)
        values = [rnd.value(batch[:, t]) for t in range(11)] + [rnd.value(batch["next"][:, -1])]
    expected = torch.zeros(4, 1)
    for t in reversed(range(11)):
        expected = reward[:, t] + 0.9 * values[t + 1] - values[t] + 0.9 * 0.8 * expected
        torch.testing.assert_close(advantage[:, t], expected)
    torch.testing.assert_close(target, advantage + torch.stack(values[:-1], 1))


def test_intrinsic_rewards_are_the_errors_over_the_deviation_of_their_sums():
    config = config_of("ppo-rnd", intrinsic_gamma=0.5)
    env = make_env("test/guess", 4, seed=0)
    rnd, collector = IntrinsicReward(config, env), Collector(env, None, frames_per_batch=4 * 6)
    seen, sums, running = [], [], torch.zeros(4)
    for _ in range(2):
        batch = collector.collect()
        reward = rnd.reward(batch).squeeze(-1)
        seen.append(batch["next", "observation"].flatten(0, 1))
        every = torch.cat(seen)
        normalized = (batch["next", "observation"] - every.mean(0)) / every.std(0, correction=0)
        torch.testing.assert_close(batch["next", "normalized", "observation"], normalized)
        networks = [net.module for net in (rnd.loss.predictor_network, rnd.loss.target_network)]
        errors = (networks[0](normalized) - networks[1](normalized)).square().mean(-1).detach()
        for t in range(6):
            running = errors[:, t] + 0.5 * running
            sums.append(running)
        torch.testing.assert_close(reward, errors / torch.stack(sums).std(correction=0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a2c", "reinforce", "impala"])
def test_recipes_solve_cartpole(name, tmp_path):
    config = RECIPES[name][1](total_frames=100_000, loggers=("csv",))
    assert RECIPES[name][2](config, out=tmp_path / "run", display="none").eval_return_mean > 475
