"""Find files that hide our packages: another distribution's ``rl/__init__.py``, an ``rl.py``, or an ``rl/envs.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from rl.core._plugins.discovery import FIRST_PARTY

__all__ = ["Intruder", "hint", "intruders"]


@dataclass(frozen=True)
class Intruder:
    """A file that turns ``rl`` into something else than our namespace.

    Args:
        path: the file.
        owner: the distribution that installed it, or None if none did.
    """

    path: Path
    owner: str | None = None

    @property
    def problem(self) -> str:
        """What is wrong."""
        by = f" (installed by {self.owner})" if self.owner else ""
        return f"{self.path}{by} hides packages of the namespace 'rl'"

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.owner:
            return f"pip uninstall {self.owner}, or use another environment for it"
        if self.path.name == "__init__.py":
            return f"delete {self.path}, or rename the folder {self.path.parent}"
        return f"rename {self.path}"


def _owner(folder: Path, file: Path) -> str | None:
    """The distribution in `folder` that brought `file`."""
    wanted = file.relative_to(folder).as_posix()
    for distribution in distributions(path=[str(folder)]):
        with suppress(Exception):  # a damaged list of files is not this one's
            if any(entry.as_posix() == wanted for entry in distribution.files or ()):
                return distribution.name
    return None


def _strangers(folder: Path) -> Iterator[Path]:
    """Modules of the name of one of our packages that are none: ours are folders with an ``__about__.py``."""
    for distribution in FIRST_PARTY:
        name = distribution.removeprefix("rl-").replace("-", "_")
        yield folder / f"{name}.py"
        if not (folder / name / "__about__.py").exists():
            yield folder / name / "__init__.py"


def intruders(paths: Iterable[str | Path] | None = None) -> list[Intruder]:
    """Look for what hides our packages in the folders that Python imports from.

    Args:
        paths: folders; if None, the current folder and `sys.path`.

    Example:
        >>> intruders([])
        []
    """
    folders = [Path(p or ".") for p in (["", *sys.path] if paths is None else paths)]
    found: dict[Path, Intruder] = {}
    for folder in folders:
        for file in (folder / "rl" / "__init__.py", folder / "rl.py", *_strangers(folder / "rl")):
            try:
                hides = file.is_file() and file.resolve() not in found
            except OSError:  # a folder that cannot be read, or was removed, hides nothing
                continue
            if hides:
                found[file.resolve()] = Intruder(file.resolve(), _owner(folder, file))
    return list(found.values())


def hint(missing: str) -> str:
    """What to add to a message about the absent module `missing`: the intruder that hides it, or nothing."""
    if missing.partition(".")[0] != "rl":
        return ""
    return "".join(f". {found.problem}: {found.remedy}" for found in intruders())
