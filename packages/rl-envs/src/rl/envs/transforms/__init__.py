"""Transforms of the entries that an environment writes and reads."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms._base import Transform
    from rl.envs.transforms._compose import Compose
    from rl.envs.transforms._specs import Specs
    from rl.envs.transforms._transformed_env import TransformedEnv
    from rl.envs.transforms.episode._init_tracker import InitTracker
    from rl.envs.transforms.episode._step_counter import StepCounter
    from rl.envs.transforms.recurrent._primer import TensorDictPrimer
    from rl.envs.transforms.reward._reward_sum import RewardSum

__all__ = [
    "Compose",
    "InitTracker",
    "RewardSum",
    "Specs",
    "StepCounter",
    "TensorDictPrimer",
    "Transform",
    "TransformedEnv",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.envs.transforms._base": ["Transform"],
        "rl.envs.transforms._compose": ["Compose"],
        "rl.envs.transforms._specs": ["Specs"],
        "rl.envs.transforms._transformed_env": ["TransformedEnv"],
        "rl.envs.transforms.episode._init_tracker": ["InitTracker"],
        "rl.envs.transforms.episode._step_counter": ["StepCounter"],
        "rl.envs.transforms.recurrent._primer": ["TensorDictPrimer"],
        "rl.envs.transforms.reward._reward_sum": ["RewardSum"],
    },
)
