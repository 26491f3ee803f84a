"""Options of recipes against their effect: n-step targets, updates per step, compiling, and ppo's initial policy."""

import dataclasses
import functools
import math

import pytest
import torch

from rl.core.errors import ArgumentError, SpecError
from rl.modules import IndependentNormal, TanhNormal, set_exploration_type
from rl.trainers import (
    CrossQConfig,
    DQNConfig,
    PPOConfig,
    PPORNDConfig,
    load_checkpoint,
    make_env,
    train_crossq,
    train_dqn,
    train_ppo,
    train_ppo_rnd,
)
from rl.trainers.actors import on_policy_actor
from rl.trainers.envs import env_options
from rl.trainers.loops import q_learning
from rl.trainers.loops.updater import MinibatchUpdater, Updater

QUICK = {"eval_every": 10**6, "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",), "num_cells": (8,)}
DQN = DQNConfig(**QUICK, env="CartPole-v1", total_frames=192, num_envs=2, frames_per_batch=32, batch_size=16,
                learning_starts=64, gamma=0.9, buffer_size=500)  # fmt: skip
PPO = PPOConfig(**QUICK, env="CartPole-v1", total_frames=256, num_envs=2, frames_per_batch=128, minibatch_size=64,
                epochs=2, anneal_lr=False)  # fmt: skip
CROSSQ = CrossQConfig(**QUICK, env="pendulum", total_frames=192, frames_per_batch=32, batch_size=16,
                      learning_starts=64, utd_ratio=0.25, critic_num_cells=(8,))  # fmt: skip


def stored(config, monkeypatch, tmp_path):
    """The replay buffer after a run, and the batches that were collected."""
    seen, batches = {}, []
    make, store = q_learning.transitions_buffer, q_learning._store
    monkeypatch.setattr(q_learning, "transitions_buffer", lambda *args: seen.setdefault("buffer", make(*args)))
    monkeypatch.setattr(q_learning, "_store", lambda batch, *a, **kw: (batches.append(batch), store(batch, *a, **kw)))
    train_dqn(config, out=tmp_path / str(config.n_steps), display="none")
    return seen["buffer"][:], torch.cat(batches, 1)


def test_n_step_adds_up_the_rewards_of_an_episode(tmp_path, monkeypatch):
    """Against a loop over each environment: CartPole-v1 pays 1 for a step."""
    rows, steps = stored(dataclasses.replace(DQN, n_steps=3), monkeypatch, tmp_path)
    expected = {}
    for env in range(2):
        done = steps["next", "done"][env].flatten().tolist()
        for t in range(len(done) - 3):
            k = next((i + 1 for i in range(3) if done[t + i]), 3)
            key = tuple(steps["observation"][env, t].tolist())
            expected[key] = (sum(0.9**i for i in range(k)), 0.9**k, steps["next", "observation"][env, t + k - 1])
    assert len(rows) == len(expected) == 192 - 2 * 3
    for row in rows:
        reward, discount, after = expected[tuple(row["observation"].tolist())]
        assert float(row["next", "reward"]) == pytest.approx(reward)
        assert float(row["gamma"]) == pytest.approx(discount)
        assert torch.equal(row["next", "observation"], after)


@pytest.mark.parametrize(("rate", "steps"), [(0.5, 16 * 5), (2, 64 * 5), (0.04, 1 * 5)])
def test_utd_ratio_is_the_number_of_gradient_steps_a_frame(rate, steps, tmp_path, monkeypatch):
    count = []
    step = Updater.step
    monkeypatch.setattr(Updater, "step", lambda *args: (count.append(1), step(*args))[1])
    train_dqn(dataclasses.replace(DQN, utd_ratio=rate), out=tmp_path / "run", display="none")
    assert len(count) == steps  # five of six batches follow the first 64 frames


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (DQN, {"utd_ratio": 0.01}, r"utd_ratio must be at least 1 / frames_per_batch \(0.03125\)"),
        (DQN, {"n_steps": 0}, "n_steps must be above 0"),
        (DQN, {"n_steps": 2, "policy": "gru"}, "n_steps must be 1 with policy=gru"),
        (PPO, {"compile": True, "anneal_clip_epsilon": True}, "anneal_clip_epsilon must be false with compile"),
        (PPO, {"log_std_init": 9.0}, r"log_std_init must be in \[-5, 2\]"),
    ],
)
def test_options_that_do_not_fit_are_rejected(config, change, message):
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(config, **change)


@pytest.mark.parametrize(
    ("train", "config"),
    [(train_ppo, PPO), (train_dqn, DQN), (train_crossq, CROSSQ)],
    ids=["ppo", "dqn", "crossq"],
)
def test_a_compiled_update_gives_the_same_weights(train, config, tmp_path, monkeypatch):
    compiled = []
    original = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda model, **kw: (compiled.append(model), original(model, backend="eager"))[1]
    )
    policies = {}
    for on in (False, True):
        train(dataclasses.replace(config, compile=on), out=tmp_path / str(on), display="none")
        policies[on] = load_checkpoint(tmp_path / str(on) / "checkpoints" / "last.safetensors")["policy"]
    assert compiled
    for name, weight in policies[False].items():
        torch.testing.assert_close(policies[True][name], weight)


def actor_of(**settings):
    config = PPOConfig(env="Pendulum-v1", **settings)
    env = make_env(config.env, 3, seed=0, **env_options(config))
    torch.manual_seed(0)
    return env, on_policy_actor(config, env)


@pytest.mark.parametrize("own", [True, False])
def test_log_std_init_is_the_first_deviation_of_actions(own):
    env, actor = actor_of(log_std_init=-1.5, state_independent_std=own)
    dist = actor.get_dist(env.reset())
    assert torch.allclose(dist.scale, torch.full((3, 1), math.exp(-1.5)), atol=0 if own else 0.01)
    assert (dist.scale.std() == 0) == own
    assert ("log_scale" in "".join(actor.state_dict())) == own


