"""Transforms of keys."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.keys._exclude_transform import ExcludeTransform
    from rl.envs.transforms.keys._flatten_tensordict import FlattenTensorDict
    from rl.envs.transforms.keys._remove_empty_specs import RemoveEmptySpecs
    from rl.envs.transforms.keys._rename_transform import RenameTransform
    from rl.envs.transforms.keys._select_transform import SelectTransform

__all__ = [
    "ExcludeTransform",
    "FlattenTensorDict",
    "RemoveEmptySpecs",
    "RenameTransform",
    "SelectTransform",
]

__getattr__, __dir__ = lazy_exports(__name__)
