"""Validation of a plugin before the registry admits it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import cast

import pluggy

from rl.core import hookspecs
from rl.core.__about__ import __version__
from rl.core._plugins.record import PluginRecord
from rl.core.component import CONTRACTS, Component
from rl.core.errors import DuplicateComponentError, PluginError

__all__ = ["IncompatiblePluginError", "Offers", "add_offer", "admit", "did_you_mean"]

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
        manager: gets the plugin.
        plugin: holds the hook implementations.
        record: of the plugin; gets its components.
        offers: of the plugins before it; left as they are.
        share_names: see `add_offer`.

    Returns:
        The offers with those of the plugin.

    Raises:
        PluginError: if it breaks a rule, or was written for another rl-core.
        DuplicateComponentError: if one of its components exists.
    """
    try:
        manager.register(plugin, name=record.id)
        manager.check_pending()  # a hook name that we do not know
        _refuse_slips(manager, plugin, record)
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


def _refuse_slips(manager: pluggy.PluginManager, plugin: object, record: PluginRecord) -> None:
    """What pluggy accepts in silence: a hook without its mark, and wrappers, which we do not call."""
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
                raise PluginError(f"rl_components gave {given!r}; it yields or lists objects of Component")
            found.extend(cast("Iterable[Component]", given))
    for item in found:
        if not isinstance(item, Component):
            raise PluginError(f"rl_components gave {item!r}; it lists objects of rl.core.component.Component")
    return found


def add_offer(component: Component, record: PluginRecord, offers: Offers, *, share_names: bool) -> None:
    """Add a component to the offers, if it can be served.

    Args:
        component: what is offered.
        record: of the plugin that offers it.
        offers: gets the component.
        share_names: whether another distribution may offer a component of that kind and name.

    Raises:
        PluginError: if its kind or its contract version is not served.
        DuplicateComponentError: if the name is not free.
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
