"""``rl doctor``: installed distributions, faults, the plugin that answers each hook, and remedies."""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rl.core import _discovery as namespace
from rl.core.__about__ import __version__
from rl.core._discovery import installed_version, requirements, satisfies
from rl.core._output import Parser, diverted_stdout, table
from rl.core._plugins import Answer, PluginRecord, brief, did_you_mean
from rl.core.component import Command
from rl.core.errors import MissingExtraError, RLError, UnknownComponentError
from rl.core.registry import Registry, discovered
from rl.core.settings import normalized, settings
from rl.core.targets import check_target, import_target

__all__ = ["Finding", "examine", "examine_hooks", "examine_plugin", "main"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        section: Heading of the section.
        name: Name of what was examined.
        value: Result of the examination.
        state: ``ok``; ``note``: works, could be better; ``problem``: broken.
        remedy: Remedy, if there is one.
    """

    section: str
    name: str
    value: str
    state: Literal["ok", "note", "problem"] = "ok"
    remedy: str = ""


@dataclass(frozen=True)
class _BadPair:
    """Distributions in versions that do not work together, although an installer lets them in."""

    first: str
    first_range: str
    second: str
    second_range: str
    problem: str
    remedy: str


_BAD_PAIRS = (
    _BadPair(
        "dm-control",
        "",
        "mujoco",
        ">=4",
        "dm_control reads a model field that MuJoCo 4 removed; every task fails",
        'pip install "mujoco<4"',
    ),
    _BadPair(
        "pygame",
        "",
        "pygame-ce",
        "",
        "both install the module pygame, and overwrite each other's files",
        "pip uninstall pygame pygame-ce, then pip install pygame-ce",
    ),
)


def main(arguments: list[str]) -> int:
    """Run ``rl doctor``.

    Returns:
        1 if anything is broken, else 0.
    """
    parser = Parser(
        "rl doctor",
        description="Look for what is broken or slower than it need be, and say what to do. Exit status 1 if"
        " anything is broken.",
    )
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="import neither torch nor tensordict")
    part.add_argument("--plugin", metavar="NAME", help="run the conformance checks on an installed plugin, and no more")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.read(arguments)
    with diverted_stdout():
        findings = examine(quick=options.quick) if options.plugin is None else examine_plugin(options.plugin)
    problems = [finding for finding in findings if finding.state == "problem"]
    if options.json:
        report = {"ok": not problems, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(findings, len(problems))) + "\n")
    return 1 if problems else 0


def _lines(findings: list[Finding], problems: int) -> Iterator[str]:
    rows = [(f.name, " ".join(f.value.split())) for f in findings]
    section = ""
    for finding, line in zip(findings, table(rows), strict=True):
        if finding.section != section:
            yield ("\n" if section else "") + finding.section
            section = finding.section
        mark = {"ok": "      ", "note": "note  ", "problem": "WRONG "}[finding.state]
        yield f"  {mark}{line}"
        if finding.remedy:
            yield f"        -> {finding.remedy}"
    yield ""
    yield "Nothing is broken." if not problems else f"{problems} problem{'s' if problems > 1 else ''}."


def examine(*, quick: bool = False, registry: Registry | None = None) -> list[Finding]:
    """Everything that ``rl doctor`` reports.

    Args:
        quick: Whether to import neither torch nor tensordict.
        registry: Plugins to look at; if None, what is installed.
    """
    registry = discovered() if registry is None else registry
    findings = [*_system(), *_libraries(), *_namespace()]
    commands = commands_of(registry)
    if not quick:
        findings += [*_imports(registry), *_devices(), *examine_answers(registry)]
    findings += examine_notes(registry)
    if not quick:
        findings += _targets(registry, commands)
    # Last, since asking the hooks may have brought up problems.
    findings += [*_plugins(registry), *_settings(registry), *_bad_pairs(), *_extras(registry)]
    return findings


def examine_plugin(name: str, *, registry: Registry | None = None) -> list[Finding]:
    """Everything that ``rl doctor --plugin NAME`` reports: the checks of `rl.testing.check_plugin`.

    Args:
        name: Name of an entry point or a distribution, or both as ``distribution:name``.
        registry: Plugins to look among; if None, what is installed.

    Raises:
        UnknownComponentError: If no installed plugin has that name.
        MissingExtraError: If rl-testing is not installed; holds the line that installs it.
    """
    records = (discovered() if registry is None else registry).plugins
    wanted = normalized(name)
    found = [r for r in records if wanted in (normalized(r.name), normalized(r.distribution), normalized(r.id))]
    if not found:
        known = [record.id for record in records]
        raise UnknownComponentError(
            f"no installed plugin is called {name!r}{did_you_mean(name, known)}"
            f" (installed: {', '.join(known) or 'none'})"
        )
    rows_of = import_target("rl.testing:examine_plugin", "rl doctor --plugin", "rl-core")
    states: dict[str, Literal["ok", "note", "problem"]] = {"ok": "ok", "not exercised": "note", "problem": "problem"}
    return [
        Finding(
            f"plugin {record.label}",
            row.name,
            row.text if row.state != "not exercised" else f"not exercised: {row.text}",
            states[row.state],
        )
        for record in found
        for row in rows_of(record.value, record.distribution)
    ]


def cuda_state() -> tuple[bool, str]:
    """Whether there is a usable CUDA device, and what torch warns of (a driver that is too old)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = sys.modules["torch"].cuda.is_available()
    return available, "; ".join(str(warning.message) for warning in said)


def examine_hooks(registry: Registry) -> list[Finding]:
    """Call the commands hook, the back-end hooks and the notes hook; failures are recorded with the plugins.

    Args:
        registry: Plugins to call.
    """
    commands_of(registry)
    return [*examine_answers(registry), *examine_notes(registry)]


def examine_answers(registry: Registry) -> Iterator[Finding]:
    """Return the back end that is selected for each hook and device."""
    if sys.modules.get("torch") is None or sys.modules.get("tensordict") is None:
        return  # their failed import is reported already
    import torch

    kinds = ["cpu", *(["cuda"] if cuda_state()[0] else [])]
    for device in map(torch.device, kinds):
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("priority tree", "rl_priority_tree", {"capacity": 8, "device": device, "dtype": torch.float32}),
            ("linear recurrence", "rl_linear_recurrence", {"device": device, "dtype": torch.float32}),
        ]
        if device.type == "cpu":  # on other devices the hook needs tensors there
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
    """Describe a call that returned no usable answer."""
    if any(problem.startswith(f"{hook} returned ") for problem in record.problems):
        return "its answer was rejected"
    return (
        "it raised" if any(problem.startswith(f"{hook} raised ") for problem in record.problems) else "no answer here"
    )


