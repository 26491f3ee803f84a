"""An environment and a loss, to copy from."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl_plugin_example.__about__ import __version__
    from rl_plugin_example.chain import ChainEnv
    from rl_plugin_example.reinforce import ReinforceLoss

__all__ = ["ChainEnv", "ReinforceLoss", "__version__"]

# Listing plugins runs this file, so its names are imported on first use.
__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl_plugin_example.__about__": ["__version__"],
        "rl_plugin_example.chain": ["ChainEnv"],
        "rl_plugin_example.reinforce": ["ReinforceLoss"],
    },
)
