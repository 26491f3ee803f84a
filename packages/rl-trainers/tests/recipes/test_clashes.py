"""An observation with the name of an entry of a recipe is refused, and renamed it trains."""

import re

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl.core.errors import SpecError
from rl.core.registry import load
from rl.envs import CatTensors, GymEnv, InitTracker, ParallelEnv, SerialEnv, TransformedEnv
from rl.trainers import A2CConfig, PPOConfig, SACConfig, make_env, train_a2c, train_ppo, train_sac
from rl.trainers.loggers import read_metrics
from rl.trainers.networks import described_observations

SMALL = {"num_envs": 2, "total_frames": 128, "frames_per_batch": 64, "eval_episodes": 1, "final_eval_episodes": 1,
         "num_cells": (4,), "loggers": ("csv",)}  # fmt: skip


class Named(gymnasium.Env):
    """Eight steps that show 7 under the name it is given; the action is a number, or a choice of two."""

    def __init__(self, name, choice=False, also=None, dtype="float32"):
        seven = spaces.Box(0, 9, (1,), np.float32)
        other = {"float32": seven, "bool": spaces.Box(0, 1, (1,), np.bool_), "int8": spaces.MultiBinary(1)}[dtype]
        self.observation_space = spaces.Dict({name: seven} | ({also: other} if also else {}))
        self.action_space = spaces.Discrete(2) if choice else spaces.Box(-1, 1, (1,), np.float32)

    def _seen(self):
        return {
            name: np.array([7 if box.dtype == np.float32 else 1], box.dtype)
            for name, box in self.observation_space.items()
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action):
        self._steps += 1
        return self._seen(), 1.0, self._steps == 8, False, {}


if "Named-v0" not in gymnasium.registry:
    gymnasium.register("Named-v0", entry_point=Named)

OF_ACTORS = ("loc", "scale", "action_log_prob", "state_value", "advantage", "value_target", "collector")
CLASHES = [("ppo", name, False) for name in OF_ACTORS]
CLASHES += [("ppo", "logits", True), ("a2c", "state_value", True), ("ppo-rnd", "intrinsic_value", True)]
CLASHES += [("sac", name, False) for name in ("loc", "scale", "state_action_value", "gamma", "td_error")]
CLASHES += [("rainbow", "index", True)]  # of a prioritized sampler
CLASHES += [("dqn", name, True) for name in ("action_value", "chosen_action_value", "gamma", "steps_to_next_obs")]
CLASHES += [("discrete-sac", "logits", True), ("td3", "state_action_value", False), ("c51", "action_value", True)]
CLASHES += [("bc", "logits", True), ("iql", "state_value", True), ("cql", "state_action_value", False)]
CLASHES += [("td3-bc", "gamma", False), ("act", "action_chunk", False), ("dt", "return_to_go", False)]


