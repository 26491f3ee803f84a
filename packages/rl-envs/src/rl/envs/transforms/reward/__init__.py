"""Transforms of rewards."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.reward._binarize_reward import BinarizeReward
    from rl.envs.transforms.reward._linearise_rewards import LineariseRewards
    from rl.envs.transforms.reward._reward_clipping import RewardClipping
    from rl.envs.transforms.reward._reward_scaling import RewardScaling
    from rl.envs.transforms.reward._reward_sum import RewardSum
    from rl.envs.transforms.reward._rnd_transform import RNDTransform
    from rl.envs.transforms.reward._sign_transform import SignTransform
    from rl.envs.transforms.reward._success_reward import SuccessReward
    from rl.envs.transforms.reward._target_return import TargetReturn

__all__ = [
    "BinarizeReward",
    "LineariseRewards",
    "RNDTransform",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SignTransform",
    "SuccessReward",
    "TargetReturn",
]

__getattr__, __dir__ = lazy_exports(__name__)
