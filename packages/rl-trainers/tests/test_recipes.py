import pytest
import torch
from rl_trainers_test_envs import FakeEnv, GuessEnv
from tensordict import TensorDict

from rl.core.errors import RLError, SpecError
from rl.core.specs import Binary, Bounded, Categorical, MultiCategorical, OneHot, Unbounded
from rl.trainers import DQNConfig, PPOConfig, _evaluation, evaluate, load_policy, make_env, train_dqn, train_ppo
from rl.trainers._dqn import dqn_policy
from rl.trainers._fields import config_fields
from rl.trainers._loggers import read_metrics
from rl.trainers._networks import network
from rl.trainers._optimizer import clip_gradients
from rl.trainers._ppo import ppo_policy

QUICK = {"env": "test/guess", "num_envs": 4, "eval_every": 1024, "loggers": ("csv",)}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ppo_learns_to_guess(seed, tmp_path):
    config = PPOConfig(**QUICK, total_frames=2048, frames_per_batch=256, minibatch_size=64, seed=seed)
    assert train_ppo(config, out=tmp_path / "run", display="none").eval_return_mean == 8.0
    assert torch.equal(evaluate(tmp_path / "run", episodes=3), torch.full((3,), 8.0, dtype=torch.float64))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dqn_learns_to_guess(seed, tmp_path):
    config = DQNConfig(**QUICK, total_frames=2048, learning_starts=256, epsilon_frames=1000, seed=seed)
    assert train_dqn(config, out=tmp_path / "run", display="none").eval_return_mean == 8.0


def test_the_loaded_policy_is_an_ordinary_module(tmp_path):
    config = PPOConfig(**QUICK, total_frames=2048, frames_per_batch=256, minibatch_size=64)
    train_ppo(config, out=tmp_path / "run", display="none")
    policy = load_policy(tmp_path / "run")
    td = policy(TensorDict(observation=torch.eye(2), batch_size=[2]))
    assert td["action"].tolist() == [0, 1]


ENDLESS = {**QUICK, "env": "test/endless", "total_frames": 128, "frames_per_batch": 64, "minibatch_size": 64}


def test_an_environment_without_state_is_trained_and_said_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_evaluation, "MAX_STEPS", 64)
    with pytest.raises(RLError, match="did not end within 64 steps; set max_episode_steps"):
        train_ppo(PPOConfig(**ENDLESS), out=tmp_path / "a", display="none")
    config = PPOConfig(**{**ENDLESS, "checkpoint_every": 64, "total_frames": 10_000})
    train_ppo(config, out=tmp_path / "b", display="plain", should_stop=lambda frames: frames >= 256)
    assert capsys.readouterr().out.count("has no state_dict()") == 1


def test_a_step_limit_needs_an_environment_of_ours(tmp_path):
    with pytest.raises(RLError, match="wraps an EnvBase, got EndlessEnv"):
        train_ppo(PPOConfig(**ENDLESS, max_episode_steps=10), out=tmp_path / "a", display="none")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("env", ["CartPole-v1", "pendulum"])
def test_a_step_limit_ends_episodes(env, tmp_path):
    config = PPOConfig(**{**ENDLESS, "env": env}, max_episode_steps=5)
    train_ppo(config, out=tmp_path / "a", display="none")
    assert set(read_metrics(tmp_path / "a" / "metrics.csv")["length_mean"]) == {5.0}


@pytest.mark.parametrize(("train", "config"), [(train_ppo, PPOConfig), (train_dqn, DQNConfig)], ids=["ppo", "dqn"])
def test_a_loss_that_is_not_finite_ends_the_run(train, config, tmp_path, monkeypatch):
    monkeypatch.setattr("rl_trainers_test_envs.GuessEnv.step", _nan_step(GuessEnv.step))
    settings = config(**QUICK, total_frames=4096, log_every=64)
    with pytest.raises(RLError, match=r"loss\w* became nan after \d+ frames"):
        train(settings, out=tmp_path / "run", display="none")
    assert not (tmp_path / "run" / "summary.json").exists()


def _nan_step(step):
    def broken(self, tensordict):
        out = step(self, tensordict)
        out["next", "reward"].fill_(float("nan"))
        return out

    return broken


