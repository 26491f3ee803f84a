"""Agents of published results that come with rl-trainers: shared runs, as ``rl hub push`` writes them."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from rl.core.errors import ArgumentError

_FOLDER = Path(__file__).with_name("agents")

#: stands before the name of an agent where there could also be a run folder
PREFIX = "hub:"


def agents() -> dict[str, Path]:
    """Return the run folders of the agents, by name.

    Example:
        >>> "ppo-CartPole-v1" in agents()
        True
    """
    return {path.parent.name: path.parent for path in sorted(_FOLDER.glob("*/config.yaml"))}


def run_path(run: str | Path) -> Path:
    """Return the path of a run folder; that of an agent for ``hub:NAME``.

    Raises:
        ArgumentError: If there is no agent of this name.
    """
    if not isinstance(run, str) or not run.startswith(PREFIX):
        return Path(run)
    name, found = run.removeprefix(PREFIX), agents()
    if name not in found:
        close = get_close_matches(name, found, n=1) or found
        hint = "`rl hub pull` takes those of other people" if "/" in name else f"did you mean {', '.join(close)}?"
        raise ArgumentError(f"no agent {name!r} comes with rl-trainers: {hint}")
    return found[name]
