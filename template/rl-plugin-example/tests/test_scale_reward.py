"""The conformance check of the transform, and values by hand."""

import pytest
import torch
from rl.core.errors import ArgumentError
from rl.testing import check_transform
from tensordict import TensorDict

from rl_plugin_example.scale_reward import ScaleReward


def make_batch():
    reward = torch.tensor([1.0, -2.0]).unsqueeze(-1)
    return TensorDict(observation=torch.zeros(2, 3), next=TensorDict(reward=reward, batch_size=[2]), batch_size=[2])


def test_the_transform_keeps_the_protocol():
    check_transform(ScaleReward(0.5), make_batch())


def test_rewards_are_scaled():
    assert ScaleReward(0.5)(make_batch())["next", "reward"].flatten().tolist() == [0.5, -1.0]


def test_a_text_as_factor_is_rejected():
    with pytest.raises(ArgumentError, match="ScaleReward: factor"):
        ScaleReward("much")
