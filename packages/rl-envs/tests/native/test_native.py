from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError
from rl.envs import (
    AcrobotEnv,
    BanditEnv,
    CartPoleEnv,
    GridWorldEnv,
    MountainCarEnv,
    PixelGridWorldEnv,
    StepCounter,
    TicTacToeEnv,
    TransformedEnv,
)
from rl.testing import check_env

CLASSIC = [(CartPoleEnv, "CartPole-v1"), (MountainCarEnv, "MountainCar-v0"), (AcrobotEnv, "Acrobot-v1")]
ALL = [AcrobotEnv, BanditEnv, CartPoleEnv, GridWorldEnv, MountainCarEnv, PixelGridWorldEnv, TicTacToeEnv]


@pytest.mark.parametrize(("kind", "name"), CLASSIC)
def test_episodes_are_those_of_gymnasium(kind, name):
    reference = gym.make(name)
    env = kind(dtype=torch.float64, categorical_action_encoding=True)
    actions = np.random.default_rng(0)
    for seed in range(5):
        observation, _ = reference.reset(seed=seed)
        for _ in range(200):
            state = torch.tensor(np.asarray(reference.unwrapped.state, dtype=np.float64))
            action = int(actions.integers(reference.action_space.n))
            observation, reward, terminated, truncated, _ = reference.step(action)
            outcome = env._step_leaves({"state": state, "action": torch.tensor(action)})
            expected = np.asarray(reference.unwrapped.state, dtype=np.float64)
            np.testing.assert_allclose(outcome["state"].numpy(), expected, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(outcome["observation"].numpy(), observation, rtol=1e-6, atol=1e-7)
            assert (outcome["reward"].item(), outcome["terminated"].item()) == (reward, terminated)
            if terminated or truncated:
                break


def test_a_whole_episode_needs_no_correction_by_gymnasium():
    """The mountain car's dynamics are not chaotic, so that errors stay small for all 200 steps."""
    reference = gym.make("MountainCar-v0")
    reference.reset(seed=3)
    env = MountainCarEnv(dtype=torch.float64, categorical_action_encoding=True)
    td = env.reset()
    td["state"] = torch.tensor(np.asarray(reference.unwrapped.state, dtype=np.float64))
    for _ in range(200):
        action = 0 if td["state"][1] < 0 else 2
        observation, _, terminated, truncated, _ = reference.step(action)
        td = env.step(td.set("action", torch.tensor(action)))
        np.testing.assert_allclose(td["next", "observation"].numpy(), observation, atol=1e-6)
        assert td["next", "terminated"].item() == terminated
        if terminated or truncated:
            break
        td = env.step_mdp(td)
    assert terminated


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_the_rules_of_environments(kind, batch):
    check_env(lambda: TransformedEnv(kind(batch_size=batch, seed=0), StepCounter(max_steps=7)))
    check_env(lambda: kind(batch_size=batch, seed=0, categorical_action_encoding=True))


@pytest.mark.parametrize(("kind", "name"), CLASSIC)
def test_start_states_have_gymnasiums_range(kind, name):
    ours = kind([2000], seed=0).reset()["observation"]
    reference = gym.make(name)
    theirs = np.stack([reference.reset(seed=seed)[0] for seed in range(2000)])
    np.testing.assert_allclose(ours.amin(0), theirs.min(0), atol=2e-3)
    np.testing.assert_allclose(ours.amax(0), theirs.max(0), atol=2e-3)
    np.testing.assert_allclose(ours.std(0), theirs.std(0), rtol=0.1, atol=1e-4)


def test_the_grid_is_walked_as_a_naive_loop_walks_it():
    walls = [(1, 1), (0, 3)]
    env = GridWorldEnv([50], seed=0, size=(3, 4), walls=walls, categorical_action_encoding=True)
    data = TransformedEnv(env, StepCounter(40)).rollout(40, break_when_any_done=False)
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    for row in data.reshape(-1):
        place = divmod(row["cell"].item(), 4)
        down, right = moves[row["action"]]
        target = (place[0] + down, place[1] + right)
        if not (0 <= target[0] < 3 and 0 <= target[1] < 4) or target in walls:
            target = place
        assert divmod(row["next", "cell"].item(), 4) == target
        assert row["next", "terminated"].item() == (target == (2, 3))
        assert row["next", "reward"].item() == (0 if target == (2, 3) else -1)
        assert row["observation"].nonzero().item() == row["cell"].item()


def test_the_image_of_the_grid_shows_agent_goal_and_walls():
    walls = [(0, 1)]
    env = PixelGridWorldEnv([30], seed=0, size=(2, 3), walls=walls, scale=2, categorical_action_encoding=True)
    data = TransformedEnv(env, StepCounter(20)).rollout(20, break_when_any_done=False)
    for row in data.reshape(-1):
        image = torch.zeros(3, 4, 6, dtype=torch.uint8)
        image[:, 0:2, 2:4] = 128
        image[1, 2:4, 4:6] = 255
        down, right = divmod(row["cell"].item(), 3)
        image[0, 2 * down : 2 * down + 2, 2 * right : 2 * right + 2] = 255
        assert torch.equal(row["observation"], image)
        assert row["next", "reward"].item() == row["next", "terminated"].item()
    assert PixelGridWorldEnv().observation_spec["observation"].shape == (3, 16, 16)


def test_slips_and_random_starts_of_the_grid():
    env = GridWorldEnv([20_000], seed=0, size=(3, 3), start=None, slip=0.4, categorical_action_encoding=True)
    root = env.reset()
    counts = root["cell"].bincount(minlength=9)
    assert counts[8] == 0
    assert counts[:8].float().div(20_000).sub(1 / 8).abs().max() < 0.01
    root["cell"] = torch.full_like(root["cell"], 4)
    stepped = env.step(root.set("action", torch.zeros(20_000, dtype=torch.int64)))
    assert stepped["next", "cell"].eq(1).float().mean().item() == pytest.approx(0.6 + 0.4 / 4, abs=0.015)


def test_rewards_of_the_bandit_have_the_mean_of_the_arm():
    env = BanditEnv([40_000], seed=0, arms=3, means=[-1.0, 0.0, 2.0], std=0.5)
    root = env.reset().set("action", torch.eye(3, dtype=torch.int64)[2].expand(40_000, 3))
    reward = env.step(root)["next", "reward"]
    assert reward.mean().item() == pytest.approx(2, abs=0.02)
    assert reward.std().item() == pytest.approx(0.5, abs=0.02)
    means = BanditEnv([40_000], seed=0).reset()["means"]
    assert means.mean().abs() < 0.02
    assert means.std().item() == pytest.approx(1, abs=0.02)


def winner(board):
    lines = [*board, *board.T, np.diag(board), np.diag(np.fliplr(board))]
    return next((sign for sign in (1, -1) if any((line == sign).all() for line in lines)), 0)


def test_games_are_those_of_a_naive_referee():
    env = TicTacToeEnv([200], categorical_action_encoding=True)
    torch.manual_seed(0)
    td = env.reset()
    boards, alive = np.zeros((200, 3, 3), dtype=int), np.ones(200, dtype=bool)
    for move in range(9):
        sign = 1 if move % 2 == 0 else -1
        assert (td["action_mask"].numpy().reshape(200, 3, 3) == (boards == 0))[alive].all()
        assert (td["observation"].numpy().reshape(200, 3, 3) == boards * sign)[alive].all()
        action = torch.multinomial(td["action_mask"].float() + 1e-9, 1).squeeze(-1)
        td = env.step(td.set("action", action))
        for game in np.flatnonzero(alive):
            boards[game].flat[action[game].item()] = sign
            won = winner(boards[game])
            full = (boards[game] != 0).all()
            assert td["next", "player0", "reward"][game].item() == won
            assert td["next", "player1", "reward"][game].item() == -won
            assert td["next", "done"][game].item() == bool(won or full)
            alive[game] = not (won or full)
        td = env.step_mdp(td)
    assert not alive.any()


def test_an_occupied_cell_loses():
    env = TicTacToeEnv(categorical_action_encoding=True)
    root = env.step_mdp(env.step(env.reset().set("action", torch.tensor(4))))
    out = env.step(root.set("action", torch.tensor(4)))["next"]
    assert (out["player0", "reward"].item(), out["player1", "reward"].item(), out["done"].item()) == (1, -1, True)
    assert out["board"].sum() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GridWorldEnv(size=(2, 2), goal=(2, 0)), r"goal has \(2, 0\), outside the 2 x 2 grid"),
        (lambda: GridWorldEnv(walls=[(0, 0)]), r"start \(0, 0\) is a wall"),
        (lambda: PixelGridWorldEnv(scale=0), "scale must be at least 1"),
        (lambda: GridWorldEnv(slip=2), "slip must be at least 0 and at most 1"),
        (lambda: BanditEnv(arms=2, means=[1.0]), "arms=2 and 1 means"),
        (lambda: BanditEnv(std=-1), "std must be at least 0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
