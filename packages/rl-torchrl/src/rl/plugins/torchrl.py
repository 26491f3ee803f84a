"""Commands of rl-torchrl, as data."""

from __future__ import annotations

from rl.core.component import Command
from rl.core.hookspecs import hookimpl


@hookimpl
def rl_commands() -> Command:
    """``rl migrate``."""
    return Command(
        name="migrate",
        target="rl.torchrl._migrate_command:main",
        summary="Rewrite code for TorchRL, Stable-Baselines3, or an older series of this toolkit.",
    )
