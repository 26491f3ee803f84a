"""The recipes of several agents learn, resume exactly, and refuse what they cannot train."""

import re

import pytest
import torch
from rl_trainers_test_envs import TeamEnv
from tensordict import TensorDict

from rl.core.cli import main
from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Bounded, Categorical, Composite, Unbounded
from rl.testing import check_env
from rl.trainers import evaluate, load_checkpoint, load_run, make_env
from rl.trainers.algorithms.maddpg import MADDPG
from rl.trainers.algorithms.mappo import IPPO, MAPPO
from rl.trainers.algorithms.qmix import IQL_MA, QMIX, VDN
from rl.trainers.group_modules import GroupLosses
from rl.trainers.groups import groups_of

RECIPES = {recipe.name: recipe for recipe in (MAPPO, IPPO, QMIX, VDN, IQL_MA, MADDPG)}
ON, Q = {"mappo", "ippo"}, {"qmix", "vdn", "iql-ma"}


def config_of(name, env_kwargs=None, **changes):
    settings = {
        "env": "test/team",
        "env_kwargs": {"floats": name == "maddpg", **(env_kwargs or {})},
        "num_envs": 8,
        "total_frames": 512,
        "frames_per_batch": 128,
        "minibatch_size" if name in ON else "batch_size": 64,
        "num_cells": (16,),
        "learning_rate": 0.01,
        "eval_every": 4096,
        "eval_episodes": 2,
        "final_eval_episodes": 2,
        "log_every": 128,
        "loggers": ("csv",),
    }
    if name not in ON:
        settings |= {"utd_ratio": 0.25, "learning_starts": 128, "buffer_size": 2048}
    if name in Q:
        settings |= {"annealing_num_steps": 1024, "tau": 0.1, "gamma": 0.5}
    if name == "maddpg":
        settings |= {"gamma": 0.5, "tau": 0.1, "exploration_noise": 0.5}
    return RECIPES[name].config(**{**settings, **changes})


def train(name, config, **options):
    return RECIPES[name].train(config, display="none", **options)


def test_the_environment_of_these_tests_conforms():
    check_env(lambda: TeamEnv(3))
    check_env(lambda: TeamEnv(3, leaves=True))


@pytest.mark.parametrize("share_params", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_of_groups_learns(name, share_params, tmp_path):
    config = config_of(name, total_frames=6144, share_params=share_params)
    assert train(name, config, out=tmp_path / "run").eval_return_mean > 7.5
    assert float(evaluate(tmp_path / "run", episodes=2).mean()) > 7.5


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    more = {"mappo": {"value_norm": True}, "ippo": {"policy": "gru", "sequence_length": 8}}
    config = config_of(name, **more.get(name, {}))
    whole = train(name, config, out=tmp_path / "whole")
    train(name, config, out=tmp_path / "half", should_stop=lambda frames: frames >= 256)
    resumed = train(name, config, resume=tmp_path / "half")
    assert resumed.eval_return_mean == whole.eval_return_mean
    one, two = (load_checkpoint(tmp_path / run / "checkpoints" / "last.safetensors") for run in ("whole", "half"))
    for key, value in one["policy"].items():
        assert torch.equal(value, two["policy"][key]), key


@pytest.mark.parametrize(("name", "policy"), [("mappo", "mlp"), ("mappo", "gru"), ("qmix", "mlp")])
def test_agents_that_leave_are_trained_until_then(name, policy, tmp_path):
    settings = {} if policy == "mlp" else {"policy": policy, "recurrent_size": 16, "sequence_length": 8}
    config = config_of(name, {"leaves": True, "groups": ["pair"]}, total_frames=6144, **settings)
    assert train(name, config, out=tmp_path / "run").eval_return_mean > 5.6  # of 8 + 4 halved


@pytest.mark.parametrize(("name", "policy"), [("mappo", "gru"), ("ippo", "lstm")])
def test_recurrent_policies_of_groups_solve_a_task_of_memory(name, policy, tmp_path):
    settings = {"policy": policy, "recurrent_size": 16, "sequence_length": 8, "total_frames": 4096}
    config = config_of(name, {"brief": True, "groups": ["pair"]}, **settings)
    # without memory at most 4.5: 1 for the first step, and half of the other seven
    assert train(name, config, out=tmp_path / "run").eval_return_mean > 7.5
    assert float(evaluate(tmp_path / "run", episodes=2).mean()) > 7.5


@pytest.mark.parametrize("name", ["mappo", "vdn"])
def test_agents_may_have_one_reward(name, tmp_path):
    config = config_of(name, {"shared": True}, total_frames=6144)
    assert train(name, config, out=tmp_path / "run").eval_return_mean > 7.0


def test_random_actions_are_legal(tmp_path):
    config = config_of("iql-ma", {"strict": True}, learning_starts=512)
    assert train("iql-ma", config, out=tmp_path / "run").eval_return_mean == 8.0


@pytest.mark.parametrize("name", ["mappo", "qmix", "iql-ma"])
def test_actions_of_agents_that_leave_may_be_masked(name, tmp_path):
    config = config_of(name, {"strict": True, "leaves": True, "groups": ["pair"]})
    assert train(name, config, out=tmp_path / "run").eval_return_mean == 6.0  # of 8 and 4


def test_sums_of_rewards_are_no_observation(tmp_path):
    train("mappo", config_of("mappo", transform=("reward-sum",)), out=tmp_path / "run")
    assert load_run(tmp_path / "run").policy.in_keys == [("pair", "observation"), ("single", "observation")]


def test_one_hot_actions_may_be_masked(tmp_path):
    config = config_of("mappo", {"strict": True, "one_hot": True})
    assert train("mappo", config, out=tmp_path / "run").eval_return_mean == 8.0


@pytest.mark.parametrize("name", ["mappo", "iql-ma", "maddpg"])
def test_a_limit_of_steps_ends_agents_with_flags_of_their_own(name, tmp_path):
    config = config_of(name, {"leaves": True}, max_episode_steps=3)
    assert train(name, config, out=tmp_path / "run").eval_return_mean <= 3.0


def test_priorities_are_those_of_the_worst_group():
    class Part(torch.nn.Module):
        def __init__(self, *errors):
            super().__init__()
            self.errors = torch.tensor(errors)

        def forward(self, batch):
            batch["td_error"] = self.errors
            return TensorDict(loss=self.errors.sum(), pred_value=self.errors.mean())

    batch = TensorDict(batch_size=[2])
    out = GroupLosses([Part(1.0, 2.0), Part(3.0, 0.0)])(batch)
    assert batch["td_error"].tolist() == [3.0, 2.0]
    assert (float(out["loss"]), float(out["pred_value"])) == (6.0, 1.5)


def test_the_return_is_that_of_a_group():
    env = make_env("test/team", 4, seed=0, team="single")
    data = env.rollout(8, break_when_any_done=False)
    torch.testing.assert_close(data["next", "reward"], data["next", "single", "reward"][..., 0, :])
    both = make_env("test/team", 4, seed=0, team="").rollout(8, break_when_any_done=False)
    every = torch.cat([both["next", name, "reward"] for name in ("pair", "single")], -2)
    torch.testing.assert_close(both["next", "reward"], every.mean(-2))


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("qmix", {"env_kwargs": {"floats": True}}, "qmix trains discrete actions"),
        ("maddpg", {"env_kwargs": {"floats": False}}, "maddpg trains vectors of bounded floats"),
    ],
)
def test_other_environments_are_rejected(name, changes, match, tmp_path):
    with pytest.raises(SpecError, match=match):
        train(name, config_of(name, **changes), out=tmp_path / "run")


