"""The subcommand `rl example`."""

from __future__ import annotations

import sys

from rl.core.registry import components


def main(arguments: list[str]) -> int:
    """List the components of this distribution; return the exit status."""
    if arguments:
        sys.stderr.write(f"rl example: expected no arguments, got {' '.join(arguments)}\n")
        return 2
    for component in components():
        if component.target.startswith("rl_plugin_example."):
            sys.stdout.write(f"{component.kind} {component.name}: {component.summary}\n")
    return 0
