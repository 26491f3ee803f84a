"""Declarations of a plugin, as data: `Component`, `Command`, and the contract versions that this rl-core serves.

This module imports neither torch nor tensordict, so that a declaration module (``rl.plugins.NAME``) stays
light. `rl.core.components` lists the installed components.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rl.core.errors import PluginError

__all__ = ["CONTRACTS", "Command", "Component"]

CONTRACTS: dict[str, tuple[int, int]] = {
    "collector": (1, 1),
    "env": (1, 1),
    "env_pool": (1, 1),
    "estimator": (1, 1),
    "logger": (1, 1),
    "loss": (1, 1),
    "module": (1, 1),
    "recipe": (1, 1),
    "recurrent_backend": (1, 1),
    "sampler": (1, 1),
    "storage": (1, 1),
    "transform": (1, 1),
    "tree_backend": (1, 1),
    "writer": (1, 1),
}
"""Kind of component to the oldest and the current contract version that are served."""

OWN_COMMANDS = ("doctor", "help", "list", "new/plugin", "plugins")
"""Subcommands of ``rl`` that no plugin can offer."""

_NAME = re.compile(r"[a-z0-9]+(?:[-_./][a-z0-9]+)*")
_TARGET = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PluginError(
            f"{what} has the name {name!r}; a name is lower case, its words joined by hyphens, for example 'ppo-clip'"
        )


def _check_target(what: str, target: str) -> None:
    if not _TARGET.fullmatch(target):
        raise PluginError(
            f"{what} has the target {target!r}; a target is a string 'module:attribute', for example 'rl.envs:GymEnv'"
        )


def _check_texts(what: str, **texts: object) -> None:
    for argument, text in texts.items():
        if not isinstance(text, str):
            raise PluginError(f"{what} has the {argument} {text!r}; expected a string")


@dataclass(frozen=True)
class Component:
    """One thing that a distribution offers; imported on first use, not when it is listed.

    Args:
        kind: One of the keys of `CONTRACTS`.
        name: Lower case, words joined by hyphens; a slash may separate a family: ``example/chain``.
        target: ``"module:attribute"``.
        summary: One line for listings.
        extra: Extra of the distribution that installs what the target imports, or None.
        contract: Version of the kind's contract that the component was written for.

    Raises:
        PluginError: If the name or the target cannot be one, or a text is no string.

    Example:
        >>> Component("env", "gym", "rl.envs:GymEnv", summary="Any Gymnasium environment.", extra="gym").name
        'gym'
    """

    kind: str
    name: str
    target: str
    summary: str = ""
    extra: str | None = None
    contract: int = 1

    def __post_init__(self) -> None:
        what = f"a component of kind {self.kind!r}"
        _check_texts(what, kind=self.kind, name=self.name, target=self.target, summary=self.summary)
        _check_texts(what, extra=self.extra or "")
        _check_name(what, self.name)
        _check_target(f"{self.kind} {self.name!r}", self.target)


@dataclass(frozen=True)
class Command:
    """A subcommand of ``rl``.

    Args:
        name: Word after ``rl`` on the command line, or two with a slash: ``acme/map`` is ``rl acme map``.
        target: ``"module:function"``; called with the list of the remaining arguments, returns the exit
            status or None for 0.
        summary: One line for ``rl --help``.

    Raises:
        PluginError: If the name or the target cannot be one, or a text is no string.

    Example:
        >>> Command("train", "rl.trainers.cli:train", "Train an agent.").name
        'train'
    """

    name: str
    target: str
    summary: str = ""

    def __post_init__(self) -> None:
        _check_texts("a command", name=self.name, target=self.target, summary=self.summary)
        _check_name("a command", self.name)
        _check_target(f"command {self.name!r}", self.target)
