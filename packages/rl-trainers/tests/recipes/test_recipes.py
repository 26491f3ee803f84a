import json
import os

import pytest
import torch
from rl_trainers_test_envs import FakeEnv, GuessEnv
from tensordict import TensorDict

from rl.core import ExplorationType, set_exploration_type
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.specs import Binary, Bounded, Categorical, MultiCategorical, OneHot, Unbounded
from rl.replay import PrioritizedSampler
from rl.trainers import DQNConfig, Evaluator, PPOConfig, evaluate, load_policy, make_env, train_dqn, train_ppo
from rl.trainers import evaluation as _evaluation
from rl.trainers import run as _run

# the seeds that runs derive are compared with each other
from rl.trainers._device import seeds_of
from rl.trainers.algorithm import Algorithm
from rl.trainers.algorithms.dqn import dqn_policy
from rl.trainers.algorithms.ppo import policy as ppo_policy
from rl.trainers.config import config_fields
from rl.trainers.loggers import read_metrics
from rl.trainers.loops.updater import clip_gradients
from rl.trainers.networks import described_observations, network

QUICK = {"env": "test/guess", "num_envs": 4, "eval_every": 1024, "loggers": ("csv",)}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_to_guess(seed, tmp_path):
    config = PPOConfig(**QUICK, total_frames=2048, frames_per_batch=256, minibatch_size=64, seed=seed)
    assert train_ppo(config, out=tmp_path / "run", display="none").eval_return_mean == 8.0
    assert torch.equal(evaluate(tmp_path / "run", episodes=3), torch.full((3,), 8.0, dtype=torch.float64))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dqn_learns_to_guess(seed, tmp_path):
    config = DQNConfig(**QUICK, total_frames=2048, learning_starts=256, annealing_num_steps=1000, seed=seed)
    assert train_dqn(config, out=tmp_path / "run", display="none").eval_return_mean == 8.0


def test_the_loaded_policy_is_an_ordinary_module(tmp_path):
    config = PPOConfig(**QUICK, total_frames=2048, frames_per_batch=256, minibatch_size=64)
    train_ppo(config, out=tmp_path / "run", display="none")
    policy = load_policy(tmp_path / "run")
    td = policy(TensorDict(observation=torch.eye(2), batch_size=[2]))
    assert td["action"].tolist() == [0, 1]


ENDLESS = {**QUICK, "env": "test/endless", "total_frames": 128, "frames_per_batch": 64, "minibatch_size": 64}


def test_an_environment_without_state_is_trained_and_reported_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_evaluation, "MAX_STEPS", 64)
    monkeypatch.setattr(_evaluation, "NOTE_STEPS", 32)
    with pytest.raises(RLError, match="did not end within 64 steps; set max_episode_steps"):
        train_ppo(PPOConfig(**ENDLESS), out=tmp_path / "a", display="plain")
    assert capsys.readouterr().out.count("no episode of the evaluation has ended in 32 steps") == 1
    monkeypatch.setattr(_run, "ENDLESS_STEPS", 32)
    config = PPOConfig(**{**ENDLESS, "checkpoint_every": 64, "total_frames": 10_000})
    train_ppo(config, out=tmp_path / "b", display="plain", should_stop=lambda frames: frames >= 256)
    out = capsys.readouterr().out
    assert out.count("has no state_dict()") == 1
    assert out.count("no episode of 'test/endless' has ended in 32 steps of each environment") == 1
    assert "--max-episode-steps" in out


@pytest.mark.parametrize("env", ["CartPole-v1", "pendulum", "test/endless"])
def test_a_step_limit_ends_episodes(env, tmp_path):
    config = PPOConfig(**{**ENDLESS, "env": env}, max_episode_steps=5)
    train_ppo(config, out=tmp_path / "a", display="none")
    assert set(read_metrics(tmp_path / "a" / "metrics.csv")["rollout/length_mean"]) == {5.0}