def commands_of(registry: Registry) -> dict[str, tuple[Command, PluginRecord]]:
    """Subcommands; what is wrong with them is noted with their plugins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return registry.commands()


def examine_notes(registry: Registry) -> Iterator[Finding]:
    """Call the hook `rl_notes`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # failures are listed with the plugins
        answers = registry.answers("rl_notes")
    for answer in answers:
        for text in [answer.value] if isinstance(answer.value, str) else answer.value:
            yield Finding("back ends", answer.plugin.distribution, text, "note")


def _system() -> Iterator[Finding]:
    yield Finding("system", "Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", "platform", platform.platform())
    yield Finding("system", "rl-core", __version__)


def _libraries() -> Iterator[Finding]:
    """Compare the dependencies of rl-core with what is installed."""
    names = {normalized(name): wanted for name, wanted, extra, _ in requirements("rl-core") if extra is None}
    names.setdefault("numpy", "")
    for name, wanted in names.items():
        found = installed_version(name)
        if found is None:
            state = "problem" if wanted else "note"
            yield Finding("libraries", name, "not installed", state, f'pip install "{name}{wanted}"')
        elif not satisfies(found, wanted):
            yield Finding(
                "libraries", name, f"{found}, rl-core needs {wanted}", "problem", f'pip install "{name}{wanted}"'
            )
        else:
            yield Finding("libraries", name, found)


