"""Registry of installed plugins, their components, and the hooks that they answer.

`default` reads the entry points of the group ``rl.plugins`` itself, so that a plugin that cannot be used is
named and left out while the rest works. A `Registry` is an object: tests create their own.

This module imports neither torch nor tensordict.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from typing import Any, NoReturn

import pluggy

from rl.core import _discovery as namespace
from rl.core import hookspecs
from rl.core._discovery import FIRST_PARTY, disable, in_order, record_of, scan
from rl.core._plugins import (
    SLOW_IMPORT,
    Answer,
    IncompatiblePluginError,
    Offers,
    PluginRecord,
    add_offer,
    admit,
    brief,
    check_answer,
    declaring,
    did_you_mean,
    naming_interrupts,
)
from rl.core.component import CONTRACTS, OWN_COMMANDS, Command, Component
from rl.core.errors import (
    BrokenPluginWarning,
    DuplicateComponentError,
    PluginError,
    RLError,
    UnknownComponentError,
    issue_warning,
)
from rl.core.settings import normalized, settings
from rl.core.targets import check_target

__all__ = ["GROUP", "SLOW_IMPORT", "Answer", "PluginRecord", "Registry", "components", "default", "load", "make"]

GROUP = "rl.plugins"


class Registry:
    """Plugins and what they offer.

    Args:
        entries: Entry points to import, each apart from the others; none for an empty registry.
        disabled: Entry points or distributions to leave out; ``*`` for all.

    Example:
        >>> registry = Registry()
        >>> registry.add(Component("loss", "mine", "rl.testing:check_loss"))
        >>> [component.name for component in registry.components("loss")]
        ['mine']
    """

    def __init__(self, entries: Iterable[EntryPoint] = (), *, disabled: Iterable[str] = ()) -> None:
        self._manager = pluggy.PluginManager("rl")
        self._manager.add_hookspecs(hookspecs)
        self._records: dict[str, PluginRecord] = {}
        self._offers: Offers = {}
        self._warned: set[str] = set()
        disabled = list(disabled)
        for entry in in_order(entries):
            self._discover(entry, record_of(entry, disabled))
        self._note_clashes()

    @classmethod
    def installed(cls) -> Registry:
        """Return a new registry of everything in this environment, less what ``RL_PLUGINS_DISABLE`` names."""
        disabled = settings().plugins_disable
        entries, damaged, doubled = scan(GROUP)
        registry = cls(entries, disabled=disabled)
        for record in damaged:
            registry._records[record.id] = disable(record, disabled)
        for record in registry.plugins:
            if problem := doubled.get(normalized(record.distribution)):
                record.problems.append(problem)
                record.remedy = ""  # the doubled distribution is to be repaired first
        return registry

    # ------------------------------------------------------------------ filling

    def _discover(self, entry: EntryPoint, record: PluginRecord) -> None:
        while record.id in self._records:  # two entry points of one name in one distribution
            record.name = f"{record.name} ({record.value})"
        self._records[record.id] = record
        if record.state != "loaded":
            return
        try:
            with declaring(record, "importing"):
                self._offers = admit(self._manager, entry.load(), record, self._offers, share_names=True)
        except KeyboardInterrupt:
            raise
        except IncompatiblePluginError as error:
            record.state, record.reason, record.remedy = "incompatible", str(error), error.remedy
        except RLError as error:
            record.state, record.reason = "broken", str(error)
        except BaseException as error:  # noqa: BLE001  one broken plugin must not hide the others
            missing = (error.name or "") if isinstance(error, ImportError) else ""
            hint = namespace.hint(missing)
            record.state, record.reason = "broken", f"{brief(error)}{hint}"
            record.remedy = "" if hint else None

    def _note_clashes(self) -> None:
        """Note with each plugin which of its names other plugins offer too."""
        for (kind, name), offers in self._offers.items():
            if len(offers) > 1:
                names = ", ".join(f"{owner.distribution}:{name}" for _, owner in offers)
                for _, owner in offers:
                    owner.notes.append(f"{kind} {name!r} is offered {len(offers)} times, as {names}")

    def register(self, plugin: object, name: str, distribution: str = "this program") -> PluginRecord:
        """Add a plugin that is no entry point: any object or module with functions marked `hookimpl`.

        Args:
            plugin: Object or module with the hook implementations.
            name: Name in listings and messages.
            distribution: Distribution in listings and messages.

        Raises:
            PluginError: If it breaks a rule; nothing of it is taken then.
            DuplicateComponentError: If one of its components exists.
        """
        record = PluginRecord(name, distribution)
        if record.id in self._records:
            raise PluginError(f"a plugin {record.id} is registered already: choose another name")
        self._offers = admit(self._manager, plugin, record, self._offers, share_names=False)
        self._records[record.id] = record
        return record

    def add(self, component: Component, distribution: str = "this program") -> None:
        """Add a single component.

        Raises:
            PluginError: If its kind or its contract version is not served.
            DuplicateComponentError: If there is one of that kind and name.
        """
        record = self._records.get(f"{distribution}:code") or PluginRecord("code", distribution)
        add_offer(component, record, self._offers, share_names=False)
        record.components = (*record.components, component)
        self._records[record.id] = record

    # ------------------------------------------------------------------ asking

    @property
    def plugins(self) -> list[PluginRecord]:
        """Every plugin that was found, usable or not, in the order of registration."""
        return list(self._records.values())

    def warn(self) -> None:
        """Issue a `BrokenPluginWarning` for each plugin that is broken or incompatible; once for each."""
        for record in self.plugins:
            if record.state in ("broken", "incompatible"):
                self._warn_once(record.id, f"plugin {record.label} is left out: {record.reason}")

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            issue_warning(message, BrokenPluginWarning)

    def components(self, kind: str | None = None) -> list[Component]:
        """List the components, sorted by kind and name.

        Args:
            kind: Kind of the components; all if None.

        Raises:
            UnknownComponentError: If there is no such kind.
        """
        if kind is not None and kind not in CONTRACTS:
            raise UnknownComponentError(
                f"there is no kind {kind!r} of component{did_you_mean(kind, CONTRACTS)} (kinds: {', '.join(CONTRACTS)})"
            )
        return [offer[0] for key in sorted(self._offers) if kind in (None, key[0]) for offer in self._offers[key]]

    def owner(self, kind: str, name: str) -> PluginRecord:
        """Return the plugin that offers a component.

        Args:
            kind: Kind of the component.
            name: Name as for `load`.

        Raises:
            UnknownComponentError: If no plugin does.
            DuplicateComponentError: If several plugins do.
        """
        return self._offer(kind, name)[1]

    def owner_of(self, component: Component) -> str:
        """Return the distribution that declared a component; an empty string if none did."""
        offers = self._offers.get((component.kind, component.name), ())
        return next((owner.distribution for one, owner in offers if one is component), "")

    def left_out(self) -> str:
        """Return the plugins that are not loaded and why, for the message about something that was not found.

        Example:
            >>> Registry().left_out()
            ''
        """
        absent = [record for record in self.plugins if record.state != "loaded"]
        states = [f"{r.id} ({r.reason if r.state == 'disabled' else r.state})" for r in absent]
        return f"plugins that are left out: {', '.join(states)}; see `rl plugins`" if states else ""

    def load(self, kind: str, name: str) -> Any:
        """Import the component `name` and return it: a class or a function.

        Args:
            kind: Kind of the component.
            name: Name of the component; ``distribution:name`` for one of several with that name.

        Raises:
            UnknownComponentError: If no plugin offers it.
            DuplicateComponentError: If several plugins offer it; says how to choose.
            MissingExtraError: If a library that it needs is absent; holds the line that installs it.
            PluginError: If its module is broken, or it does not fit the protocol of its kind.
        """
        component, record = self._offer(kind, name)
        return check_target(component, record.distribution)

    def _offer(self, kind: str, name: str) -> tuple[Component, PluginRecord]:
        distribution, _, plain = name.rpartition(":")
        present = self._offers.get((kind, plain), ())
        if distribution:
            present = [offer for offer in present if normalized(offer[1].distribution) == normalized(distribution)]
        if len(present) > 1 and normalized(present[0][1].distribution) not in FIRST_PARTY:
            owners = [owner.distribution for _, owner in present]
            raise DuplicateComponentError(
                f"{kind} {name!r} is offered by {' and by '.join(owners)}. Ask for"
                f" {' or '.join(repr(f'{owner}:{plain}') for owner in owners)}, or name one distribution in"
                " RL_PLUGINS_DISABLE"
            )
        return present[0] if present else self._unknown(kind, name)

    def _unknown(self, kind: str, name: str) -> NoReturn:
        known = list(dict.fromkeys(component.name for component in self.components(kind)))
        for record in self.plugins:
            if record.state != "loaded" and (kind, name) in {(c.kind, c.name) for c in record.components}:
                raise UnknownComponentError(f"{kind} {name!r} is of {record.label}, which is left out: {record.reason}")
        more = self.left_out()
        raise UnknownComponentError(
            f"no installed plugin offers {kind} {name!r}{did_you_mean(name, known)}"
            f" (known: {', '.join(known) or 'none'}{f'; {more}' if more else ''})"
        )

    def make(self, kind: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the component `name` with further arguments, see `rl.core.make`.

        Example:
            >>> registry = Registry()
            >>> registry.add(Component("tree_backend", "toy", "rl.testing:ToyPriorityTree"))
            >>> registry.make("tree_backend", "toy", capacity=4).capacity
            4
        """
        target = self.load(kind, name)
        if not callable(target):
            raise PluginError(f"{kind} {name!r} is an object already: use rl.core.load({kind!r}, {name!r})")
        return target(*args, **kwargs)

    # ------------------------------------------------------------------ hooks

    def answers(self, hook: str, /, **arguments: Any) -> list[Answer]:
        """Return the answers of all plugins, without None, in the order of `rl.core.hookspecs`.

        A plugin that raises is named in a `BrokenPluginWarning`; the others are still asked.
        """
        return list(self._ask(hook, arguments, first=False))

    def answer(self, hook: str, /, **arguments: Any) -> Answer | None:
        """Return the first answer that is not None with its plugin; None if there is none.

        An `RLError` of a plugin reaches the caller. Any other failure is treated as in `answers`.
        """
        found = self._ask(hook, arguments, first=True)
        return found[0] if found else None

    def candidates(self, hook: str) -> list[tuple[PluginRecord, str]]:
        """List the plugins that implement a hook in the order of calls, and their marks: tryfirst, trylast or none."""
        found: list[tuple[PluginRecord, str]] = []
        for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            mark = "tryfirst" if impl.tryfirst else "trylast" if impl.trylast else ""
            found.append((self._records[impl.plugin_name], mark))
        return found

    def _ask(self, hook: str, arguments: dict[str, Any], *, first: bool) -> list[Answer]:
        found: list[Answer] = []
        passed: list[str] = []
        for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            record = self._records[impl.plugin_name]
            watch = declaring if hook == "rl_commands" else naming_interrupts
            try:
                with watch(record, f"calling {hook} of"):
                    value = impl.function(*(arguments[name] for name in impl.argnames))
                    if value is not None:
                        value = _checked(hook, value)
            except KeyboardInterrupt:
                raise
            except _WrongAnswerError as error:
                self._failed(record, f"{hook} returned {error}")
                value = None
            except BaseException as error:
                if first and isinstance(error, RLError):
                    raise  # a plugin that rejects the call on purpose
                self._failed(record, f"{hook} raised {brief(error)}")
                value = None
            if value is None:
                passed.append(record.id)
                continue
            found.append(Answer(value, record, tuple(passed)))
            if first:
                break
        return found

    def _failed(self, record: PluginRecord, problem: str) -> None:
        remedy = f"Upgrade {record.distribution}, or leave it out with RL_PLUGINS_DISABLE={record.name}"
        self._note(record, problem, f"{problem}; the other plugins are called instead. {remedy}")

    def _note(self, record: PluginRecord, problem: str, message: str) -> None:
        if problem not in record.problems:
            record.problems.append(problem)
        self._warn_once(f"{record.id} {problem}", f"plugin {record.label}: {message}")

    def commands(self) -> dict[str, tuple[Command, PluginRecord]]:
        """Subcommands of ``rl`` by name. Of two with one name the first plugin's is taken, with a warning."""
        order = list(self._records)
        answers = self.answers("rl_commands", registry=self)
        found: dict[str, tuple[Command, PluginRecord]] = {}
        for answer in sorted(answers, key=lambda answer: order.index(answer.plugin.id)):
            for command in answer.value:
                if command.name in found or command.name in OWN_COMMANDS:
                    first = found[command.name][1].id if command.name in found else "rl-core"
                    problem = f"rl_commands: command {command.name!r} is already offered by {first}"
                    self._note(answer.plugin, problem, problem)
                else:
                    found[command.name] = (command, answer.plugin)
        return found


