"""Transforms of actions."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.action._action_chunk_transform import ActionChunkTransform
    from rl.envs.transforms.action._action_discretizer import ActionDiscretizer
    from rl.envs.transforms.action._action_mask import ActionMask
    from rl.envs.transforms.action._action_scaling import ActionScaling
    from rl.envs.transforms.action._discrete_action_projection import DiscreteActionProjection
    from rl.envs.transforms.action._flatten_action import FlattenAction

__all__ = [
    "ActionChunkTransform",
    "ActionDiscretizer",
    "ActionMask",
    "ActionScaling",
    "DiscreteActionProjection",
    "FlattenAction",
]

__getattr__, __dir__ = lazy_exports(__name__)