def _imports(registry: Registry) -> Iterator[Finding]:
    unreadable = [record.distribution for record in registry.plugins if record.state == "broken" and not record.value]
    for name in ("torch", "tensordict"):
        try:
            __import__(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, it is reported
            remedy = f"pip install --force-reinstall {name}"
            if isinstance(error, UnicodeDecodeError) and unreadable:  # torch reads all entry points
                remedy = f"repair {', '.join(unreadable)} first, as the section plugins says"
            yield Finding("libraries", f"import {name}", brief(error), "problem", remedy)


def _namespace() -> Iterator[Finding]:
    for found in namespace.intruders():
        yield Finding("namespace", "rl", found.problem, "problem", found.remedy)


def _devices() -> Iterator[Finding]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("devices", "cpu", f"{cores} cores to use, torch uses {torch.get_num_threads()} threads")
    available, heard = cuda_state()
    if not available:
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no usable CUDA device"
        yield Finding("devices", "cuda", f"none: {why}{f' ({heard})' if heard else ''}")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        yield Finding(
            "devices",
            f"cuda:{index}",
            f"{properties.name}, {memory}, compute capability {properties.major}.{properties.minor}",
        )


def _targets(registry: Registry, commands: dict[str, tuple[Command, PluginRecord]]) -> Iterator[Finding]:
    """Import every component and compare it with its kind."""
    if sys.modules.get("torch") is None or sys.modules.get("tensordict") is None:
        return
    sound = 0
    loaded = [record for record in registry.plugins if record.state == "loaded"]
    every = [(component, record) for record in loaded for component in record.components]
    for component, record in sorted(every, key=lambda one: (one[0].kind, one[0].name)):
        what = f"{component.kind} {component.name}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check_target(component, record.distribution)
        except MissingExtraError as error:
            yield Finding("components", what, str(error), "note")
        except RLError as error:
            yield Finding("components", what, str(error), "problem", "the message says what to do")
        else:
            sound += 1
    for name, (command, record) in commands.items():
        try:
            import_target(command.target, f"command {name!r}", record.distribution)
        except MissingExtraError as error:
            yield Finding("components", f"command {name}", str(error), "note")
        except RLError as error:
            yield Finding("components", f"command {name}", str(error), "problem", "the message says what to do")
    if sound:
        value = f"{sound} import and fit their kinds"
        yield Finding("components", "all others" if sound < len(every) else "all", value)


def _plugins(registry: Registry) -> Iterator[Finding]:
    if not registry.plugins:
        yield Finding("plugins", "none", "no plugin is installed", "note", "pip install rl-envs, for example")
    for record in registry.plugins:
        yield _plugin(record)
        for problem in record.problems:
            yield Finding(
                "plugins",
                record.id,
                problem,
                "problem",
                _remedy(record, "upgrade"),
            )
        for note in record.notes:
            yield Finding(
                "plugins", record.id, note, "note", "ask for one by distribution:name, or uninstall the other"
            )
        if record.slow:
            remedy = f"upgrade {record.distribution}, report it there, or set RL_PLUGINS_DISABLE={record.name}"
            yield Finding("plugins", record.id, record.slow, "note", remedy)
        yield from _wanted(record)


def _plugin(record: PluginRecord) -> Finding:
    if record.state == "loaded":
        count = len(record.components)
        return Finding("plugins", record.id, f"{record.version} {count} component{'' if count == 1 else 's'}".strip())
    if record.state == "disabled":
        return Finding("plugins", record.id, f"{record.version} disabled: {record.reason}", "note")
    value = f"{record.version} {record.state}: {record.reason}".strip()
    return Finding("plugins", record.id, value, "problem", _remedy(record, "upgrade or uninstall"))


def _remedy(record: PluginRecord, otherwise: str) -> str:
    """Return the remedy for a plugin: that of its record, else to leave it out or do `otherwise`."""
    leave_out = f"{otherwise} {record.distribution}, or set RL_PLUGINS_DISABLE={record.name}"
    return leave_out if record.remedy is None else record.remedy


def _wanted(record: PluginRecord) -> Iterator[Finding]:
    """List requirements of a plugin's distribution that are absent or out of range."""
    for name, wanted, extra, conditional in requirements(record.distribution):
        if extra is not None or conditional or (record.state == "incompatible" and normalized(name) == "rl-core"):
            continue
        found = installed_version(name)
        if found is None or not satisfies(found, wanted):
            have = f"it is {found}" if found else "it is not installed"
            yield Finding(
                "plugins", record.id, f"needs {name}{wanted}; {have}", "problem", f'pip install "{name}{wanted}"'
            )


def _settings(registry: Registry) -> Iterator[Finding]:
    try:
        values = settings()
    except RLError as error:
        yield Finding("settings", "environment", str(error), "problem", "correct the variable, or unset it")
        return
    known = {"*"}.union(*({normalized(r.name), normalized(r.distribution)} for r in registry.plugins))
    for name in values.plugins_disable:
        if name not in known:
            yield Finding(
                "settings",
                "RL_PLUGINS_DISABLE",
                f"names {name!r}, which is no installed plugin",
                "note",
                "`rl plugins` lists distributions and plugins",
            )
    if values.native != "auto":
        yield Finding("settings", "RL_NATIVE", values.native)


def _bad_pairs(version: Callable[[str], str | None] = installed_version) -> Iterator[Finding]:
    for pair in _BAD_PAIRS:
        first, second = version(pair.first), version(pair.second)
        if first is None or second is None:
            continue
        if satisfies(first, pair.first_range) and satisfies(second, pair.second_range):
            yield Finding(
                "known conflicts",
                f"{pair.first} {first}, {pair.second} {second}",
                pair.problem,
                "problem",
                pair.remedy,
            )


def _extras(registry: Registry) -> Iterator[Finding]:
    """Extras whose libraries are absent: nothing is wrong, but their components do not load."""
    for distribution in dict.fromkeys(r.distribution for r in registry.plugins if r.state == "loaded"):
        absent: dict[str, list[str]] = {}
        for name, _, extra, conditional in requirements(distribution):
            if extra is not None and not conditional and installed_version(name) is None:
                absent.setdefault(extra, []).append(name)
        for extra, names in absent.items():
            yield Finding(
                "extras",
                f"{distribution}[{extra}]",
                f"not installed: {', '.join(names)}",
                "note",
                f'pip install "{distribution}[{extra}]", if you want it',
            )