class _WrongAnswerError(Exception):
    """What a hook returned is no answer of that hook."""


def _checked(hook: str, value: Any) -> Any:
    """Return the answer in the form that callers of the hook read."""
    if hook == "rl_commands":
        return _list_of(Command, value)
    if hook == "rl_notes":
        return _list_of(str, value)
    if problem := check_answer(hook, value):
        raise _WrongAnswerError(problem)
    return value


def _list_of(kind: type, value: Any) -> list[Any]:
    """One object, or any iterable of them, as a list."""
    if not isinstance(value, kind) and not isinstance(value, Iterable):
        raise _WrongAnswerError(f"{value!r}, which is no {kind.__qualname__}")
    found = [value] if isinstance(value, kind) else list(value)
    for item in found:
        if not isinstance(item, kind):
            raise _WrongAnswerError(f"{item!r}, which is no {kind.__qualname__}")
    return found


_lock = threading.RLock()
_default: list[Registry] = []
_building: list[bool] = []


def discovered() -> Registry:
    """As `default`, without the warnings: for listings that show the same."""
    with _lock:
        if not _default:
            if _building:
                raise PluginError(
                    "a plugin asked for the registry while it was being listed: ask on first use, not on import"
                )
            _building.append(True)
            try:
                _default.append(Registry.installed())
            finally:
                _building.clear()
        return _default[0]


