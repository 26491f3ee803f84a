"""Conformance of declarations and of complete plugins."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rl.core.component import CONTRACTS, Component
from rl.core.doctor import examine_hooks
from rl.core.errors import BackendError, CheckError, MissingExtraError, RLError
from rl.core.registry import GROUP, SLOW_IMPORT, Registry
from rl.core.targets import check_target
from rl.testing._env import check_env
from rl.testing._priority_tree import check_priority_tree
from rl.testing._recurrent_backend import check_recurrent_backend
from rl.testing._replay import check_sampler, check_storage, check_writer
from rl.testing._report import Report
from rl.testing._run import check_logger, check_recipe


def check_component(component: Component, distribution: str = "this program") -> Report:
    """Check the declaration of a component: kind, contract version, summary, and a target that fits the kind.

    Args:
        component: Component as a plugin declares it.
        distribution: Distribution that declares it, for messages.

    Returns:
        What was not exercised: the target, if a library that its extra brings is absent.

    Raises:
        CheckError: An `AssertionError` with a line for each fault, the most severe first.

    Example:
        >>> check_component(Component("tree_backend", "toy", "rl.testing:ToyPriorityTree", summary="An array."))
        Report(owner="tree_backend 'toy'", not_exercised=[])
    """
    report = Report(f"{getattr(component, 'kind', '')} {getattr(component, 'name', component)!r}".strip())
    if faults := declaration_faults(component, distribution, report):
        raise CheckError("\n".join(faults))
    return report.warn()


def declaration_faults(component: object, distribution: str, report: Report) -> list[str]:
    """List the faults of a declaration, the most severe first; the report takes what was not exercised."""
    if not isinstance(component, Component):
        return [f"expected an rl.core.Component, got {component!r} of type {type(component).__name__}"]
    owner, faults = report.owner, list[str]()
    if component.kind not in CONTRACTS:
        faults.append(f"no kind of component is called {component.kind!r} (kinds: {', '.join(CONTRACTS)}) ({owner})")
    else:
        try:
            Registry().add(component, distribution)
            check_target(component, distribution)
        except MissingExtraError as error:
            report.skip(f"the target: {error}")
        except RLError as error:
            faults.append(f"{error} ({owner})")
    if not component.summary.strip():
        faults.append(f"has no summary: listings show a line for each component ({owner})")
    if "\n" in component.summary:
        faults.append(f"the summary has several lines, listings show one ({owner})")
    return faults


_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from importlib.metadata import EntryPoint
from rl.core.registry import GROUP, Registry
record = Registry([EntryPoint(name="checked", value=sys.argv[1], group=GROUP)]).plugins[0]
print("\\n" + json.dumps(record.as_dict()))
"""

_BY_HAND = {
    "collector": "check_collector",
    "env_pool": "check_env",
    "estimator": "check_estimator",
    "loss": "check_loss",
    "module": "check_module",
    "transform": "check_transform",
}
"""Kinds that cannot be checked without data, and the check to call."""


@dataclass(frozen=True)
class Row:
    """One result.

    Args:
        name: Name of what was checked.
        state: Outcome of the check.
        text: Details of the outcome.
    """

    name: str
    state: Literal["ok", "not exercised", "problem"]
    text: str = ""


def examine_plugin(value: str, distribution: str = "this program") -> Iterator[Row]:
    """Check the declaration at `value`, ``module`` or ``module:attribute``, and each component that it lists."""
    first = _declaration(value)
    yield first
    if first.state == "problem":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the checks warn of is in their reports
        registry = Registry([_entry(value)])
        for component in registry.plugins[0].components:
            yield from _component(component, distribution)
        yield from _hooks(registry)


def _entry(value: str) -> EntryPoint:
    return EntryPoint(name="checked", value=value, group=GROUP)


def _declaration(value: str) -> Row:
    """Measure the import of the declaration in a process of its own; the best of three if it is slow."""
    record, seconds = _imported(value), float("inf")
    for _ in range(3):
        seconds = min(seconds, record["import_seconds"])
        if seconds <= SLOW_IMPORT or record["imports"] or record["state"] != "loaded":
            break
        record = _imported(value)
    name = f"declaration {value}"
    if record["state"] != "loaded":
        return Row(name, "problem", record["reason"])
    if record["imports"]:
        heavy = " and ".join(record["imports"])
        return Row(name, "problem", f"it imports {heavy}; only targets may import what is heavy")
    took = f"{seconds * 1000:.0f} ms"
    if seconds > SLOW_IMPORT:
        allowed = f"{SLOW_IMPORT * 1000:.0f} ms"
        return Row(name, "problem", f"its import takes {took}, {allowed} is the limit: every `rl` command waits for it")
    count = len(record["components"])
    return Row(name, "ok", f"{count} component{'' if count == 1 else 's'}, imported in {took}, without torch")


