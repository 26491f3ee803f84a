"""Running and fixed statistics against NumPy and naive loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, RLError, SpecError
from rl.envs import (
    CartPoleEnv,
    Compose,
    ObservationNorm,
    PendulumEnv,
    RewardNorm,
    StepCounter,
    TransformedEnv,
    VecNorm,
)


def recorded(env, steps, transforms):
    """A rollout with resets, and the values that the first transform read: root entries of resets, then steps."""
    return TransformedEnv(env, Compose(*transforms)).rollout(steps, break_when_any_done=False)


@pytest.mark.parametrize("batch", [[], [4]], ids=str)
def test_statistics_of_entries_without_elements(batch):
    def env(*transforms):
        return TransformedEnv(CartPoleEnv(batch, seed=0), Compose(nothing, *transforms, StepCounter(3)))

    def nothing(td):
        return td.set("none", td["observation"][..., :0])

    fixed = ObservationNorm(in_keys=["none"])
    data = env(VecNorm(["none", "observation"])).rollout(7, break_when_any_done=False)
    assert data["next", "none"].shape == (*batch, 7, 0)
    measured = env(fixed)
    fixed.init_stats(5)
    assert fixed.loc.shape == (0,)
    assert measured.rollout(2)["none"].shape == (*batch, 2, 0)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_running_statistics_are_those_of_all_values(decay):
    norm = VecNorm(["observation", "reward"], ["observation", "scaled"], decay=decay)
    plain = TransformedEnv(CartPoleEnv([4], seed=0), StepCounter(13))
    env = TransformedEnv(CartPoleEnv([4], seed=0), Compose(norm, StepCounter(13)))
    torch.manual_seed(0)
    raw = plain.rollout(40, break_when_any_done=False)
    torch.manual_seed(0)
    data = env.rollout(40, break_when_any_done=False)
    # what the transform saw: the first reset, each step, and of each partial reset the elements that began again
    seen = [raw["observation"][:, 0]]
    for t in range(40):
        seen.append(raw["next", "observation"][:, t])
        over = raw["next", "done"][:, t, 0]
        if over.any() and t < 39:
            seen.append(raw["observation"][:, t + 1][over])
    weight, total, square = 0.0, np.zeros(4), np.zeros(4)
    for values in seen:
        rows = values.double().numpy()
        weight, total = weight * decay + len(rows), total * decay + rows.sum(0)
        square = square * decay + (rows**2).sum(0)
    mean = total / weight
    std = np.sqrt(square / weight - mean**2)
    np.testing.assert_allclose(norm.loc["observation"], mean, rtol=1e-9)
    np.testing.assert_allclose(norm.scale["observation"], std, rtol=1e-6)
    last = (raw["next", "observation"][:, -1].double().numpy() - mean) / std
    np.testing.assert_allclose(data["next", "observation"][:, -1], last, rtol=1e-5, atol=1e-6)


def test_frozen_statistics_stay_and_batches_change_nothing():
    norm = VecNorm(["observation"])
    env = TransformedEnv(PendulumEnv([3], seed=0), norm)
    env.rollout(20)
    before = norm.state_dict()["stats"][0][1]["mean"]
    norm(PendulumEnv([3]).rollout(3))
    frozen = TransformedEnv(PendulumEnv([3], seed=1), norm.frozen_copy())
    frozen.rollout(5)
    assert torch.equal(norm.state_dict()["stats"][0][1]["mean"], before)
    assert torch.equal(frozen.transform.state_dict()["stats"][0][1]["mean"], before)
    norm.freeze()
    env.rollout(5)
    assert torch.equal(norm.loc["observation"], before)
    norm.unfreeze()
    env.rollout(5)
    assert not torch.equal(norm.loc["observation"], before)


def test_denorm_and_observation_norm_invert_and_repeat_the_map():
    norm = VecNorm(["observation"])
    TransformedEnv(PendulumEnv([3], seed=0), norm).rollout(50)
    batch = PendulumEnv([3], seed=1).rollout(4)
    scaled = norm(batch.copy())
    torch.testing.assert_close(norm.denorm(scaled)["next", "observation"], batch["next", "observation"])
    torch.testing.assert_close(norm.to_observation_norm()(batch)["observation"], scaled["observation"])


def test_environments_share_statistics_in_shared_memory():
    shared = VecNorm.build_td_for_shared_vecnorm(PendulumEnv(), ["observation"])
    assert shared["observation", "mean"].is_shared()
    norms = [VecNorm(["observation"], shared_td=shared) for _ in range(2)]
    envs = [TransformedEnv(PendulumEnv(seed=seed), norm) for seed, norm in enumerate(norms)]
    envs[0].rollout(10)
    envs[1].rollout(15)
    assert shared["observation", "count"].item() == pytest.approx(norms[0].state_dict()["stats"][0][1]["count"].item())
    assert torch.equal(norms[0].loc["observation"], norms[1].loc["observation"])
    assert torch.equal(norms[0].clone().loc["observation"], norms[1].loc["observation"])


def test_rewards_are_divided_by_the_scale_of_the_discounted_return():
    gamma, norm = 0.9, RewardNorm(gamma=0.9, clip=None)
    env = TransformedEnv(PendulumEnv([3], seed=0), Compose(norm, StepCounter(7)))
    plain = TransformedEnv(PendulumEnv([3], seed=0), StepCounter(7))
    torch.manual_seed(0)
    data = env.rollout(30, break_when_any_done=False)
    torch.manual_seed(0)
    raw = plain.rollout(30, break_when_any_done=False)
    returns, seen = np.zeros((3, 1)), []
    for t in range(30):
        reward = raw["next", "reward"][:, t].double().numpy()
        returns = returns * gamma + reward
        seen.append(returns)
        expected = reward / np.concatenate(seen).std(0)
        np.testing.assert_allclose(data["next", "reward"][:, t], expected, rtol=1e-4)
        returns = np.where(raw["next", "done"][:, t].numpy(), 0, returns)


def test_measured_statistics_are_those_of_the_rollout():
    norm = ObservationNorm(standard_normal=True)
    TransformedEnv(PendulumEnv([16], seed=0), norm)
    torch.manual_seed(0)
    norm.init_stats(64)
    torch.manual_seed(0)
    raw = PendulumEnv([16], seed=0).rollout(64)["observation"].flatten(0, 1)
    torch.testing.assert_close(norm.loc, raw.mean(0))
    torch.testing.assert_close(norm.scale, raw.std(0, correction=0))
    other = ObservationNorm(in_keys=["observation"])
    TransformedEnv(PendulumEnv([16], seed=0), other)
    torch.manual_seed(0)
    other.init_stats(64, reduce_dim=(0, 1), keep_dims=(0,))
    torch.testing.assert_close(other.scale.squeeze(0), 1 / norm.scale)
    torch.testing.assert_close(other.loc.squeeze(0), -norm.loc / norm.scale)


def test_measured_one_after_the_other():
    env = TransformedEnv(PendulumEnv([16], seed=0), Compose(ObservationNorm(), ObservationNorm(in_keys=["reward"])))
    env.transform[0].init_stats(8)
    with pytest.raises(RLError, match=r"ObservationNorm\(in_keys=\['reward'\]\) has no statistics: call init_stats"):
        env.rollout(2)
    env.transform[1].init_stats(8)
    assert env.rollout(2)["next", "reward"].shape == (16, 2, 1)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda: TransformedEnv(CartPoleEnv(), ObservationNorm()).reset(),
            RLError,
            "has no statistics: call init_stats",
        ),
        (lambda: VecNorm.build_td_for_shared_vecnorm(CartPoleEnv(), ["x"]), SpecError, "does not write 'x'; it has"),
        (lambda: ObservationNorm(0.0, 1.0).init_stats(3), RLError, "has statistics"),
        (lambda: ObservationNorm().init_stats(3), RLError, "belongs to no environment"),
        (lambda: VecNorm(decay=0), ArgumentError, r"decay must be at most 1 and above 0"),
        (lambda: RewardNorm(gamma=2), ArgumentError, r"gamma must be at least 0 and at most 1"),
        (lambda: VecNorm(["x"])(TensorDict({"x": torch.zeros(2)}, [2])), RLError, "append it to an environment first"),
        (lambda: TransformedEnv(CartPoleEnv(), VecNorm(["action"])), SpecError, "does not write"),
    ],
)
def test_wrong_use_is_refused(act, error, message):
    with pytest.raises(error, match=message):
        act()