def default() -> Registry:
    """Return the registry of everything that is installed here, created once.

    Each plugin that cannot be used is named in a `BrokenPluginWarning`, once.
    """
    registry = discovered()
    registry.warn()
    return registry


def components(kind: str | None = None) -> list[Component]:
    """List the installed components, sorted by kind and name; none is imported.

    Args:
        kind: Kind of the components, such as ``"env"``, ``"loss"``, ...

    Raises:
        UnknownComponentError: If there is no such kind.

    Example:
        >>> all(component.kind == "env" for component in components("env"))
        True
    """
    return default().components(kind)


def load(kind: str, name: str) -> Any:
    """Import an installed component and return it: a class or a function.

    Args:
        kind: Kind of the component.
        name: Name of the component; ``distribution:name`` for one of several with that name.

    Raises:
        UnknownComponentError: If no plugin offers it; names the nearest one.
        DuplicateComponentError: If several plugins offer it; says how to choose.
        MissingExtraError: If a library that it needs is absent; holds the line that installs it.
        PluginError: If its module is broken, or it does not fit the protocol of its kind.
    """
    return default().load(kind, name)


def make(kind: str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Create what an installed component is: import it, and call it with the remaining arguments.

    Args:
        kind: Kind of the component.
        name: Name of the component; ``distribution:name`` for one of several with that name.
        args: Positional arguments of the class or function.
        kwargs: Keyword arguments of the class or function.

    Returns:
        What the class or function returns. A recipe is an object already: use `load`.

    Raises:
        UnknownComponentError: If no plugin offers it; names the nearest one.
        DuplicateComponentError: If several plugins offer it; says how to choose.
        MissingExtraError: If a library that it needs is absent; holds the line that installs it.
        PluginError: If its module is broken, it does not fit the protocol of its kind, or it cannot be called.
    """
    return default().make(kind, name, *args, **kwargs)
