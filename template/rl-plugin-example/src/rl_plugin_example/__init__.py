"""A plugin of the rl toolkit. Listing plugins runs this file, so that its names are imported on first use."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl_plugin_example.__about__ import __version__
    from rl_plugin_example.chain import ChainEnv
    from rl_plugin_example.lines import Lines
    from rl_plugin_example.loop import LoopBackend
    from rl_plugin_example.reinforce import ReinforceLoss
    from rl_plugin_example.rows import RowStorage
    from rl_plugin_example.scale_reward import ScaleReward
    from rl_plugin_example.stratified import StratifiedSampler

__all__ = [
    "ChainEnv",
    "Lines",
    "LoopBackend",
    "ReinforceLoss",
    "RowStorage",
    "ScaleReward",
    "StratifiedSampler",
    "__version__",
]

__getattr__, __dir__ = lazy_exports(__name__)
