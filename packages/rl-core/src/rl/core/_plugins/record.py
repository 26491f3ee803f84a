"""`PluginRecord`: distribution, entry point, import time and status of one plugin."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Literal

from rl.core.component import Component

__all__ = ["Answer", "PluginRecord", "PluginState", "brief", "declaring", "naming_interrupts", "printable"]

PluginState = Literal["loaded", "broken", "disabled", "incompatible"]

SLOW_IMPORT = 0.05
"""Seconds that a declaration may take; every `rl` command waits for it."""

_HEAVY = ("torch", "tensordict")


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
        notes: what is worth knowing though the plugin works: names that other plugins offer too.
        import_seconds: time to import its declaration and to list its components and commands.
        imports: which of torch and tensordict its declaration imported first in this process.
        remedy: Advice about it; an empty string if `reason` or `problems` says it, None if only what helps with any
            plugin does, to upgrade it or to leave it out.
    """

    name: str
    distribution: str
    version: str = ""
    value: str = ""
    state: PluginState = "loaded"
    reason: str = ""
    components: tuple[Component, ...] = ()
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    import_seconds: float = 0.0
    imports: tuple[str, ...] = ()
    remedy: str | None = None

    @property
    def id(self) -> str:
        """``distribution:name``: unique, since a distribution declares each name once."""
        return f"{self.distribution}:{self.name}"

    @property
    def label(self) -> str:
        """The id and the version, for messages."""
        return f"{self.id} {self.version}".rstrip()

    @property
    def contracts(self) -> tuple[str, ...]:
        """The contract versions that its components were written for: ``env/1``, ``loss/1``."""
        return tuple(sorted({f"{c.kind}/{c.contract}" for c in self.components}))

    @property
    def slow(self) -> str:
        """What about the declaration slows every ``rl`` command; an empty string if nothing does.

        Example:
            >>> PluginRecord("a", "acme", import_seconds=0.3, imports=("torch",)).slow
            'the declaration takes 300 ms and imports torch; only targets may import what is heavy'
        """
        parts = [f"takes {self.import_seconds * 1000:.0f} ms"] if self.import_seconds > SLOW_IMPORT else []
        parts += [f"imports {' and '.join(self.imports)}"] if self.imports else []
        return f"the declaration {' and '.join(parts)}; only targets may import what is heavy" if parts else ""

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain containers, for JSON."""
        return {
            "distribution": self.distribution,
            "version": self.version,
            "name": self.name,
            "value": self.value,
            "state": self.state,
            "reason": self.reason,
            "remedy": self.remedy,
            "contracts": list(self.contracts),
            "components": [{"kind": c.kind, "name": c.name, "summary": c.summary} for c in self.components],
            "problems": list(self.problems),
            "notes": list(self.notes),
            "import_seconds": round(self.import_seconds, 4),
            "imports": list(self.imports),
        }


@dataclass(frozen=True)
class Answer:
    """What a plugin gave when a hook was called.

    Args:
        value: the answer.
        plugin: the plugin that gave it.
        passed: ids of the plugins that were called before and gave None, or failed.
    """

    value: Any
    plugin: PluginRecord
    passed: tuple[str, ...] = ()


@contextmanager
def naming_interrupts(record: PluginRecord, doing: str) -> Generator[None]:
    """Add to a `KeyboardInterrupt` which plugin was running."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(f"while {doing} plugin {record.label}; RL_PLUGINS_DISABLE={record.name} leaves it out")
        raise


@contextmanager
def declaring(record: PluginRecord, doing: str) -> Generator[None]:
    """Measure what a declaration costs, and keep its prints out of listings."""
    before = {name for name in _HEAVY if name in sys.modules}
    begin = time.perf_counter()
    try:
        with naming_interrupts(record, doing), redirect_stdout(sys.stderr):
            yield
    finally:
        record.import_seconds += time.perf_counter() - begin
        record.imports += tuple(name for name in _HEAVY if name in sys.modules and name not in before)


def brief(error: BaseException) -> str:
    """Type and first line of an error, in characters that any terminal shows."""
    first, *more = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {printable(first)}{' [...]' if more else ''}"


def printable(text: str) -> str:
    """`text` without characters that a terminal would obey or could not show, and of a bounded length."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:400])
    return shown if len(text) <= 400 else f"{shown}..."
