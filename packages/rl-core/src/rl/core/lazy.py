"""Lazy package roots: a module is imported when one of its names is first used (PEP 562)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec, resolve_name
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, sources: Mapping[str, Iterable[str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create the `__getattr__` and `__dir__` of a package root.

    Args:
        package: Root's ``__name__``.
        sources: Public names by the module that defines them; if None, the imports below
            ``if TYPE_CHECKING:`` in the source of the root, absolute or relative, which are read at the first use
            of a name.

    Returns:
        The two functions, to be assigned in the root.

    Example:
        >>> getattr_, dir_ = lazy_exports("rl.core", {"rl.core.errors": ["RLError"]})
        >>> getattr_("RLError").__name__
        'RLError'
        >>> getattr_, dir_ = lazy_exports("rl.core")
        >>> getattr_("SpecError").__name__
        'SpecError'
    """

    @cache
    def origin() -> dict[str, str]:
        if sources is None:
            return _type_checking_imports(package)
        return {name: module for module, names in sources.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in origin():
            raise _unknown(package, name)
        value = getattr(import_module(origin()[name]), name)
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *origin()})

    return __getattr__, __dir__


def _unknown(package: str, name: str) -> Exception:
    """Return the error about a name that is not there; for one of TorchRL, rl-torchrl says what to use or to read.

    ``from package import name`` first asks whether the name is there, and would replace the text of an
    `AttributeError`: it gets an `ImportError`, while `hasattr` and attribute access get an `AttributeError`.
    """
    imported = sys._getframe(2).f_code.co_name == "_handle_fromlist"  # noqa: SLF001
    if not name.startswith("_") and not (imported and find_spec(f"{package}.{name}")):
        for remedy in filter(None, (answer(name) for answer in foreign_answers("names"))):
            message = f"{package} has no {name}, which TorchRL has: {remedy}"
            return ImportError(message, name=package) if imported else AttributeError(message)
    return AttributeError(f"module {package!r} has no attribute {name!r}")


@cache
def foreign_answers(what: str) -> tuple[Callable[[str], Any], ...]:
    """Return what installed packages say about names and arguments of other libraries: entry points ``rl.foreign``.

    One that cannot be imported is named in a warning.

    Args:
        what: ``names``, answered with a sentence or None, or ``arguments`` of a class or function, by its package and
            qualified name, answered with `rl.core.arguments.Needless` by argument.
    """
    from importlib.metadata import entry_points  # this module is imported by every package root

    from rl.core.errors import BrokenPluginWarning, issue_warning
    from rl.core.settings import normalized, settings

    disabled = {normalized(name) for name in settings().plugins_disable}
    found: list[Callable[[str], Any]] = []
    for entry in entry_points(group="rl.foreign", name=what):
        owner = normalized(entry.dist.name if entry.dist else "?")
        if disabled & {"*", owner}:
            continue
        try:
            found.append(entry.load())
        except Exception as error:  # noqa: BLE001  the error that is about to be raised is the one to see
            issue_warning(f"{owner} is left out of messages: {error!r:.200}", BrokenPluginWarning)
    return tuple(found)


def _type_checking_imports(package: str) -> dict[str, str]:
    """Return the module of each name that the root imports below ``if TYPE_CHECKING:``."""
    loader: Any = vars(sys.modules[package])["__spec__"].loader
    blocks = [node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If)]
    return {
        name.name: resolve_name("." * node.level + (node.module or ""), package)
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