@pytest.mark.parametrize(("train", "config"), [(train_ppo, PPOConfig), (train_dqn, DQNConfig)], ids=["ppo", "dqn"])
def test_a_loss_that_is_not_finite_ends_the_run(train, config, tmp_path, monkeypatch):
    monkeypatch.setattr("rl_trainers_test_envs.GuessEnv.step", _nan_step(GuessEnv.step))
    settings = config(**QUICK, total_frames=4096, log_every=64)
    with pytest.raises(RLError, match=r"'reward'\) of 'test/guess' became nan after \d+ frames"):
        train(settings, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run" / "summary.json").exists()


def _nan_step(step):
    def broken(self, tensordict):
        out = step(self, tensordict)
        out["next", "reward"].fill_(float("nan"))
        return out

    return broken


def test_networks_are_created_with_the_threads_of_the_run(tmp_path):
    """A QR decomposition, which initial weights are of, depends on their number: equal seeds gave other weights."""
    seen = []

    def loop(algorithm, config, *, policy, **_):
        seen.append(torch.get_num_threads())
        return policy(config, None)

    algorithm = Algorithm(PPOConfig, loop=loop, policy=lambda _config, _env: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        algorithm.train(PPOConfig(threads=1))
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_are_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    before = torch.get_num_threads()
    config = PPOConfig(**QUICK, total_frames=64, frames_per_batch=64, minibatch_size=64, threads=before + 1)
    train_ppo(config, out=tmp_path / "run", display="none")
    assert torch.get_num_threads() == before


ACTIONS = [
    pytest.param(Categorical(5), (), id="categorical"),
    pytest.param(OneHot(5), (5,), id="one-hot"),
    pytest.param(Bounded(-2.0, 3.0, (2,)), (2,), id="bounded"),
    pytest.param(Unbounded((2,)), (2,), id="unbounded"),
    pytest.param(Bounded(-2.0, 3.0, (2,), dtype=torch.float64), (2,), id="bounded-double"),
    pytest.param(Unbounded((2,), dtype=torch.float64), (2,), id="unbounded-double"),
    pytest.param(MultiCategorical([2, 4]), (2,), id="multi-categorical"),
    pytest.param(Binary(3), (3,), id="binary"),
]


@pytest.mark.parametrize("how", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC], ids=lambda how: how.name)
@pytest.mark.parametrize(("spec", "shape"), ACTIONS)
def test_ppo_writes_actions_of_the_spec(spec, shape, how):
    env = FakeEnv(spec)
    with set_exploration_type(how):
        td = ppo_policy(PPOConfig(), env)(TensorDict(observation=torch.randn(3, 4), batch_size=[3]))
    assert td["action"].shape == (3, *shape)
    assert env.full_action_spec["action"].is_in(td["action"])
    assert td["action_log_prob"].shape == (3,)


@pytest.mark.parametrize(("spec", "shape"), ACTIONS[:2])
def test_dqn_writes_actions_of_the_spec(spec, shape):
    env = FakeEnv(spec)
    td = dqn_policy(DQNConfig(), env)(TensorDict(observation=torch.randn(3, 4), batch_size=[3]))
    assert env.full_action_spec["action"].is_in(td["action"])


@pytest.mark.parametrize(
    "observation",
    [
        pytest.param(Unbounded((4,)), id="vector"),
        pytest.param(Unbounded((4,), dtype=torch.float64), id="double"),
        pytest.param(OneHot(3), id="one-hot-3"),
        pytest.param(Unbounded(()), id="scalar"),
        pytest.param(Categorical(7), id="index"),
        pytest.param(OneHot(7), id="one-hot"),
        pytest.param(Bounded(0, 255, (84, 84, 3), dtype=torch.uint8), id="pixels-last"),
        pytest.param(Bounded(0, 255, (3, 40, 40), dtype=torch.uint8), id="pixels-first"),
        pytest.param(Bounded(0, 255, (10, 10, 4), dtype=torch.uint8), id="small-image"),
        pytest.param({"a": Unbounded((2,)), "b": Categorical(3)}, id="several"),
    ],
)
@pytest.mark.parametrize("batch", [(3,), (3, 2)], ids=str)
def test_networks_take_every_kind_of_observation(observation, batch):
    env = FakeEnv(Categorical(2), observation)
    net = network(env, out_features=6, num_cells=(8,), activation="relu", last_gain=1.0, device="cpu")
    spec = env.observation_spec[0]
    leaves = [spec[key].rand(batch) for key in spec.keys()]
    out = net(*leaves)
    assert out.shape == (*batch, 6)
    assert torch.isfinite(out).all()
    flat = net(*[leaf.flatten(0, len(batch) - 1) for leaf in leaves])
    torch.testing.assert_close(out.flatten(0, len(batch) - 1), flat)


def image(*shape, dtype=torch.uint8):
    return Bounded(0, 255, shape, dtype=dtype)


LAYOUTS = [
    pytest.param(image(84, 84, 3), "auto", "an image of 84 x 84, 3 channels last", id="last"),
    pytest.param(image(12, 12, 6), "auto", "an image of 12 x 12, 6 channels last", id="six-last"),
    pytest.param(image(12, 12, 2), "auto", "an image of 12 x 12, 2 channels last", id="two-last"),
    pytest.param(image(4, 84, 84), "auto", "an image of 84 x 84, 4 channels first", id="first"),
    pytest.param(image(12, 12, 6), "channels-first", "an image of 12 x 6, 12 channels first", id="told-first"),
    pytest.param(image(9, 9, 9), "channels-last", "an image of 9 x 9, 9 channels last", id="told-last"),
    pytest.param(Unbounded((10, 10, 4)), "channels-last", "an image of 10 x 10, 4 channels last", id="told-float"),
    pytest.param(Unbounded((2, 4, 4)), "flat", "a flat vector", id="flat"),
    pytest.param(Unbounded((2, 3)), "flat", "a flat vector", id="flat-matrix"),
    pytest.param(image(128), "auto", "a vector", id="bytes"),
]


@pytest.mark.parametrize(("spec", "layout", "read_as"), LAYOUTS)
def test_how_an_observation_is_read_follows_from_its_spec_and_the_option(spec, layout, read_as):
    env = FakeEnv(Categorical(2), spec)
    assert described_observations(env, layout).endswith(f" as {read_as}")
    policy = ppo_policy(PPOConfig(observation_layout=layout), env)
    policy(TensorDict(observation=spec.rand((3,)), batch_size=[3]))


@pytest.mark.parametrize(
    ("spec", "layout", "remedy"),
    [
        pytest.param(Unbounded((12, 12, 6)), "auto", "channels-first or channels-last or flat", id="float"),
        pytest.param(image(2, 4), "auto", "flat", id="matrix"),
        pytest.param(image(9, 9, 9), "auto", "channels-first or channels-last or flat", id="equal-sides"),
        pytest.param(image(2, 2, 4), "auto", "flat", id="too-small"),
        pytest.param(image(2, 4, 4), "channels-last", "channels-first or flat", id="other-way-round"),
        pytest.param(image(4, 4), "channels-last", "flat", id="no-channels"),
    ],
)
def test_observations_that_the_rule_does_not_cover_are_rejected_with_the_layouts_that_fit(spec, layout, remedy):
    with pytest.raises(SpecError, match=rf"Set --observation-layout to {remedy}$"):
        ppo_policy(PPOConfig(observation_layout=layout), FakeEnv(Categorical(2), spec))


@pytest.mark.parametrize("env", ["Doubles-v0", "Choices-v0", "Bits-v0"])
def test_ppo_learns_with_every_action_that_gymnasium_has(env, tmp_path):
    config = PPOConfig(
        env=f"rl_trainers_test_gym:{env}", total_frames=4096, frames_per_batch=512, minibatch_size=64, num_envs=4,
        eval_every=4096, learning_rate=3e-3, final_eval_episodes=5, loggers=("csv",),
    )  # fmt: skip
    assert train_ppo(config, out=tmp_path / "run", display="none").eval_return_mean > 6.0


def test_the_logged_value_loss_does_not_depend_on_its_weight(tmp_path):
    """With frozen weights: a learning rate that moves nothing."""
    rows = []
    for weight in (0.5, 2.0):
        config = PPOConfig(**QUICK, total_frames=256, frames_per_batch=256, learning_rate=1e-30, critic_coeff=weight)
        train_ppo(config, out=tmp_path / str(weight), display="none")
        rows.append(read_metrics(tmp_path / str(weight) / "metrics.csv")["train/loss_critic"][-1])
    assert rows[0] == pytest.approx(rows[1], rel=1e-4)


def test_the_summary_has_the_best_and_the_last_policy(tmp_path, monkeypatch):
    config = PPOConfig(**{**QUICK, "eval_every": 256}, total_frames=1024, frames_per_batch=256, minibatch_size=64)
    returns = iter([5.0, 8.0, 4.0, 3.0, 2.0, 7.0])  # four evaluations, the last policy, the best policy
    monkeypatch.setattr(Evaluator, "run", lambda self, episodes, *, seed: torch.full((episodes,), next(returns)))
    train_ppo(config, out=tmp_path / "run", display="none")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["best/return_mean"], summary["last/return_mean"], summary["best/frames"]) == (7.0, 2.0, 512)


