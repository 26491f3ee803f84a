"""Lazy package roots: a module is imported when one of its names is first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, sources: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package root.

    Args:
        package: the root's ``__name__``.
        sources: for each module that defines public names, those names.

    Returns:
        The two functions, to be assigned in the root.

    Example:
        >>> getattr_, dir_ = lazy_exports("rl.core", {"rl.core.errors": ["RLError"]})
        >>> getattr_("RLError").__name__
        'RLError'
    """
    origin = {name: module for module, names in sources.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in origin:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(origin[name]), name)
        setattr(sys.modules[package], name, value)  # found at once the next time
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *origin})

    return __getattr__, __dir__
