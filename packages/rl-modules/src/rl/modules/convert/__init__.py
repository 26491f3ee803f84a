"""Networks of Stable-Baselines3 and CleanRL as ours, and back."""

from rl.modules.convert._convert import export_state, load_networks
from rl.modules.convert._layouts import LAYOUTS

__all__ = ["LAYOUTS", "export_state", "load_networks"]
