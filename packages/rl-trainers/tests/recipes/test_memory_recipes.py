"""Recipes with recurrent policies: they learn what only memory can, and stop, go on and are evaluated like others."""

import dataclasses

import pytest
import torch
from rl_trainers_test_envs import FakeEnv
from tensordict import TensorDict

from rl.collectors import Collector
from rl.core import SpecError, states_of
from rl.core.cli import main
from rl.core.errors import ArgumentError
from rl.core.specs import Bounded, Categorical, OneHot, Unbounded
from rl.trainers import DQNConfig, PPOConfig, evaluate, load_policy, make_env, train_dqn, train_ppo
from rl.trainers.actors import on_policy_actor, on_policy_critic
from rl.trainers.algorithms.dqn import dqn_loss, dqn_policy
from rl.trainers.evaluation import load_run

QUICK = {"env": "test/recall", "num_envs": 8, "eval_every": 2048, "loggers": ("csv",), "recurrent_size": 16}
PPO = PPOConfig(
    **QUICK, total_frames=6144, frames_per_batch=256, minibatch_size=64, sequence_length=8, num_cells=(16,),
    learning_rate=3e-3, policy="lstm",
)  # fmt: skip
DQN = DQNConfig(
    **QUICK, total_frames=4096, frames_per_batch=64, learning_starts=256, utd_ratio=0.125, annealing_num_steps=2000,
    sequence_length=8, burn_in=4, num_cells=(16,), learning_rate=3e-3, policy="gru",
)  # fmt: skip


@pytest.mark.parametrize("policy", ["lstm", "gru"])
def test_recurrent_ppo_solves_a_task_of_memory(policy, tmp_path):
    config = dataclasses.replace(PPO, policy=policy)
    assert train_ppo(config, out=tmp_path / "run", display="none").eval_return_mean == 4.0
    assert torch.equal(evaluate(tmp_path / "run", episodes=5), torch.full((5,), 4.0, dtype=torch.float64))


def test_a_feedforward_policy_does_not_solve_a_task_of_memory(tmp_path):
    config = dataclasses.replace(PPO, policy="mlp")
    assert train_ppo(config, out=tmp_path / "run", display="none").eval_return_mean < 3.5


@pytest.mark.parametrize("policy", ["lstm", "gru"])
def test_recurrent_dqn_solves_a_task_of_memory(policy, tmp_path):
    config = dataclasses.replace(DQN, policy=policy)
    assert train_dqn(config, out=tmp_path / "run", display="none").eval_return_mean == 4.0
    policy = load_policy(tmp_path / "run")
    batch = Collector(make_env("test/recall", 3, seed=0), policy, frames_per_batch=12, exploration_type=None).collect()
    assert batch["next", "reward"].sum(1).tolist() == [[4.0]] * 3


@pytest.mark.parametrize("policy", ["mlp", "gru"])
@pytest.mark.parametrize("lmbda", [0.0, 0.7])
def test_targets_of_sequences_look_further_than_one_step(policy, lmbda):
    """From values that are all 0, targets are the discounted rewards that count, and so are the errors."""
    config = dataclasses.replace(DQN, policy=policy, lmbda=lmbda, gamma=0.9)
    env = FakeEnv(Categorical(2))
    loss = dqn_loss(config, env, dqn_policy(config, env))
    for parameter in loss.value_network.parameters():
        parameter.detach().zero_()
    loss.target_value_network.load_state_dict(loss.value_network.state_dict())
    reward = torch.tensor([[1.0, 2.0, 4.0, 8.0]]).unsqueeze(-1)
    done = torch.tensor([[False, True, False, True]]).unsqueeze(-1)
    seen = torch.zeros(1, 4, 4)
    after = TensorDict(observation=seen, reward=reward, done=done, terminated=done.clone(), batch_size=[1, 4])
    batch = TensorDict(observation=seen, action=torch.zeros(1, 4, dtype=torch.int64), next=after, batch_size=[1, 4])
    batch["is_init"] = torch.tensor([[True, False, True, False]]).unsqueeze(-1)
    for state in states_of(loss.value_network):
        batch[state.name] = state.start((1, 4))
    loss(batch)
    weight = 0.0 if policy == "mlp" else 0.9 * lmbda  # of the step behind
    assert torch.allclose(batch["td_error"], torch.tensor([[1 + weight * 2, 2, 4 + weight * 8, 8]]))


SMALL = {"total_frames": 1024, "eval_every": 300, "eval_episodes": 2, "final_eval_episodes": 2, "log_every": 100}
GYM = {"env": "CartPole-v1", "num_envs": 2, "policy": "gru", "observation_indices": (0, 2)}


@pytest.mark.parametrize(
    ("train", "config"),
    [
        pytest.param(train_ppo, dataclasses.replace(PPO, **SMALL), id="ppo"),
        pytest.param(train_ppo, dataclasses.replace(PPO, **SMALL, **GYM), id="ppo-gymnasium"),
        pytest.param(train_dqn, dataclasses.replace(DQN, **SMALL, buffer_size=700), id="dqn"),
    ],
)  # fmt: skip
def test_n_plus_n_frames_equal_2n_frames(train, config, tmp_path):
    whole = train(config, out=tmp_path / "whole", display="none")
    half = train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 500)
    assert half.interrupted
    torch.manual_seed(99)  # whatever happened in between
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert resumed.eval_return_mean == whole.eval_return_mean
    a, b = (load_policy(tmp_path / name, "last").state_dict() for name in ("whole", "half"))
    assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("policy", ["lstm", "gru"])
