"""Findings about hooks for ``rl doctor``: which plugin's answer is selected, and the notes of plugins."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rl.core._plugins import Answer, PluginRecord
from rl.core.component import Command
from rl.core.errors import RLError
from rl.core.registry import Registry

__all__ = ["Finding", "commands_of", "cuda_state", "examine_answers", "examine_hooks", "examine_notes"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        section: heading.
        name: what was looked at.
        value: what was found.
        state: ``ok``; ``note``: works, could be better; ``problem``: broken.
        remedy: what to do, where there is something to do.
    """

    section: str
    name: str
    value: str
    state: Literal["ok", "note", "problem"] = "ok"
    remedy: str = ""


def cuda_state() -> tuple[bool, str]:
    """Whether there is a usable CUDA device, and what torch warns of (a driver that is too old)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = sys.modules["torch"].cuda.is_available()
    return available, "; ".join(str(warning.message) for warning in said)


def examine_hooks(registry: Registry) -> list[Finding]:
    """Call the commands hook, the back-end hooks and the notes hook; failures are recorded with the plugins.

    Args:
        registry: the plugins to call.
    """
    commands_of(registry)
    return [*examine_answers(registry), *examine_notes(registry)]


def examine_answers(registry: Registry) -> Iterator[Finding]:
    """The back end that is selected for each hook and device."""
    if sys.modules.get("torch") is None or sys.modules.get("tensordict") is None:
        return  # reported already: they do not import
    import torch

    kinds = ["cpu", *(["cuda"] if cuda_state()[0] else [])]
    for device in map(torch.device, kinds):
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("priority tree", "rl_priority_tree", {"capacity": 8, "device": device, "dtype": torch.float32}),
            ("linear recurrence", "rl_linear_recurrence", {"device": device, "dtype": torch.float32}),
        ]
        if device.type == "cpu":  # elsewhere the tensors to ask with would have to be made there first
            asked.append(("row gather", "rl_row_gather", {"tensors": [torch.zeros(1, device=device)]}))
        asked += [
            (f"recurrent {cell}", "rl_recurrent_backend", {"cell": cell, "name": None, "device": device})
            for cell in ("lstm", "gru")
        ]
        for what, hook, arguments in asked:
            yield _answer(registry, f"{what} on {device.type}", hook, arguments)


def _answer(registry: Registry, what: str, hook: str, arguments: dict[str, Any]) -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # failures are listed with the plugins
        try:
            found = registry.answer(hook, **arguments)
        except RLError as error:
            return Finding("back ends", what, str(error), "problem", "the message says what to do")
    if found is None:
        return Finding("back ends", what, "no installed plugin answers", "note")
    name = getattr(found.value, "name", None) or getattr(found.value, "__name__", None) or type(found.value).__name__
    why = getattr(found.value, "why", "")
    order = _order(hook, registry.candidates(hook), found)
    return Finding("back ends", what, f"{name} of {found.plugin.distribution}{f': {why}' if why else ''} ({order})")


def _order(hook: str, candidates: list[tuple[PluginRecord, str]], found: Answer) -> str:
    """Each plugin that implements a hook, in the order of calls, and what became of the call."""
    if len(candidates) == 1:
        return "the only candidate"
    shown: list[str] = []
    for record, mark in candidates:
        if record is found.plugin:
            outcome = "selected, the first answer"
        else:
            outcome = _outcome(hook, record) if record.id in found.passed else "not called"
        shown.append(f"{record.id}{f' [{mark}]' if mark else ''}: {outcome}")
    return f"in order of calls: {'; '.join(shown)}"


def _outcome(hook: str, record: PluginRecord) -> str:
    """What became of a call that gave no answer to use."""
    if any(problem.startswith(f"{hook} gave ") for problem in record.problems):
        return "its answer was refused"
    return (
        "it raised" if any(problem.startswith(f"{hook} raised ") for problem in record.problems) else "no answer here"
    )


def commands_of(registry: Registry) -> dict[str, tuple[Command, PluginRecord]]:
    """Subcommands; what is wrong with them is noted with their plugins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return registry.commands()


def examine_notes(registry: Registry) -> Iterator[Finding]:
    """What plugins say about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # failures are listed with the plugins
        answers = registry.answers("rl_notes")
    for answer in answers:
        for text in [answer.value] if isinstance(answer.value, str) else answer.value:
            yield Finding("back ends", answer.plugin.distribution, text, "note")
