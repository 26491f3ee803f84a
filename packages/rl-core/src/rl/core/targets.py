"""Import and check of the object that a component or a command names."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any

from rl.core import _discovery as namespace
from rl.core._discovery import FIRST_PARTY, installed_version
from rl.core._plugins import check_kind
from rl.core.component import Component
from rl.core.errors import MissingExtraError, PluginError

__all__ = ["absent_package", "check_target", "import_target"]


def check_target(component: Component, distribution: str = "this program") -> Any:
    """Import the target of a component and check it against the protocol of the component's kind.

    A target is a class or a function that creates one; of kind recipe it is an object. A class has the methods of the
    protocol in `rl.core.interfaces`, or a ``__getattr__`` of its own; a function is not called.

    Args:
        component: Component that names the target.
        distribution: Distribution that declared it, for messages.

    Returns:
        The class or the function.

    Raises:
        MissingExtraError: If a third-party library is absent; holds the line that installs it.
        PluginError: If the module or the attribute is not there, the module raises, or the target does not fit.

    Example:
        >>> check_target(Component("tree_backend", "toy", "rl.testing:ToyPriorityTree")).__name__
        'ToyPriorityTree'
    """
    what = f"{component.kind} {component.name!r}"
    target = import_target(component.target, what, distribution, component.extra)
    if problem := check_kind(component, target):
        raise PluginError(
            f"{what} of {distribution} is broken: its target {component.target!r} does not fit the kind"
            f" {component.kind}, {problem}. Upgrade {distribution}, or correct the target"
        )
    return target


def import_target(target: str, what: str, distribution: str, extra: str | None = None) -> Any:
    """Return the object that `target` names.

    Args:
        target: ``"module:attribute"``.
        what: Name in messages, such as ``env 'gym'``.
        distribution: Distribution that declared it.
        extra: Extra of the distribution that installs what the target imports.

    Raises:
        MissingExtraError: If a third-party library is absent; holds the line that installs it.
        PluginError: If the module or the attribute is not there, or the module raises.
    """
    module_name, _, attribute = target.partition(":")
    try:
        module = import_module(module_name)
        return reduce(getattr, attribute.split("."), module)
    except MissingExtraError:
        raise
    except ImportError as error:
        raise _explained(error, module_name, what, distribution, extra) from error
    except (Exception, SystemExit) as error:
        hidden = namespace.hint(module_name) if isinstance(error, AttributeError) else ""
        raise PluginError(
            f"{what} of {distribution} is broken: {target} raised {type(error).__name__}: {error}"
            f"{hidden or f'. Upgrade {distribution}, or report it there'}"
        ) from error


def _explained(
    error: ImportError, module_name: str, what: str, distribution: str, extra: str | None
) -> MissingExtraError | PluginError:
    missing = error.name or ""
    sibling = _absent_sibling(missing)
    if sibling:
        return MissingExtraError(
            f"{what} of {distribution} needs {sibling}, which is not installed: pip install {sibling}"
        )
    own = missing.partition(".")[0] in ("rl", module_name.partition(".")[0])
    if own or (not isinstance(error, ModuleNotFoundError) and extra is None):
        remedy = namespace.hint(missing) or f". Upgrade or reinstall {distribution}, or report it there"
        return PluginError(f"{what} of {distribution} is broken: importing {module_name} raised {error}{remedy}")
    library = missing.partition(".")[0] or "a library"
    absent = isinstance(error, ModuleNotFoundError)
    state = "is not installed" if absent else f"does not import ({error})"
    if extra is None:
        remedy = f"install {library}; {distribution} names no extra for it"
    else:
        remedy = f'pip install "{distribution}[{extra}]"'
    return MissingExtraError(f"{what} of {distribution} needs {library}, which {state}: {remedy}")


def absent_package(error: ImportError) -> str:
    """Return what to install or to rename so that our package in an error imports; an empty string for other errors."""
    missing = error.name or ""
    sibling = _absent_sibling(missing)
    hint = namespace.hint(missing)
    return (
        f"{sibling} is needed, which is not installed: pip install {sibling}" if sibling else hint and f"{error}{hint}"
    )


def _absent_sibling(missing: str) -> str:
    """Our distribution that would bring the absent module, unless it is installed."""
    parts = missing.split(".")
    distribution = f"rl-{parts[1]}".replace("_", "-") if parts[0] == "rl" and len(parts) > 1 else ""
    return distribution if distribution in FIRST_PARTY and installed_version(distribution) is None else ""