def test_an_unknown_report_group_is_rejected(tmp_path):
    with pytest.raises(ArgumentError, match=r"'wolves'.* is no group; the environment has pair, single"):
        train("ippo", config_of("ippo", report_group="wolves"), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (
            Unbounded((2, 1)),
            r"an Unbounded float32 .* without finite bounds: .* or train it without bounds with mappo$",
        ),
        (Bounded(0, torch.inf, shape=(2, 1)), r"bounds: set them with --transform 'clip:{.*\[pair, action\]\], .*}'$"),
        (Bounded(0, 1, shape=(2,)), "a Bounded float32 .*: convert it with a transform"),
        (Unbounded((2,)), "an Unbounded float32 .*: convert it with a transform"),
        (Categorical(2, shape=(2,)), "int64 .*: train discrete actions with mappo or qmix"),
    ],
)
def test_maddpg_names_what_other_actions_lack(spec, match):
    env = TeamEnv(4, groups=["pair"])
    env.action_spec = Composite({("pair", "action"): spec})
    with pytest.raises(SpecError, match=match):
        MADDPG.make_policy(config_of("maddpg"), env)


@pytest.mark.parametrize("shape", [(2,), (1,)])
def test_rewards_without_a_dimension_of_agents_are_rejected(shape):
    env = TeamEnv(4, groups=["pair"])
    env.reward_spec = Composite({("pair", "reward"): Unbounded(shape), "reward": Unbounded((1,))})
    found = re.escape(f"""rewards {{"('pair', 'reward')": [4, {shape[0]}]}} and actions [4, 2]. If group_map in""")
    with pytest.raises(SpecError, match=found):
        groups_of(env, "mappo")


def test_a_run_whose_environment_has_no_state_resumes_with_a_note(tmp_path, monkeypatch, capsys, recwarn):
    monkeypatch.delattr(TeamEnv, "state_dict")
    monkeypatch.delattr(TeamEnv, "load_state_dict")
    config = config_of("mappo")
    train("mappo", config, out=tmp_path / "run", should_stop=lambda frames: frames >= 256)
    MAPPO.train(config, resume=tmp_path / "run", display="plain")
    line = "note: TeamEnv is not restored exactly: it has no state to save within an episode."
    assert capsys.readouterr().out.count(line) == 1
    assert not recwarn.list


def test_environments_of_one_agent_are_rejected(tmp_path):
    config = MAPPO.config(env="test/guess", num_envs=4, frames_per_batch=64, minibatch_size=32)
    with pytest.raises(SpecError, match="trains groups of agents with one action each"):
        train("mappo", config, out=tmp_path / "run")


def test_settings_of_one_agent_are_rejected():
    with pytest.raises(ArgumentError, match="normalize_observation must be left out with mappo"):
        config_of("mappo", normalize_observation=True)
    with pytest.raises(ArgumentError, match="dueling must be left out with vdn, which does not have it, got True"):
        config_of("vdn", dueling=True)
    with pytest.raises(ArgumentError, match="n_steps must be left out with maddpg"):
        config_of("maddpg", n_steps=3)
    with pytest.raises(ArgumentError, match="share_params must be true with policy=gru, got False"):
        config_of("mappo", policy="gru", share_params=False, sequence_length=8)


@pytest.mark.parametrize("name", RECIPES)
def test_help_leaves_out_settings_that_are_rejected(name, capsys):
    assert main(["train", name, "--help"]) == 0
    page = capsys.readouterr().out
    for setting in RECIPES[name].config.absent:
        assert f"--{setting.replace('_', '-')} " not in page
    assert "--share-params " in page
