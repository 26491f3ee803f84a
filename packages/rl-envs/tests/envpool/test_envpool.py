from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, UnknownComponentError
from rl.core.specs import Unbounded
from rl.envs import EnvPoolEnv, MultiThreadedEnv
from rl.testing import check_env

envpool = pytest.importorskip("envpool")
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1", {}),
        ("HalfCheetah-v5", {"max_episode_steps": 37}),
        ("Pong-v5", {"max_episode_steps": 40, "stack_num": 1, "img_height": 32, "img_width": 32}),
        ("CheetahRun-v1", {"max_episode_steps": 30}),
    ],
)
def test_a_thousand_steps_are_those_of_the_pool_without_its_resets_in_between(name, settings):
    """EnvPool's own step of a reset takes no action: it is left out, and the rest is the same, element by element."""
    count, steps = 3, 1000
    env = EnvPoolEnv(name, count, categorical_action_encoding=True, **settings)
    env.set_seed(5)
    torch.manual_seed(0)
    actions = torch.stack([env.action_spec.rand() for _ in range(steps)], 1)
    data = env.rollout(steps, actions=actions, break_when_any_done=False)
    pool = envpool.make_gymnasium(name, num_envs=count, seed=5, **settings)
    space = pool.action_space
    key = env.observation_keys[0]
    name_there = key if isinstance(key, str) else key[-1]
    pick = lambda seen: seen[name_there] if isinstance(seen, dict) else seen
    seen, _ = pool.reset()
    at, over, ends = np.zeros(count, int), np.zeros(count, bool), 0
    while at.max() < steps:
        now = np.minimum(at, steps - 1)
        given = actions[torch.arange(count), torch.as_tensor(now)].numpy()
        before = pick(seen).copy()
        seen, reward, terminated, truncated, _ = pool.step(given.astype(np.int32 if not space.shape else space.dtype))
        for row in range(count):
            if over[row]:  # the pool has reset it
                over[row] = False
                continue
            step = at[row]
            if step >= steps:
                continue
            np.testing.assert_array_equal(data[key][row, step].numpy(), before[row])
            np.testing.assert_array_equal(data["next", key][row, step].numpy(), pick(seen)[row])
            assert data["next", "reward"][row, step].item() == pytest.approx(float(reward[row]), abs=1e-6)
            assert data["next", "terminated"][row, step].item() == terminated[row]
            assert data["next", "truncated"][row, step].item() == truncated[row]
            over[row] = terminated[row] or truncated[row]
            ends += over[row]
            at[row] += 1
    assert ends >= count
    env.close()


def test_conformance():
    check_env(lambda: EnvPoolEnv("CartPole-v1", num_envs=2))


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    batch = collectors.Collector(EnvPoolEnv("CartPole-v1", 4), frames_per_batch=400).collect()
    assert batch.shape == (4, 100)
    assert batch["collector", "traj_ids"].max() > 7


def test_partial_resets_leave_the_others_alone_and_seeds_repeat():
    env = EnvPoolEnv("Acrobot-v1", 3)
    env.set_seed(1)
    torch.manual_seed(0)
    first = env.rollout(4)
    env.set_seed(1)
    torch.manual_seed(0)
    assert torch.equal(env.rollout(4)["observation"], first["observation"])
    root = env.step_mdp(first[:, -1])
    mask = torch.tensor([[False], [True], [False]])
    reset = env.reset(root.clone().set("_reset", mask))
    kept = ~mask.squeeze(-1)
    current = {key: root[key] for key in ("observation", "done", "terminated", "truncated")}
    for fresh in (reset["observation"], env.lowered().reset_leaves(current, mask)["observation"]):
        assert torch.equal(fresh[kept], root["observation"][kept])
        assert not torch.equal(fresh[1], root["observation"][1])
    env.close()


def test_entries_of_info_follow_their_elements():
    spec = {"elapsed_step": Unbounded((), dtype=torch.int32)}
    env = EnvPoolEnv("CartPole-v1", 2, info_keys=spec)
    data = env.rollout(60, break_when_any_done=False)
    steps, done = data["next", "elapsed_step"], data["next", "done"].squeeze(-1)
    assert done.any()
    fresh = data["elapsed_step"]
    assert (steps == fresh + 1).all()
    assert (fresh[:, 1:][done[:, :-1]] == 0).all()
    env.close()


def test_frames_are_rendered():
    env = EnvPoolEnv("CartPole-v1", 2, from_pixels=True)
    frames = env.rollout(2)["pixels"]
    assert frames.dtype is torch.uint8
    assert frames.shape[:2] == (2, 2)
    assert frames.shape[-1] == 3
    env.close()


def test_wrong_input_is_refused(monkeypatch):
    with pytest.raises(UnknownComponentError, match="Did you mean 'CartPole-v1'"):
        EnvPoolEnv("Cartpole-v1")
    with pytest.raises(ArgumentError, match="leave batch_size and env_type out"):
        EnvPoolEnv("CartPole-v1", 4, batch_size=2)
    env = MultiThreadedEnv(2, "Pendulum-v1", create_env_kwargs={"max_episode_steps": 5})
    assert env.rollout(10)["next", "truncated"].any()
    with pytest.raises(TypeError, match="Send a function"):
        __import__("pickle").dumps(env)
    env.close()
    with monkeypatch.context() as patch:

        def lacking(*_, **__):
            raise ImportError("EnvPool Procgen requires Qt 5, for example via `apt install libqt5gui5`")

        patch.setattr(envpool, "make_gymnasium", lacking)
        with pytest.raises(MissingExtraError, match=r"CoinrunEasy-v0 needs .* `apt install libqt5gui5`"):
            EnvPoolEnv("CoinrunEasy-v0")
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[envpool\]"'):
        EnvPoolEnv("CartPole-v1")