@pytest.mark.parametrize(("recipe", "name", "choice"), CLASHES)
def test_a_clash_is_rejected_before_the_first_step(recipe, name, choice, tmp_path):
    found = load("recipe", recipe)
    more = {"dataset": "none:read"} if hasattr(found.config, "dataset") else {"num_envs": 2}
    config = found.config(env="Named-v0", env_kwargs={"name": name, "choice": choice}, **more)
    message = rf"{recipe} has entries '{name}' of its own.*--transform 'rename:\{{in_keys: \[{name}\]"
    with pytest.raises(SpecError, match=message):
        found.train(config, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()


BOOKKEEPING = ["is_init", "step_count", "episode_reward"]


@pytest.mark.parametrize(
    ("recipe", "dtype", "workers"),
    [*[(recipe, dtype, 0) for recipe in ("ppo", "dqn") for dtype in ("float32", "bool", "int8")], ("ppo", "bool", 2)],
)
def test_an_observation_that_recurrent_policies_read_as_the_begin_of_an_episode_is_rejected(
    recipe, dtype, workers, tmp_path
):
    found, asked = load("recipe", recipe), {"name": "x", "also": "is_init", "choice": True, "dtype": dtype}
    message = rf"{recipe} has entries 'is_init' of its own.*--transform 'rename:\{{in_keys: \[is_init\]"
    config = found.config(env="Named-v0", env_kwargs=asked, policy="lstm", num_envs=2, workers=workers)
    with pytest.raises(SpecError, match=message):
        found.train(config, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()


def test_marks_of_a_transform_are_no_observation_of_the_environment(tmp_path):
    renamed = "rename:{in_keys: [is_init], out_keys: [is_init_seen]}"
    for folder, name, transforms in (("a", "x", ("init-tracker",)), ("b", "is_init", (renamed, "init-tracker"))):
        config = PPOConfig(env="Named-v0", env_kwargs={"name": "a", "also": name, "choice": True}, policy="gru",
                           recurrent_size=4, minibatch_size=64, transform=transforms, **SMALL)  # fmt: skip
        assert train_ppo(config, out=tmp_path / folder, display="none").train_frames == 128


@pytest.mark.parametrize("name", BOOKKEEPING)
def test_an_observation_with_a_name_for_bookkeeping_is_listed_as_left_out(name):
    env = make_env("Named-v0", 2, seed=0, env_kwargs={"name": "x", "also": name})
    remedy = rf"'cat-tensors:\{{in_keys: \[x, {name}\], out_key: observation\}}'"
    assert re.search(rf"reads 'x': .*It leaves out '{name}'; .*{remedy}", described_observations(env))
    whole = TransformedEnv(env, CatTensors(["x", name], "observation"))
    assert re.fullmatch(r"reads 'observation': float32 \[2\] as a vector", described_observations(whole))


def tracked():
    return TransformedEnv(GymEnv("Named-v0", name="x"), InitTracker())


def test_marks_of_a_transform_inside_a_batch_are_left_to_it():
    assert "leaves out" not in described_observations(SerialEnv(2, tracked))
    env = ParallelEnv(2, tracked)
    assert "leaves out" not in described_observations(env)
    env.close()


@pytest.mark.parametrize("transform", ["init-tracker", "step-counter", "reward-sum"])
def test_bookkeeping_of_transforms_is_not_listed_as_left_out(transform):
    env = make_env("Named-v0", 2, seed=0, env_kwargs={"name": "x"}, transform=(transform,))
    assert "leaves out" not in described_observations(env)


def test_an_observation_called_episode_reward_is_not_taken_for_the_return():
    with pytest.raises(
        SpecError, match=r"normalize_reward.* has entries 'episode_reward' of its own.*--transform 'rename"
    ):
        make_env("Named-v0", 2, seed=0, env_kwargs={"name": "episode_reward"}, normalize_reward=True)
    env = make_env("Named-v0", 2, seed=0, env_kwargs={"name": "x"}, transform=("reward-sum",), normalize_reward=True)
    assert "episode_reward" in env.observation_spec.keys()


@pytest.mark.parametrize("recipe", ["mappo", "qmix", "maddpg"])
def test_a_clash_in_a_group_is_rejected(recipe, tmp_path):
    name = {"mappo": "state_value", "qmix": "action_value", "maddpg": "state_action_value"}[recipe]
    found = load("recipe", recipe)
    renamed = f"rename:{{in_keys: [[pair, observation]], out_keys: [[pair, {name}]]}}"
    floats = {"floats": True} if recipe == "maddpg" else {}
    config = found.config(env="test/team", env_kwargs=floats, transform=(renamed,))
    with pytest.raises(SpecError, match=rf"in_keys: \[\[pair, {name}\]\], out_keys: \[\[pair, {name}_seen\]\]"):
        found.train(config, out=tmp_path / "run", display="none")


@pytest.mark.parametrize("name", ["alpha", "entropy", "loss_actor", "pred_value"])
def test_outputs_of_losses_clash_with_nothing(name, tmp_path):
    config = SACConfig(env="Named-v0", env_kwargs={"name": name}, learning_starts=32, batch_size=16, **SMALL)
    assert train_sac(config, out=tmp_path / "run", display="none").train_frames == 128


def test_a_renamed_observation_trains_like_any_other(tmp_path):
    """The network sees the same number under either name, so every figure is the same."""
    for folder, name, rename in (
        ("plain", "position", ()),
        ("renamed", "loc", ("rename:{in_keys: [loc], out_keys: [loc_seen]}",)),
    ):
        config = A2CConfig(env="Named-v0", env_kwargs={"name": name}, transform=rename, **SMALL)
        train_a2c(config, out=tmp_path / folder, display="none")
    one, two = (read_metrics(tmp_path / folder / "metrics.csv") for folder in ("plain", "renamed"))
    same = [column for column in one if not column.startswith("time/")]
    assert "train/loss_critic" in same
    for column in same:
        assert torch.equal(torch.tensor(one[column]).nan_to_num(), torch.tensor(two[column]).nan_to_num())


@pytest.mark.parametrize("policy", ["lstm", "gru"])
@pytest.mark.parametrize("recipe", ["ppo", "a2c", "reinforce", "impala", "ppo-rnd", "dqn"])
def test_recurrent_policies_read_several_observations(recipe, policy, tmp_path):
    found = load("recipe", recipe)
    more = {"minibatch_size": 64} if recipe in ("ppo", "ppo-rnd") else {}
    more |= {"batch_size": 64, "learning_starts": 32} if recipe == "dqn" else {}
    settings = {**SMALL, **more, "policy": policy, "recurrent_size": 8}
    config = found.config(env="Named-v0", env_kwargs={"name": "a", "also": "b", "choice": True}, **settings)
    assert found.train(config, out=tmp_path / "run", display="none").train_frames == 128


def test_a_recurrent_policy_reads_all_of_its_observations(tmp_path):
    """Its input changes with each of two observations, as computed by hand from the weights of its first layer."""
    from rl.trainers import load_run

    config = PPOConfig(env="Named-v0", env_kwargs={"name": "a", "also": "b", "choice": True}, policy="gru",
                       recurrent_size=4, minibatch_size=64, **SMALL)  # fmt: skip
    run = load_run(train_ppo(config, out=tmp_path / "run", display="none").folder)
    first = run.policy.module[0][0]
    weight, bias = (one.detach() for one in first.parameters())
    a, b = torch.randn(3, 1), torch.randn(3, 1)
    torch.testing.assert_close(first.module(a, b).detach(), (torch.cat([a, b], -1) @ weight.T + bias).relu())
