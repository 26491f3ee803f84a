"""TorchRL's module tree, each module with the names that this toolkit has for it, looked up when they are used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rl.core.errors import RLError
from rl.torchrl._names import ANOTHER_MEANING, MODULES, RENAMED, TREE, is_module

_SPELLED = {
    "EnvBase": "rl.torchrl._envs",
    "MaskedCategorical": "rl.torchrl._distributions",
    "MaskedOneHotCategorical": "rl.torchrl._distributions",
    "ObservationTransform": "rl.torchrl._envs",
    "Transform": "rl.torchrl._envs",
    "gym_backend": "rl.torchrl._envs",
    "set_gym_backend": "rl.torchrl._envs",
}
"""Modules of names that are not those of the other packages: they accept TorchRL's spellings."""


class Finder:
    """Finder and loader of TorchRL's modules below another name; not by `importlib.abc`, whose import takes 25 ms.

    Args:
        root: Name of the module that stands for `torchrl`.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Return the spec of a module of TorchRL."""
        del path, target
        below = fullname.removeprefix(f"{self.root}.")
        if fullname == self.root or (below != fullname and is_module(below)):
            loader: Any = self
            return ModuleSpec(fullname, loader, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return _Module(spec.name, spec.name.removeprefix(self.root).lstrip("."))

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: names are looked up."""


class _Module(ModuleType):
    """A module of TorchRL, by its path below `torchrl`."""

    def __init__(self, name: str, below: str) -> None:
        super().__init__(name, f"What the rl packages have of torchrl.{below}.")
        self._below = below

    def __getattr__(self, name: str) -> Any:
        value = look_up(self.__name__, self._below, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *names_of(self._below), *TREE.get(self._below, "").split()})


def names_of(below: str) -> list[str]:
    """Return the names of a module of TorchRL that are here; those of its package, which exports them."""
    from rl.torchrl._migrate_sources import exports

    group = below.partition(".")[0]
    ours = set(MODULES.get(group, ()))
    names = {name for name, modules in exports().items() if ours & {*modules}} - {*ANOTHER_MEANING, "__version__"}
    names |= {old for old, new in RENAMED.items() if new.rpartition(".")[0] in ours}
    return sorted(names | {name for name, module in _SPELLED.items() if module == f"rl.torchrl._{group}"})


def look_up(module: str, below: str, name: str) -> Any:
    """Return a name of a module of TorchRL.

    Args:
        module: Full name of the module that has the attribute.
        below: Its path below `torchrl`; empty for the root.
        name: Name in the module.

    Raises:
        ImportError: If there is no counterpart and the name is imported; the message says what to use or to read.
        AttributeError: The same, of any other access.
    """
    path = f"{below}.{name}".lstrip(".")
    if is_module(path) and name not in RENAMED:
        return import_module(f"{module}.{name}")
    if name == "__all__":
        return names_of(below)
    if name in ("logger", "torchrl_logger") and below in ("", "_utils"):
        return import_module("logging").getLogger("torchrl")
    problem = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("__"):
        from rl.torchrl._migrate_sources import TorchRL, absent_packages

        if name in _SPELLED:
            return getattr(import_module(_SPELLED[name]), name)
        answer = TorchRL().name(f"torchrl.{path}")
        if answer is not None and answer.new is not None:
            where, _, there = answer.new.rpartition(".")
            return getattr(import_module(where), there)
        absent = " ".join(absent_packages())
        problem = f"{module}: {answer.note if answer else name}"
        problem += f"; or it is in one of {absent}, which are not installed: pip install {absent}" if absent else ""
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":  # noqa: SLF001  an import replaces an AttributeError
            raise ImportError(problem, name=module)
    raise AttributeError(problem)


def install(*, replace: bool = False) -> None:
    """Let ``import torchrl`` find this package, in this process.

    ``python -m rl.torchrl SCRIPT`` does it for a script that stays as it is.

    Args:
        replace: Whether to hide TorchRL itself where it is installed.

    Raises:
        RLError: If TorchRL was imported already; if it is installed, and `replace` is false.

    Example:
        >>> import rl.torchrl
        >>> rl.torchrl.install()
        >>> from torchrl.data import Bounded
        >>> Bounded.__module__.partition(".")[0]
        'rl'
    """
    if any(isinstance(finder, Finder) and finder.root == "torchrl" for finder in sys.meta_path):
        return
    if "torchrl" in sys.modules:
        raise RLError("torchrl was imported before: call rl.torchrl.install() first")
    if not replace and find_spec("torchrl") is not None:
        raise RLError("torchrl itself is installed: uninstall it, or hide it with rl.torchrl.install(replace=True)")
    finder: Any = Finder("torchrl")
    sys.meta_path.insert(0, finder)