def test_seeds_of_neighbouring_runs_share_no_start_states():
    seeds = [seed for run in range(50) for seed in seeds_of(run)]
    assert len(set(seeds)) == 250
    starts = [make_env("CartPole-v1", 20, seed=seeds_of(run).final_evaluation).reset()["observation"] for run in (0, 1)]
    assert not (starts[0][:, None] == starts[1][None]).all(-1).any()


def test_more_threads_than_processors_are_rejected_before_anything_is_written(tmp_path):
    with pytest.raises(ArgumentError, match=r"threads=100000, but this machine has \d+ processors"):
        train_ppo(PPOConfig(**QUICK, threads=100_000), out=tmp_path / "run", display="none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sampler", ["prioritized:{alpha: 0.6, beta: 0.4}", "without-replacement"])
def test_dqn_samples_with_a_sampler_by_name(sampler, tmp_path, monkeypatch):
    updated = []
    update = PrioritizedSampler.update_priority
    monkeypatch.setattr(
        PrioritizedSampler, "update_priority", lambda self, *args: (updated.append(args), update(self, *args))
    )
    config = DQNConfig(**QUICK, total_frames=1024, learning_starts=256, annealing_num_steps=500, sampler=sampler)
    assert train_dqn(config, out=tmp_path / "run", display="none").train_frames == 1024
    assert bool(updated) == sampler.startswith("prioritized")
    assert all((priority >= 0).all() and index.shape == priority.shape for index, priority in updated)


