"""`PluginRecord`: distribution, entry point, import time and status of one plugin."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from difflib import get_close_matches
from inspect import isfunction
from types import FunctionType
from typing import Any, Literal, cast

import pluggy

from rl.core import hookspecs
from rl.core.__about__ import __version__
from rl.core.component import CONTRACTS, Component
from rl.core.errors import DuplicateComponentError, PluginError

PluginState = Literal["loaded", "broken", "disabled", "incompatible"]

SLOW_IMPORT = 0.05
"""Seconds that a declaration may take; every `rl` command waits for it."""

_HEAVY = ("torch", "tensordict")


@dataclass
class PluginRecord:
    """One plugin, usable or not.

    Args:
        name: Name of the entry point.
        distribution: Distribution that declares it.
        version: Version of the distribution.
        value: Value of the entry point, ``module`` or ``module:attribute``.
        state: ``loaded``; ``broken`` (it raised or breaks a rule); ``incompatible`` (it was written for
            another rl-core); ``disabled`` (the user left it out). All but the first offer nothing.
        reason: Reason why it is not loaded.
        components: Components that it declares; offered only if the plugin is loaded.
        problems: Failures after the import, when one of its hooks was called.
        notes: Remarks on a plugin that works, such as names that other plugins offer too.
        import_seconds: Time to import its declaration and to list its components and commands.
        imports: Those of torch and tensordict that its declaration imported first in this process.
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
    """What a plugin returned when a hook was called.

    Args:
        value: Value that the hook returned.
        plugin: Plugin that returned it.
        passed: Ids of the plugins that were called before and returned None, or failed.
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


_KINDS = {
    "collector": "Collector",
    "env": "Env",
    "estimator": "Estimator",
    "logger": "Logger",
    "loss": "Loss",
    "module": "Transform",
    "recurrent_backend": "RecurrentBackend",
    "sampler": "Sampler",
    "storage": "Storage",
    "transform": "Transform",
    "tree_backend": "PriorityTree",
    "writer": "Writer",
}
"""Kind of component to the protocol of what its target creates; a module only needs `__call__`."""

_RECIPE = ("name", "config", "train", "make_policy")
"""What a target of kind recipe has; its class is in rl-trainers."""

_HOOKS = {
    "rl_linear_recurrence": "LinearRecurrence",
    "rl_policy_step": "LoweredModule",
    "rl_priority_tree": "PriorityTree",
    "rl_recurrent_backend": "RecurrentBackend",
    "rl_row_gather": "RowGather",
}
"""Hook to the protocol of its answer."""


def check_kind(component: Component, target: object) -> str:
    """Return why `target` does not fit the component's kind; an empty string if it fits."""
    if component.kind == "recipe":
        absent = [name for name in _RECIPE if not hasattr(target, name)]
        return f"{_shown(target)} is no rl.trainers.Algorithm: it lacks {', '.join(absent)}" if absent else ""
    if not callable(target):
        return f"{_shown(target)} is neither a class nor a function"
    if component.kind not in _KINDS or not isinstance(target, type):
        return ""  # the result of a function is unknown before its call
    if abstract := sorted(getattr(target, "__abstractmethods__", ())):
        return f"{_shown(target)} is abstract: it lacks {', '.join(abstract)}"
    name = _KINDS[component.kind]
    absent = [method for method in _methods(_protocol(name)) if not _defines(target, method)]
    if not absent or _forwards(target):
        return ""
    return (
        f"{_shown(target)} lacks the method{'s' if absent[1:] else ''} {', '.join(absent)} of rl.core.interfaces.{name}"
    )


def check_answer(hook: str, value: object) -> str:
    """Return why `value` is no answer of `hook`; an empty string if it is one."""
    name = _HOOKS.get(hook)
    if name is None:
        return ""
    protocol = _protocol(name)
    members = [*_methods(protocol), *_attributes(protocol)]
    absent = [member for member in members if not _has(value, member)]
    return f"{_shown(value)}, which lacks {', '.join(absent)} of rl.core.interfaces.{name}" if absent else ""


def _protocol(name: str) -> type:
    from rl.core import interfaces

    return getattr(interfaces, name)


def _methods(protocol: type) -> Iterator[str]:
    """Those that the protocol defines, not those that `typing.Protocol` adds."""
    return (
        name for name, value in vars(protocol).items() if isfunction(value) and value.__module__ == protocol.__module__
    )


def _attributes(protocol: type) -> list[str]:
    properties = [name for name, value in vars(protocol).items() if isinstance(value, property)]
    return [*properties, *vars(protocol).get("__annotations__", {})]


def _defines(kind: type, method: str) -> bool:
    """Whether the class or a base defines the method; methods of its metaclass do not count."""
    return next((vars(base)[method] for base in kind.__mro__ if method in vars(base)), None) is not None


def _has(value: object, member: str) -> bool:
    return callable(value) if member == "__call__" else hasattr(value, member)


def _forwards(kind: type) -> bool:
    """Whether its objects may have more methods than the class: it defines `__getattr__`.

    That of `torch.nn.Module` finds parameters, buffers and submodules, none of which is a method.
    """
    found: Any = getattr(kind, "__getattr__", None)
    return isinstance(found, FunctionType) and found.__module__ != "torch.nn.modules.module"