def test_threads_are_restored(tmp_path):
    before = torch.get_num_threads()
    config = PPOConfig(**QUICK, total_frames=64, frames_per_batch=64, minibatch_size=64, threads=before + 1)
    train_ppo(config, out=tmp_path / "run", display="none")
    assert torch.get_num_threads() == before


ACTIONS = [
    pytest.param(Categorical(5), (), id="categorical"),
    pytest.param(OneHot(5), (5,), id="one-hot"),
    pytest.param(Bounded(-2.0, 3.0, (2,)), (2,), id="bounded"),
    pytest.param(Unbounded((2,)), (2,), id="unbounded"),
]


@pytest.mark.parametrize(("spec", "shape"), ACTIONS)
def test_ppo_writes_actions_of_the_spec(spec, shape):
    env = FakeEnv(spec)
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
    ("build", "config", "spec"),
    [
        pytest.param(ppo_policy, PPOConfig(), MultiCategorical([2, 3]), id="ppo-multi"),
        pytest.param(ppo_policy, PPOConfig(), Binary(3), id="ppo-binary"),
        pytest.param(dqn_policy, DQNConfig(), Unbounded((2,)), id="dqn-continuous"),
    ],
)
def test_other_actions_are_refused(build, config, spec):
    with pytest.raises(SpecError, match="trains"):
        build(config, FakeEnv(spec))


@pytest.mark.parametrize(
    "observation",
    [
        pytest.param(Unbounded((4,)), id="vector"),
        pytest.param(Unbounded((4,), dtype=torch.float64), id="double"),
        pytest.param(Unbounded((2, 3)), id="matrix"),
        pytest.param(Unbounded(()), id="scalar"),
        pytest.param(Categorical(7), id="index"),
        pytest.param(OneHot(7), id="one-hot"),
        pytest.param(Bounded(0, 255, (84, 84, 3), dtype=torch.uint8), id="pixels-last"),
        pytest.param(Bounded(0, 255, (3, 40, 40), dtype=torch.uint8), id="pixels-first"),
        pytest.param(Bounded(0.0, 1.0, (10, 10, 4)), id="small-picture"),
        pytest.param({"a": Unbounded((2,)), "b": Categorical(3)}, id="several"),
    ],
)
@pytest.mark.parametrize("batch", [(3,), (3, 2)], ids=str)
def test_networks_take_every_kind_of_observation(observation, batch):
    env = FakeEnv(Categorical(2), observation)
    net = network(env, out_features=6, hidden=(8,), activation="relu", last_gain=1.0, device="cpu")
    spec = env.observation_spec[0]
    leaves = [spec[key].rand(batch) for key in spec.keys()]
    out = net(*leaves)
    assert out.shape == (*batch, 6)
    assert torch.isfinite(out).all()
    flat = net(*[leaf.flatten(0, len(batch) - 1) for leaf in leaves])
    torch.testing.assert_close(out.flatten(0, len(batch) - 1), flat)


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
    with pytest.raises(SpecError, match=r"PPOConfig: gamma must be in \[0, 1\], got 2; clip must be"):
        PPOConfig(gamma=2, clip=0.0)


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
        pytest.param({"loggers": ("csvv",)}, "did you mean 'csv'", id="logger"),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_written(setting, message, tmp_path):
    with pytest.raises(RLError, match=message):
        train_ppo(PPOConfig(**{**QUICK, **setting}), out=tmp_path / "run", display="none")
    assert list(tmp_path.iterdir()) == []


def test_environments_of_a_fixed_batch_keep_it():
    assert make_env("test/guess", 3, seed=0).batch_size == (3,)
    with pytest.raises(RLError, match="no environment is called 'test/guesss'; did you mean 'test/guess'"):
        make_env("test/guesss", 1, seed=0)


def test_an_environment_that_takes_a_batch_is_made_as_one_with_its_own_time_limit():
    env = make_env("pendulum", 2, seed=0)
    assert env.batch_size == (2,)
    rollout = env.rollout(250)
    assert rollout.shape == (2, 200)
    assert rollout["next", "truncated"][:, -1].all()
    assert make_env("pendulum", 2, seed=0, max_episode_steps=5).rollout(9).shape == (2, 5)
