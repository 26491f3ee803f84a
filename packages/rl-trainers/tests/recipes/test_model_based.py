"""MBPO and CEM-MPC: the ensemble is fitted, imagined steps are those of its environment, runs resume exactly."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.replay import LazyTensorStorage, ReplayBuffer
from rl.trainers import (
    CEMMPCConfig,
    MBPOConfig,
    load_checkpoint,
    load_policy,
    make_env,
    train_cem_mpc,
    train_mbpo,
)
from rl.trainers.algorithms.mbpo import MBPO, model
from rl.trainers.algorithms.sac import sac_loss
from rl.trainers.loggers import read_metrics
from rl.trainers.loops.model_based import (
    ImaginedTraining,
    MixedBuffer,
    ModelFit,
    check_termination,
)
from rl.trainers.replay import stored_keys
from rl.trainers.world_models import ensemble, model_env

SMALL = {
    "env": "pendulum",
    "max_episode_steps": 20,
    "num_envs": 4,
    "total_frames": 256,
    "frames_per_batch": 32,
    "learning_starts": 64,
    "num_members": 3,
    "num_elites": 2,
    "model_num_cells": (16,),
    "model_every": 64,
    "model_max_epochs": 3,
    "model_batch_size": 32,
    "eval_every": 128,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "log_every": 100,
    "loggers": ("csv",),
}
RECIPES = {
    "mbpo": (
        MBPOConfig,
        train_mbpo,
        {"num_cells": (16,), "batch_size": 16, "buffer_size": 1000, "utd_ratio": 0.1, "rollouts_per_step": 2},
    ),
    "cem-mpc": (
        CEMMPCConfig,
        train_cem_mpc,
        {"planning_horizon": 4, "optim_steps": 2, "num_candidates": 8, "top_k": 2},
    ),
}


def settings(name, **changes):
    kind, train, more = RECIPES[name]
    return kind(**{**SMALL, **more, **changes}), train


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    config, train = settings(name)
    whole = train(config, out=tmp_path / "whole", display="none")
    train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 160)
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert resumed.eval_return_mean == whole.eval_return_mean
    last = "checkpoints/last.safetensors"
    one, two = (load_checkpoint(tmp_path / run / last) for run in ("whole", "half"))
    for part in ("policy", "model"):
        assert all(torch.equal(one[part][key], two[part][key]) for key in one[part])


@pytest.mark.parametrize("name", RECIPES)
def test_the_policy_of_a_run_acts_within_the_bounds(name, tmp_path):
    config, train = settings(name)
    train(config, out=tmp_path / "run", display="none")
    policy = load_policy(tmp_path / "run")
    td = TensorDict(observation=100 * torch.randn(50, 3), batch_size=[50])
    action = policy(td)["action"]
    assert action.shape == (50, 1)
    assert action.abs().max() <= 2.0


def test_the_planner_of_a_run_plans_with_the_trained_ensemble(tmp_path):
    config, train = settings("cem-mpc")
    train(config, out=tmp_path / "run", display="none")
    state = load_checkpoint(tmp_path / "run" / "checkpoints/last.safetensors")
    planner = load_policy(tmp_path / "run", "last")
    assert planner.env.world_model is planner.world_model
    assert all(torch.equal(state["model"][key], one) for key, one in planner.world_model.state_dict().items())


def test_metrics_of_a_fit_and_of_the_policy_are_logged(tmp_path):
    config, train = settings("mbpo", log_every=32)
    train(config, out=tmp_path / "run", display="none")
    found = read_metrics(tmp_path / "run/metrics.csv")
    for name in ("loss_critic", "model_loss", "model_error", "model_epochs"):
        assert found[f"train/{name}"], name


def real_steps(count):
    """Steps of a linear environment."""
    torch.manual_seed(0)
    x, a = torch.randn(count, 3), torch.rand(count, 1) * 4 - 2
    after = x + torch.cat([a, a.square(), -a], -1) * 0.1
    flag = torch.zeros(count, 1, dtype=torch.bool)
    over = {"done": flag, "terminated": flag.clone()}
    return TensorDict(
        observation=x,
        action=a,
        next=TensorDict(observation=after, reward=x[:, :1] + a, **over, batch_size=[count]),
        batch_size=[count],
    )


def filled(config, count=500):
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=config.model_batch_size)
    buffer.extend(real_steps(count))
    return buffer


def test_a_fit_predicts_steps_that_it_has_not_seen():
    config, _ = settings("mbpo", model_num_cells=(32, 32), model_max_epochs=60, model_learning_rate=3e-3)
    env = make_env("pendulum", 1, seed=0)
    torch.manual_seed(1)
    dynamics = ensemble(config, env)
    fit = ModelFit(config, dynamics, filled(config))
    assert fit(64)
    torch.manual_seed(5)
    fresh = real_steps(2000)[500:]
    mean = dynamics.predict(fresh)[0][dynamics.elites]
    error = mean[..., :3] + fresh["observation"] - fresh["next", "observation"]
    assert error.square().mean().sqrt() < 0.05
    assert (mean[..., 3:] - fresh["next", "reward"]).square().mean().sqrt() < 0.2
    assert fit.last["model_error"] < 0.01


def test_a_fit_keeps_the_best_members_and_ends_when_none_gets_better(monkeypatch):
    """Errors of held out steps that are made up: the first pass improves member 0, the second one member 1."""
    config, _ = settings("mbpo", model_max_epochs=50, model_patience=2)
    dynamics = ensemble(config, make_env("pendulum", 1, seed=0))
    errors = iter([[1, 1, 1], [0.5, 1, 1], [0.6, 0.9, 1], [0.6, 0.95, 1], [0.6, 0.95, 1], [0.5, 0.9, 1]])
    weights = []

    def error(rows):
        weights.append(dynamics.net[0].weight.detach().clone())
        return torch.tensor(next(errors))

    monkeypatch.setattr(dynamics, "set_elites", error)
    fit = ModelFit(config, dynamics, filled(config))
    fit(64)
    assert fit.last["model_epochs"] == 4
    for member, passes in ((0, 1), (1, 2), (2, 0)):
        assert torch.equal(dynamics.net[0].weight[member], weights[passes][member])


def test_fits_are_due_every_model_every_frames():
    config, _ = settings("mbpo", learning_starts=100, model_every=50)
    fit = ModelFit(config, ensemble(config, make_env("pendulum", 1, seed=0)), filled(config))
    assert not fit.is_due(99)
    assert fit.is_due(100)
    fit(120)
    assert not fit.is_due(169)
    assert fit.is_due(170)


def imagined(config, env):
    torch.manual_seed(2)
    actor = MBPO.make_policy(config, env)
    loss = sac_loss(config, env, actor)
    dynamics = model(config, env, actor)
    keys = [*dynamics.in_keys, *dynamics.out_keys, *stored_keys(loss, env)]
    keys = list(dict.fromkeys(keys))
    real = filled(config)
    return ImaginedTraining(config, model_env(config, env, dynamics), actor, loss, real, keys), real


def test_rollouts_start_in_real_states_and_continue_where_they_were():
    config, _ = settings("mbpo", rollout_length=3, rollout_length_end=3)
    training, real = imagined(config, make_env("pendulum", 1, seed=0))
    training.roll_out(64)
    rows = training.buffer[:]
    assert len(rows) == 3 * 2 * 64
    steps = rows.view(3, -1)
    known = real[:]["observation"]
    assert (steps["observation"][0][:, None] == known).all(-1).any(1).all()
    assert torch.equal(steps["observation"][1:], steps["next", "observation"][:-1])
    assert not rows["next", "terminated"].any()


def test_rollouts_end_by_the_rule_of_the_environment(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text("def falls(td):\n    return td['next', 'observation'][..., :1] < 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    config, _ = settings("mbpo", rollout_length=5, rollout_length_end=5, termination="my_rules:falls")
    training, _ = imagined(config, make_env("pendulum", 1, seed=0))
    training.roll_out(64)
    rows = training.buffer[:]
    assert (rows["next", "terminated"] == (rows["next", "observation"][:, :1] < 0)).all()
    assert rows["next", "terminated"].any()
    later = rows[2 * 64 :]  # after the first step
    assert len(later)
    assert (later["observation"][:, 0] >= 0).all()


def test_a_terminal_state_without_a_rule_is_an_error():
    config, _ = settings("mbpo")
    batch = real_steps(3)
    check_termination(config, batch)
    batch["next", "terminated"][1] = True
    with pytest.raises(ArgumentError, match="termination=module:function"):
        check_termination(config, batch)
    check_termination(settings("mbpo", termination="my_rules:falls")[0], batch)


@pytest.mark.parametrize(("ratio", "real"), [(0.0, 0), (0.05, 1), (0.5, 8), (1.0, 16)])
def test_minibatches_have_the_share_of_real_steps(ratio, real):
    parts = [ReplayBuffer(storage=LazyTensorStorage(100)) for _ in range(2)]
    for number, part in enumerate(parts):
        part.extend(TensorDict(imagined=torch.full((50,), number), batch_size=[50]))
    batch = MixedBuffer(*parts, 16, ratio).sample()
    assert batch["imagined"].sum() == 16 - real


def test_rollouts_get_longer_linearly():
    config = MBPOConfig(rollout_length=1, rollout_length_end=5, rollout_anneal_frames=1000)
    assert [config.rollout_steps(frames) for frames in (0, 250, 500, 1000, 5000)] == [1, 2, 3, 5, 5]
    assert MBPOConfig(rollout_length=3, rollout_length_end=3).rollout_steps(0) == 3


@pytest.mark.slow
def test_mbpo_swings_up_a_pendulum(tmp_path):
    config = MBPOConfig(env="Pendulum-v1", loggers=("csv",), **MBPO.load_presets()["Pendulum-v1"].settings)
    assert train_mbpo(config, out=tmp_path / "run", display="none").eval_return_mean > -250


@pytest.mark.parametrize("name", RECIPES)
def test_discrete_actions_are_rejected(name, tmp_path):
    config, train = settings(name, env="CartPole-v1")
    with pytest.raises(SpecError, match=f"{name} trains vectors of bounded floats"):
        train(config, out=tmp_path / "run", display="none")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mbpo", {"num_elites": 4}),
        ("mbpo", {"n_steps": 2}),
        ("mbpo", {"sampler": "prioritized"}),
        ("mbpo", {"real_ratio": 1.5}),
        ("mbpo", {"model_holdout": 0.0}),
        ("cem-mpc", {"top_k": 9}),
        ("cem-mpc", {"frames_per_batch": 30}),
    ],
)
def test_settings_out_of_range_are_rejected(name, wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        settings(name, **wrong)