def _shown(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    text = repr(value)
    return text if len(text) <= 60 else f"an object of {type(value).__module__}.{type(value).__qualname__}"


Offers = dict[tuple[str, str], tuple[tuple[Component, PluginRecord], ...]]
"""By kind and name: each component of that name, and the plugin that offers it."""


class IncompatiblePluginError(PluginError):
    """Written for another rl-core; the plugin itself may be fine.

    Args:
        message: Text that says what to upgrade.
        upgrade: Name of that distribution.
    """

    def __init__(self, message: str, upgrade: str) -> None:
        super().__init__(message)
        self.remedy = f"pip install --upgrade {upgrade}"


def admit(
    manager: pluggy.PluginManager, plugin: object, record: PluginRecord, offers: Offers, *, share_names: bool
) -> Offers:
    """Register a plugin and all its components, or nothing.

    Args:
        manager: Manager to which the plugin is added.
        plugin: Object or module with the hook implementations.
        record: Record of the plugin, which gets its components.
        offers: Offers of the plugins before it; not changed.
        share_names: Argument of `add_offer`.

    Returns:
        The offers with those of the plugin.

    Raises:
        PluginError: If it breaks a rule, or was written for another rl-core.
        DuplicateComponentError: If one of its components exists.
    """
    try:
        manager.register(plugin, name=record.id)
        manager.check_pending()  # raises for a hook name without a specification
        _reject_slips(manager, plugin, record)
        if not manager.get_hookcallers(plugin):
            raise PluginError(
                f"{record.value or 'it'} implements no hook: an entry point names the module (or object) with functions"
                " marked @hookimpl of rl.core.hookspecs"
            )
        record.components = tuple(_listed(manager, record))
        staged = dict(offers)
        for component in record.components:
            add_offer(component, record, staged, share_names=share_names)
    except BaseException as error:
        if manager.has_plugin(record.id):
            manager.unregister(name=record.id)
        if isinstance(error, pluggy.PluginValidationError):
            text = " ".join(str(error).split())
            raise PluginError(
                f"it does not fit the hooks of rl-core {__version__}: {text}. Upgrade rl-core, or correct the hook"
            ) from error
        raise
    return staged


def _reject_slips(manager: pluggy.PluginManager, plugin: object, record: PluginRecord) -> None:
    """Reject what pluggy accepts in silence: a hook without its mark, and wrappers, which we do not call."""
    for hook in hookspecs.__all__:
        if not hook.startswith("rl_") or not callable(getattr(plugin, hook, None)):
            continue
        impls = [impl for impl in getattr(manager.hook, hook).get_hookimpls() if impl.plugin_name == record.id]
        if not impls:
            raise PluginError(f"{hook} is not marked: put @hookimpl of rl.core.hookspecs above it")
        if any(impl.hookwrapper or impl.wrapper for impl in impls):
            raise PluginError(f"{hook} is a hook wrapper; only plain implementations are called")


def _listed(manager: pluggy.PluginManager, record: PluginRecord) -> list[Component]:
    found: list[Component] = []
    for impl in manager.hook.rl_components.get_hookimpls():
        if impl.plugin_name == record.id:
            given: object = impl.function()
            if not isinstance(given, Iterable):
                raise PluginError(f"rl_components returned {given!r}; it yields or lists objects of Component")
            found.extend(cast("Iterable[Component]", given))
    for item in found:
        if not isinstance(item, Component):
            raise PluginError(f"rl_components returned {item!r}; it lists objects of rl.core.component.Component")
    return found


def add_offer(component: Component, record: PluginRecord, offers: Offers, *, share_names: bool) -> None:
    """Add a component to the offers, if it can be served.

    Args:
        component: Component that is offered.
        record: Record of the plugin that offers it.
        offers: Offers to which the component is added.
        share_names: Whether another distribution may offer a component of that kind and name.

    Raises:
        PluginError: If its kind or its contract version is not served.
        DuplicateComponentError: If the name is not free.
    """
    _check_served(component, record)
    key = (component.kind, component.name)
    present = offers.get(key, ())
    for other, owner in present:
        if not share_names or owner.distribution == record.distribution:
            raise DuplicateComponentError(
                f"{component.kind} {component.name!r} is offered twice: {other.target} by {owner.distribution}, and"
                f" {component.target} by {record.distribution}, which is left out. Rename one, uninstall one"
                " distribution, or name one in RL_PLUGINS_DISABLE"
            )
    offers[key] = (*present, (component, record))


def _check_served(component: Component, record: PluginRecord) -> None:
    kind, what = component.kind, f"{component.kind} {component.name!r}"
    if kind not in CONTRACTS:
        raise IncompatiblePluginError(
            f"{what} is of a kind that rl-core {__version__} does not know{did_you_mean(kind, CONTRACTS)}"
            f" (kinds: {', '.join(CONTRACTS)}): correct the kind, or upgrade rl-core",
            "rl-core",
        )
    oldest, current = CONTRACTS[kind]
    if not oldest <= component.contract <= current:
        serves = f"{kind}/{current}" if oldest == current else f"{kind}/{oldest} to {kind}/{current}"
        upgrade = "rl-core" if component.contract > current else record.distribution
        raise IncompatiblePluginError(
            f"{what} was written for {kind}/{component.contract}, this rl-core {__version__} serves {serves}:"
            f" upgrade {upgrade}",
            upgrade,
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` or nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