def test_clip_actions_clips_actions_of_a_normal_distribution():
    env, actor = actor_of(clip_actions=True, log_std_init=2.0)
    assert isinstance(actor.get_dist(env.reset()), IndependentNormal)
    with set_exploration_type("random"), torch.no_grad():
        data = env.rollout(50, actor)
    assert data["action"].abs().max() > 2
    plain, other = actor_of()
    assert isinstance(other.get_dist(plain.reset()), TanhNormal)
    # the reward of Pendulum-v1 is -(angle^2 + 0.1 velocity^2 + 0.001 torque^2) of the state before the step
    cos, sin, velocity = data["observation"].double().unbind(-1)
    torque = data["action"].double().squeeze(-1).clamp(-2, 2)
    expected = -(torch.atan2(sin, cos) ** 2 + 0.1 * velocity**2 + 0.001 * torque**2)
    assert torch.allclose(data["next", "reward"].squeeze(-1).double(), expected, atol=1e-4)
    with pytest.raises(SpecError, match=r"clip_actions .* is for one action of bounded floats"):
        make_env("CartPole-v1", 2, seed=0, clip_actions=True)


def test_ortho_init_gives_orthogonal_weights():
    weights = [actor_of(ortho_init=ortho)[1].state_dict() for ortho in (True, False)]
    (last,) = [w for name, w in weights[0].items() if w.shape == (1, 64)]
    assert float(last.norm()) == pytest.approx(0.01, rel=1e-4)
    (last,) = [w for name, w in weights[1].items() if w.shape == (1, 64)]
    assert 0.1 < float(last.norm()) < 1  # torch's are uniform in 1/8: 64 of them have a norm near 0.58


def test_anneal_clip_epsilon_lowers_the_clip_range(tmp_path, monkeypatch):
    seen = []
    call = MinibatchUpdater.__call__
    monkeypatch.setattr(
        MinibatchUpdater, "__call__", lambda self, b: (seen.append(self.loss.clip_epsilon), call(self, b))[1]
    )
    train_ppo(
        dataclasses.replace(PPO, total_frames=512, anneal_clip_epsilon=True), out=tmp_path / "run", display="none"
    )
    assert seen == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert functools.reduce(max, seen) == 0.2


def final_weights(folder, name, config, train=train_ppo):
    train(config, out=folder / name, display="none")
    policy = load_checkpoint(folder / name / "checkpoints" / "last.safetensors")["policy"]
    return torch.cat([value.flatten() for value in policy.values()])


def test_epochs_end_where_the_policy_is_too_far_from_the_one_that_collected(tmp_path):
    one_batch = dataclasses.replace(PPO, total_frames=128, minibatch_size=128)
    found = {}
    for epochs, kl in ((1, 0.0), (5, 1e-12), (5, 100.0), (5, 0.0)):
        config = dataclasses.replace(one_batch, epochs=epochs, target_kl=kl)
        found[epochs, kl] = final_weights(tmp_path, f"{epochs}-{kl}", config)
    assert torch.equal(found[5, 1e-12], found[1, 0.0])  # the second minibatch is not the policy's own any more
    assert torch.equal(found[5, 100.0], found[5, 0.0])
    assert not torch.equal(found[5, 0.0], found[1, 0.0])


RND = PPORNDConfig(**QUICK, env="CartPole-v1", total_frames=128, num_envs=2, frames_per_batch=128, minibatch_size=128)


def test_nothing_of_ppo_rnd_is_trained_after_its_epochs_have_ended(tmp_path):
    found = []
    for epochs, kl in ((1, 0.0), (5, 1e-12)):
        config = dataclasses.replace(RND, epochs=epochs, target_kl=kl)
        train_ppo_rnd(config, out=tmp_path / f"{epochs}", display="none")
        found.append(load_checkpoint(tmp_path / f"{epochs}" / "checkpoints" / "last.safetensors")["rnd"])
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key


def test_all_networks_of_ppo_rnd_have_the_precision_of_the_config(tmp_path):
    kinds = {}

    def seen(module, inputs, output):
        if isinstance(module, torch.nn.Linear) and torch.is_grad_enabled():
            kinds[module] = output.dtype

    with torch.nn.modules.module.register_module_forward_hook(seen):
        train_ppo_rnd(dataclasses.replace(RND, precision="bf16"), out=tmp_path / "run", display="none")
    assert len(kinds) > 6
    assert set(kinds.values()) == {torch.bfloat16}


BF16 = {
    "ppo": (train_ppo, PPO),
    "ppo, lstm": (train_ppo, dataclasses.replace(PPO, policy="lstm", recurrent_size=8, sequence_length=16)),
    "dqn": (train_dqn, DQN),
    "crossq": (train_crossq, CROSSQ),
}


@pytest.mark.parametrize("name", BF16)
def test_losses_of_bfloat16_give_nearly_the_same_weights_of_float32(name, tmp_path):
    train, config = BF16[name]
    config = dataclasses.replace(config, total_frames=128)
    exact = final_weights(tmp_path, "exact", config, train)
    rounded = final_weights(tmp_path, "rounded", dataclasses.replace(config, precision="bf16"), train)
    begun = final_weights(tmp_path, "begun", dataclasses.replace(config, learning_rate=1e-9), train)
    assert rounded.dtype is torch.float32
    assert not torch.equal(rounded, exact)
    assert torch.linalg.vector_norm(rounded - exact) < 0.3 * torch.linalg.vector_norm(exact - begun)