def test_a_sampler_with_wrong_arguments_is_named(tmp_path):
    with pytest.raises(RLError, match=r"the sampler 'prioritized' cannot be created: .*alpha"):
        train_dqn(DQNConfig(**QUICK, sampler="prioritized"), out=tmp_path / "run", display="none")
    assert list(tmp_path.iterdir()) == []


def test_gradients_are_clipped_as_torch_does():
    layers = [torch.nn.Linear(3, 3) for _ in range(2)]
    for layer in layers:
        layer(torch.ones(1, 3)).sum().backward()
    layers[1].load_state_dict(layers[0].state_dict())
    for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        b.grad = a.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_(layers[0].parameters(), 0.5)
    # A norm is a sum, whose order depends on the processor.
    torch.testing.assert_close(clip_gradients(list(layers[1].parameters()), 0.5), expected)
    for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_every_setting_is_documented():
    for config in (PPOConfig, DQNConfig):
        undocumented = [field.name for field in config_fields(config) if len(field.doc) < 5]
        assert undocumented == []


def test_wrong_settings_are_named_together():
    with pytest.raises(ArgumentError, match=r"PPOConfig: lmbda must be in \[0, 1\], got 2; clip_epsilon must be"):
        PPOConfig(lmbda=2, clip_epsilon=0.0)


def test_single_environments_of_any_make_are_put_side_by_side():
    env = make_env("test/one-guess", 3, seed=0)
    root = env.reset()
    assert root.batch_size == env.batch_size == (3,)
    assert env.full_action_spec["action"].shape == (3,)
    for t in range(9):
        root["action"] = root["observation"].argmax(-1) * torch.tensor([1, 0, 1])
        stepped, root = env.step_and_maybe_reset(root)
        assert stepped["next", "reward"].shape == (3, 1)
        assert stepped["next", "done"].all() == (t == 7)
    assert not root["done"].any()
    partial = env.reset(root.set("_reset", torch.tensor([[True], [False], [False]])))
    assert torch.equal(partial["observation"][1:], root["observation"][1:])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param({"device": "cuda:99"}, "the device 'cuda:99' cannot be used here", id="device"),
        pytest.param({"device": "meta"}, "the device 'meta' computes nothing", id="meta"),
        pytest.param({"loggers": ("csvv",)}, "did you mean 'csv'", id="logger"),
    ],
)
def test_what_is_not_there_is_reported_before_anything_is_written(setting, message, tmp_path):
    with pytest.raises(RLError, match=message):
        train_ppo(PPOConfig(**{**QUICK, **setting}), out=tmp_path / "run", display="none")
    assert list(tmp_path.iterdir()) == []


def test_environments_of_a_fixed_batch_keep_it():
    assert make_env("test/guess", 3, seed=0).batch_size == (3,)
    with pytest.raises(RLError, match="no installed plugin offers env 'test/guesss'; did you mean 'test/guess'"):
        make_env("test/guesss", 1, seed=0)


def test_an_environment_that_takes_a_batch_is_made_as_one_with_its_own_time_limit():
    env = make_env("pendulum", 2, seed=0)
    assert env.batch_size == (2,)
    rollout = env.rollout(250)
    assert rollout.shape == (2, 200)
    assert rollout["next", "truncated"][:, -1].all()
    assert make_env("pendulum", 2, seed=0, max_episode_steps=5).rollout(9).shape == (2, 5)
