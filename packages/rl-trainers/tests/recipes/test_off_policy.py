"""The recipes of off-policy actor-critic algorithms: they learn, resume exactly and refuse what they cannot train."""

import dataclasses

import pytest
import torch
from rl_trainers_test_envs import FakeEnv
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Bounded, Categorical, OneHot
from rl.modules import BatchRenorm1d
from rl.objectives import CrossQLoss, SoftUpdate
from rl.trainers import (
    CrossQConfig,
    DDPGConfig,
    DiscreteSACConfig,
    REDQConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
    load_checkpoint,
    load_policy,
    make_env,
    train_crossq,
    train_ddpg,
    train_discrete_sac,
    train_redq,
    train_sac,
    train_td3,
    train_tqc,
)
from rl.trainers.actors import exploration_noise
from rl.trainers.algorithms.sac import (
    CROSSQ,
    DISCRETE_SAC,
    REDQ,
    SAC,
    TQC,
    crossq_loss,
    crossq_policy,
    discrete_loss,
    discrete_policy,
)
from rl.trainers.algorithms.td3 import DDPG, TD3

RECIPES = {
    "sac": (SAC, SACConfig, train_sac),
    "td3": (TD3, TD3Config, train_td3),
    "ddpg": (DDPG, DDPGConfig, train_ddpg),
    "tqc": (TQC, TQCConfig, train_tqc),
    "redq": (REDQ, REDQConfig, train_redq),
    "crossq": (CROSSQ, CrossQConfig, train_crossq),
    "discrete-sac": (DISCRETE_SAC, DiscreteSACConfig, train_discrete_sac),
}
CONTINUOUS = [name for name in RECIPES if name != "discrete-sac"]
SMALL = {
    "env": "pendulum",
    "max_episode_steps": 20,
    "num_envs": 4,
    "total_frames": 512,
    "frames_per_batch": 64,
    "utd_ratio": 0.1,
    "batch_size": 32,
    "buffer_size": 1000,
    "learning_starts": 128,
    "num_cells": (16,),
    "eval_every": 256,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "log_every": 100,
    "loggers": ("csv",),
}
DISCRETE = {**SMALL, "env": "CartPole-v1"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    _, kind, train = RECIPES[name]
    more = {} if name in ("td3", "redq") else {"n_steps": 3, "sampler": "prioritized:{alpha: 0.6, beta: 0.4}"}
    more |= {"noise": "ou"} if name == "ddpg" else {}
    config = kind(**(DISCRETE if name == "discrete-sac" else SMALL), **more)
    whole = train(config, out=tmp_path / "whole", display="none")
    train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 320)
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert resumed.eval_return_mean == whole.eval_return_mean
    last = "checkpoints/last.safetensors"
    one, two = (load_checkpoint(tmp_path / run / last)["policy"] for run in ("whole", "half"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", CONTINUOUS)
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


@pytest.mark.parametrize("name", CONTINUOUS)
def test_discrete_actions_are_rejected(name, tmp_path):
    _, kind, train = RECIPES[name]
    with pytest.raises(SpecError, match=f"{name} trains vectors of bounded floats.*dqn or ppo"):
        train(kind(**DISCRETE), out=tmp_path / "run", display="none")


def test_discrete_sac_rejects_continuous_actions(tmp_path):
    with pytest.raises(SpecError, match=r"discrete-sac trains one choice.*ppo"):
        train_discrete_sac(DiscreteSACConfig(**SMALL), out=tmp_path / "run", display="none")


@pytest.mark.parametrize("spec", [Categorical(5), OneHot(5)], ids=["categorical", "one-hot"])
def test_discrete_sac_chooses_integers_or_one_hot_vectors_from_images(spec):
    env = FakeEnv(spec, Bounded(0, 255, (40, 36, 3), dtype=torch.uint8))
    config = DiscreteSACConfig(num_cells=(8,))
    policy = discrete_policy(config, env)
    batch = TensorDict(observation=env.observation_spec["observation"].rand(), batch_size=[3])
    action = policy(batch)["action"].clone()
    assert env.full_action_spec["action"].is_in(action)
    flag = torch.zeros(3, 1, dtype=torch.bool)
    batch["next"] = {"observation": batch["observation"], "reward": torch.ones(3, 1), "done": flag, "terminated": flag}
    loss = discrete_loss(config, env, policy)
    index = action.int().argmax(-1) if isinstance(spec, OneHot) else action
    values = loss.qvalue_network(batch)["action_value"].gather(-1, index.expand(2, 3).unsqueeze(-1))
    torch.testing.assert_close(loss(batch)["pred_value"], values.mean().detach())


def statistics(module):
    return [one.clone() for name, one in module.named_buffers() if "running" in name]


def unchanged(module, before):
    return all(map(torch.equal, statistics(module), before))


def test_running_statistics_of_crossq_change_only_in_updates(tmp_path, monkeypatch):
    """Those of the critics change in their loss, those of the actor in its own; every action leaves both."""
    changes = {"critic_loss": set(), "actor_loss": set()}
    seen = []
    for name, found in changes.items():
        plain = getattr(CrossQLoss, name)

        def watched(loss, batch, plain=plain, found=found):
            actor, critics = statistics(loss.actor_network), statistics(loss.qvalue_network)
            assert not seen or all(map(torch.equal, [*actor, *critics], seen[-1]))  # between losses
            out = plain(loss, batch)
            found.add((unchanged(loss.actor_network, actor), unchanged(loss.qvalue_network, critics)))
            seen.append([*statistics(loss.actor_network), *statistics(loss.qvalue_network)])
            return out

        monkeypatch.setattr(CrossQLoss, name, watched)
    train_crossq(CrossQConfig(**SMALL, critic_num_cells=(16,)), out=tmp_path / "run", display="none")
    assert changes == {"critic_loss": {(True, False)}, "actor_loss": {(False, True)}}
    policy = load_policy(tmp_path / "run", "last")
    assert all(map(torch.equal, statistics(policy), seen[-1]))
    one = policy(TensorDict(observation=torch.zeros(3)))["loc"]  # the running statistics, not those of the batch
    torch.testing.assert_close(policy(TensorDict(observation=torch.zeros(5, 3), batch_size=[5]))["loc"][2], one)
    assert unchanged(policy, seen[-1][: len(statistics(policy))])


def test_crossq_has_no_targets_and_normalizes_each_layer():
    config = CrossQConfig(env="pendulum", num_cells=(16,), critic_num_cells=(32, 8))
    env = make_env("pendulum", 1, seed=0)
    loss = crossq_loss(config, env, crossq_policy(config, env))
    assert loss.target_qvalue_network is None
    widths = [[len(m.weight) for m in net.modules() if isinstance(m, BatchRenorm1d)]
              for net in (loss.actor_network, *loss.qvalue_network.members)]  # fmt: skip
    assert widths == [[3, 16], [4, 32, 8], [4, 32, 8]]


@pytest.mark.parametrize("name", ["sac", "tqc", "redq", "crossq", "discrete-sac"])
def test_the_target_entropy_is_that_of_the_loss(name, tmp_path):
    """A policy with less entropy than the target raises the temperature, and one with more lowers it."""
    _, kind, train = RECIPES[name]
    small = {**(DISCRETE if name == "discrete-sac" else SMALL), "total_frames": 192}
    for target, rises in ((-100.0, False), (100.0, True)):
        folder = tmp_path / str(target)
        train(kind(**small, target_entropy=target), out=folder, display="none")
        alpha = float(load_checkpoint(folder / "checkpoints/last.safetensors")["loss"]["log_alpha"])
        assert alpha != 0
        assert (alpha > 0) == rises


def test_noise_ou_is_correlated_from_step_to_step():
    """Steps of an Ornstein-Uhlenbeck process move its noise by sigma * sqrt(dt), which is a tenth of sigma."""
    env = make_env("pendulum", 1, seed=0)
    noise = exploration_noise(DDPGConfig(env="pendulum", noise="ou", exploration_noise=0.3), env)
    td = TensorDict(action=torch.zeros(4000, 1), batch_size=[4000])
    for state in noise.states:
        td[state.name] = state.start((4000,))
    assert noise(td)["action"].std() == pytest.approx(0.3 * 2 * 0.1, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (SACConfig, {"alpha_init": 0.0}),
        (TD3Config, {"policy_delay": 0}),
        (DDPGConfig, {"exploration_noise": -1.0}),
        (TQCConfig, {"top_quantiles_to_drop_per_net": 25}),
        (REDQConfig, {"sub_sample_len": 11}),
        (CrossQConfig, {"tau": 0.005}),
        (DiscreteSACConfig, {"target_entropy_weight": 1.0}),
        (TQCConfig, {"target_entropy": "some"}),
        (DDPGConfig, {"noise": "pink"}),
        (SACConfig, {"utd_ratio": 0.0001}),
        (SACConfig, {"n_steps": 0}),
    ],
)
def test_settings_out_of_range_are_rejected(kind, wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        kind(**wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_each_recipe_swings_up_a_pendulum(name, tmp_path):
    _, kind, train = RECIPES[name]
    more = {"num_qvalue_nets": 3} if name == "redq" else {}
    config = kind(env="pendulum", num_envs=4, total_frames=8000, num_cells=(64, 64), loggers=("csv",), **more)
    config = dataclasses.replace(config, learning_rate=1e-3, batch_size=128)
    assert train(config, out=tmp_path / "run", display="none").eval_return_mean > -400
    assert make_env("pendulum", 1, seed=0).action_spec.shape == (1, 1)