def _imported(value: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _CHILD, value, json.dumps(sys.path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        reason = f"its import ended the process with status {done.returncode}: {last}"
        return {"state": "broken", "reason": reason, "import_seconds": 0.0, "imports": [], "components": []}


def _component(component: Component, distribution: str) -> Iterator[Row]:
    name = f"{component.kind} {component.name}"
    try:
        declared = Report(f"{component.kind} {component.name!r}")
        faults = declaration_faults(component, distribution, declared)
        yield from (Row(name, "problem", fault) for fault in faults)
        yield from (Row(name, "not exercised", sentence) for sentence in declared.not_exercised)
        if faults or declared.not_exercised:
            return
        checked = _checked(component, check_target(component, distribution))
    except CheckError as error:
        yield Row(name, "problem", str(error))
    except BackendError as error:
        yield Row(name, "not exercised", f"its behaviour on this machine: {error}")
    except Exception as error:  # noqa: BLE001  whatever a component raises, the others are checked
        yield Row(name, "problem", f"the check ended with {type(error).__name__}: {error}")
    else:
        if isinstance(checked, str):
            yield Row(name, "not exercised", checked)
            return
        yield Row(name, "ok", "declaration, target and behaviour")
        yield from (Row(name, "not exercised", sentence) for sentence in checked.not_exercised)


def _hooks(registry: Registry) -> Iterator[Row]:
    """Call every hook, as ``rl doctor`` does, and report answers that it rejects and exceptions."""
    for finding in examine_hooks(registry):
        if finding.state == "problem":
            yield Row(finding.name, "problem", finding.value)
    yield from (Row("hooks", "problem", problem) for problem in registry.plugins[0].problems)


def _checked(component: Component, target: Any) -> Report | str:
    """Return the report of the check of the component's kind; a sentence if it cannot run."""
    kind = component.kind
    if kind in _BY_HAND:
        return f"its behaviour: needs arguments and data; call rl.testing.{_BY_HAND[kind]} in a test"
    if kind == "recipe":
        return check_recipe(target)
    with TemporaryDirectory() as folder:
        given: dict[str, tuple[Any, ...]] = {"storage": (8,), "tree_backend": (8,), "logger": (Path(folder),)}
        arguments = given.get(kind, ())
        if rejection := _rejection(target, arguments):
            return f"its behaviour: needs arguments ({rejection}); call its check of rl.testing in a test"
        return _CHECKS[kind](target, arguments)


def _rejection(target: Any, arguments: tuple[Any, ...]) -> str:
    """Why the target creates nothing from these arguments; an empty string if it does."""
    try:
        inspect.signature(target).bind(*arguments)
        made = target(*arguments)
    except BackendError:
        raise
    except (TypeError, ValueError, RLError) as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    close: Any = getattr(made, "close", None)
    if callable(close):
        close()
    return ""


def _recurrent(target: Any, arguments: tuple[Any, ...]) -> Report:
    for cell in ("lstm", "gru"):
        check_recurrent_backend(target(*arguments), cell)
    return Report(getattr(target, "__name__", str(target)))


def _tree(target: Any, arguments: tuple[Any, ...]) -> Report:
    del arguments
    check_priority_tree(lambda capacity, dtype: target(capacity, dtype=dtype))
    return Report(getattr(target, "__name__", str(target)))


_CHECKS: dict[str, Callable[[Any, tuple[Any, ...]], Report]] = {
    "env": lambda target, _: check_env(target),
    "logger": lambda target, arguments: check_logger(lambda: target(*arguments)),
    "recurrent_backend": _recurrent,
    "sampler": lambda target, _: check_sampler(target),
    "storage": lambda target, _: check_storage(target),
    "tree_backend": _tree,
    "writer": lambda target, _: check_writer(target),
}


def check_plugin(module: str, distribution: str = "this program") -> Report:
    """Check the declaration of a plugin, and every component that it lists.

    The declaration is imported in a process of its own: it takes 50 ms at most and imports neither torch nor
    tensordict. Each component passes `check_component`; what can be created without arguments passes the check of its
    kind. ``rl doctor --plugin NAME`` does the same for an installed plugin, and prints a table.

    Args:
        module: Value of the entry point, ``"acme_rl.plugin"`` or ``"acme_rl.plugin:attribute"``.
        distribution: Distribution that declares it, for messages.

    Returns:
        What was not exercised: a sentence for each component whose check needs arguments or data, and those of the
        checks that ran.

    Raises:
        CheckError: An `AssertionError` with a line for each fault that was found.

    Example:
        >>> check_plugin("rl.core.no_such_module")
        Traceback (most recent call last):
        ...
        rl.core.errors.CheckError: ModuleNotFoundError: No module named 'rl.core.no_such_module' (declaration rl...)
    """
    rows = list(examine_plugin(module, distribution))
    faults = [row for row in rows if row.state == "problem"]
    if faults:
        raise CheckError("\n".join(f"{row.text} ({row.name})" for row in faults))
    report = Report(module)
    for row in rows:
        if row.state == "not exercised":
            report.skip(f"{row.text} ({row.name})")
    return report.warn()