def test_the_command_line_trains_recurrent_policies(policy, capsys):
    words = ["--env", "test/recall", "--total-frames", "512", "--num-envs", "4", "--frames-per-batch", "128",
             "--minibatch-size", "64", "--eval-episodes", "1", "--final-eval-episodes", "2", "--loggers", "[csv]",
             "--display", "plain", "--recurrent-size", "8", "--recurrent-layers", "2", "--out", "run"]  # fmt: skip
    assert main(["train", "ppo", "--policy", policy, *words]) == 0
    assert main(["eval", "run", "--episodes", "3"]) == 0
    assert "over 3 episodes" in capsys.readouterr().out
    assert len(states_of(load_policy("run"))) == (2 if policy == "lstm" else 1)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        pytest.param(PPOConfig, {"policy": "rnn"}, "policy must be one of mlp, lstm, gru, got 'rnn'", id="name"),
        pytest.param(PPOConfig, {"sequence_length": 33}, r"sequence_length must be a divisor of .* \(128\)", id="rest"),
        pytest.param(PPOConfig, {"sequence_length": 0}, "sequence_length must be a divisor", id="none"),
        pytest.param(PPOConfig, {"minibatch_size": 100}, r"a multiple of sequence_length \(32\)", id="torn"),
        pytest.param(DQNConfig, {"batch_size": 100}, r"a multiple of sequence_length \(16\)", id="torn-dqn"),
        pytest.param(DQNConfig, {"burn_in": 49_990}, "burn_in must be so short", id="burn-in"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_sequences_are_named(config, settings, message):
    with pytest.raises(ArgumentError, match=message):
        config(**{"policy": "lstm", **settings})
    if "policy" not in settings:
        config(**settings)  # without memory they do not matter


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("action", "observation"),
    [
        pytest.param(Bounded(-2.0, 3.0, (2,)), None, id="bounded"),
        pytest.param(Unbounded((2,)), Categorical(7), id="unbounded-index"),
        pytest.param(OneHot(5), Bounded(0, 255, (40, 40, 3), dtype=torch.uint8), id="one-hot-pixels"),
    ],
)
def test_recurrent_layers_precede_every_kind_of_head(kind, action, observation):
    env = FakeEnv(action, observation)
    config = PPOConfig(policy=kind, recurrent_size=8)
    actor, critic = on_policy_actor(config, env), on_policy_critic(config, env)
    td = TensorDict(observation=env.observation_spec["observation"].rand(), batch_size=[3])
    for state in (*states_of(actor), *states_of(critic)):
        td[state.name] = state.start((3,))
    td["is_init"] = torch.ones(3, 1, dtype=torch.bool)
    assert env.full_action_spec["action"].is_in(actor(td)["action"])
    assert critic(td)["state_value"].shape == (3, 1)
    if isinstance(action, OneHot):
        assert env.full_action_spec["action"].is_in(
            dqn_policy(DQNConfig(policy=kind, recurrent_size=8), env)(td)["action"]
        )


def test_velocities_can_be_hidden(tmp_path):
    env = make_env("CartPole-v1", 2, seed=0, observation_indices=(0, 2))
    whole = make_env("CartPole-v1", 2, seed=0)
    assert torch.equal(env.reset()["observation"], whole.reset()["observation"][:, [0, 2]])
    assert env.observation_spec["observation"].shape == (2, 2)
    spec = whole.observation_spec["observation"].space.high[:, [0, 2]]
    assert torch.equal(env.observation_spec["observation"].space.high, spec)
    env.check_env_specs()
    config = PPOConfig(
        total_frames=64,
        frames_per_batch=64,
        minibatch_size=64,
        observation_indices=(2, 0),
        eval_episodes=1,
        final_eval_episodes=1,
    )
    train_ppo(config, out=tmp_path / "run", display="none")
    assert load_run(tmp_path / "run").make_env(1, 0).observation_spec["observation"].shape == (1, 2)


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        pytest.param((0, 4), SpecError, r"of a vector with 4 elements, which are numbered from 0 to 3", id="too-large"),
        pytest.param((1, 1), ArgumentError, "different numbers of 0 or more", id="twice"),
        pytest.param((-1,), ArgumentError, "different numbers of 0 or more", id="negative"),
    ],
)  # fmt: skip
def test_entries_that_are_not_there_are_rejected(indices, error, message, tmp_path):
    with pytest.raises(error, match=message):
        train_ppo(PPOConfig(observation_indices=indices), out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()


def test_hiding_needs_a_vector():
    with pytest.raises(SpecError, match=r"got Categorical \[\]: leave observation_indices out"):
        make_env("FrozenLake-v1", 1, seed=0, observation_indices=(0,))
