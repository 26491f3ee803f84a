"""What the registry knows about one plugin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, Literal

from rl.core.components import Component
from rl.core.settings import normalized

__all__ = ["FIRST_PARTY", "Answer", "PluginRecord", "PluginState", "in_order", "record_of"]

PluginState = Literal["loaded", "broken", "disabled", "incompatible"]

FIRST_PARTY = (
    "rl-core",
    "rl-envs",
    "rl-modules",
    "rl-collectors",
    "rl-replay",
    "rl-objectives",
    "rl-trainers",
    "rl-native",
    "rl-prio-cuda",
    "rl-recurrent-triton",
)
"""Distributions that are listed first, so that nobody takes one of their names by sorting before them."""


@dataclass
class PluginRecord:
    """One plugin, usable or not.

    Args:
        name: of the entry point.
        distribution: that declares it.
        version: of the distribution.
        value: of the entry point, ``module`` or ``module:attribute``.
        state: ``loaded``; ``broken`` (it raised or breaks a rule); ``incompatible`` (it was written for
            another rl-core); ``disabled`` (the user left it out). All but the first offer nothing.
        reason: why it is not loaded.
        components: what it declares; offered only if the plugin is loaded.
        problems: what went wrong later, when one of its hooks was called.
    """

    name: str
    distribution: str
    version: str = ""
    value: str = ""
    state: PluginState = "loaded"
    reason: str = ""
    components: tuple[Component, ...] = ()
    problems: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """``distribution:name``: nobody can take somebody else's."""
        return f"{self.distribution}:{self.name}"

    @property
    def label(self) -> str:
        """The id and the version, for messages."""
        return f"{self.id} {self.version}".rstrip()

    @property
    def contracts(self) -> tuple[str, ...]:
        """The contract versions that its components were written for: ``env/1``, ``loss/1``."""
        return tuple(sorted({f"{c.kind}/{c.contract}" for c in self.components}))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain containers, for JSON."""
        return {
            "distribution": self.distribution,
            "version": self.version,
            "name": self.name,
            "value": self.value,
            "state": self.state,
            "reason": self.reason,
            "contracts": list(self.contracts),
            "components": [{"kind": c.kind, "name": c.name, "summary": c.summary} for c in self.components],
            "problems": list(self.problems),
        }


@dataclass(frozen=True)
class Answer:
    """What a plugin gave when a hook was called.

    Args:
        value: the answer.
        plugin: who gave it.
        passed: ids of the plugins that were asked before and said None, or failed.
    """

    value: Any
    plugin: PluginRecord
    passed: tuple[str, ...] = ()


def record_of(entry: EntryPoint, disabled: Iterable[str] = ()) -> PluginRecord:
    """The record of an entry point that nobody has imported yet."""
    distribution, version = (entry.dist.name, entry.dist.version) if entry.dist else ("?", "")
    record = PluginRecord(entry.name, distribution, version, entry.value)
    names = {"*", normalized(entry.name), normalized(distribution)}
    if hit := names & {normalized(name) for name in disabled}:
        record.state = "disabled"
        record.reason = f"RL_PLUGINS_DISABLE names {', '.join(sorted(hit))}"
    return record


def in_order(entries: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Entry points in an order that does not depend on the file system: first our own, then by name."""

    def rank(entry: EntryPoint) -> tuple[int, str, str]:
        distribution = normalized(entry.dist.name) if entry.dist else "?"
        ours = FIRST_PARTY.index(distribution) if distribution in FIRST_PARTY else len(FIRST_PARTY)
        return ours, distribution, entry.name

    return sorted(entries, key=rank)
