"""Versions of installed distributions, read without importing them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distributions, requires, version
from pathlib import Path
from typing import Any

from rl.core.__about__ import __version__
from rl.core._plugins import PluginRecord, brief, printable
from rl.core.settings import normalized

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|<|>|~=)\s*([0-9][0-9.]*)(\*?)")

_VERSION = re.compile(r"v?[0-9][A-Za-z0-9._+!-]{0,99}")
_UNREADABLE = "unreadable"

Requirement = tuple[str, str, str | None, bool]
"""Name, version range, extra that asks for it or None, whether other conditions (a platform) go with it."""


def is_version(text: object) -> bool:
    """Whether a field of metadata can be a version.

    Example:
        >>> is_version("2.13.0+cpu"), is_version("one"), is_version(None)
        (True, False, False)
    """
    return isinstance(text, str) and _VERSION.fullmatch(text) is not None


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed; ``unreadable`` if its metadata is damaged.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    try:
        found: object = version(distribution)
    except PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001  bytes that are no text, a field that is absent
        return _UNREADABLE
    return str(found) if is_version(found) else _UNREADABLE


def _release(text: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    numbers = [int(part) for part in found.group().split(".")] if found else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _begins_with(version: str, start: str) -> bool:
    wanted = [int(part) for part in start.strip(".").split(".")]
    have = [*_release(version), *[0] * len(wanted)]
    return have[: len(wanted)] == wanted


def satisfies(installed: str, wanted: str) -> bool:
    """Whether a version lies in a range; compares release numbers only.

    Args:
        installed: ``2.13.0+cpu``.
        wanted: ``>=2.11,<3``; what is not understood is taken as satisfied.

    Example:
        >>> satisfies("2.13.0+cpu", ">=2.11"), satisfies("4.0.0", ">=3.3,<4"), satisfies("2.13.0", "==2.*")
        (True, False, True)
    """
    have = _release(installed)
    for operator, number, star in [] if wanted.startswith("@") else _CLAUSE.findall(wanted):  # "@": an address
        bound = _release(number)
        equal = _begins_with(installed, number) if star else have == bound
        fits = {
            ">=": have >= bound,
            "<=": have <= bound,
            "==": equal,
            "!=": not equal,
            "<": have < bound,
            ">": have > bound,
            "~=": have >= bound and _begins_with(installed, number.rpartition(".")[0] or number),
        }[operator]
        if not fits:
            return False
    return True


def is_below(installed: str, wanted: str) -> bool:
    """Whether a version is lower than a range starts.

    Example:
        >>> is_below("0.1.4", ">=0.2,<0.3"), is_below("0.3", ">=0.2,<0.3")
        (True, False)
    """
    lower = [_release(number) for operator, number, _ in _CLAUSE.findall(wanted) if operator in (">=", ">", "==", "~=")]
    return any(_release(installed) < bound for bound in lower)


def requirements(distribution: str | Distribution) -> list[Requirement]:
    """List the requirements of a distribution; none if it is not installed."""
    try:
        lines = (requires(distribution) if isinstance(distribution, str) else distribution.requires) or []
    except Exception:  # noqa: BLE001  not installed, or its metadata is damaged, which is reported elsewhere
        return []
    found: list[Requirement] = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        name, wanted, marker = match.group(1), match.group(2).strip(), match.group(3) or ""
        extra = _EXTRA.search(marker)
        rest = _EXTRA.sub("", marker).replace("(", "").replace(")", "").strip()
        found.append((name, wanted, extra.group(1) if extra else None, bool(rest and rest != "and")))
    return found


FIRST_PARTY = (
    "rl-core",
    "rl-envs",
    "rl-modules",
    "rl-collectors",
    "rl-replay",
    "rl-objectives",
    "rl-llm",
    "rl-torchrl",
    "rl-trainers",
    "rl-native",
    "rl-prio-cuda",
    "rl-recurrent-triton",
    "rl-testing",
)
"""Distributions that are listed first, and whose components keep their plain names."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def scan(group: str) -> tuple[list[EntryPoint], list[PluginRecord], dict[str, str]]:
    """Scan the entry points of a group: readable ones, a broken record for each other distribution, and doubled names.

    Of distributions with one name the first on the search path counts, as for `importlib.metadata.entry_points`. For
    two of them in one folder, which an installer left, there is a sentence by name.
    """
    entries: list[EntryPoint] = []
    damaged: list[PluginRecord] = []
    doubled: dict[str, str] = {}
    seen: dict[str, Any] = {}
    for distribution in distributions():
        name, folder = _folder_name(distribution), _folder(distribution)
        if name != "?" and (first := seen.get(normalized(name))) is not None:
            if folder is not None and first.parent == folder.parent and first != folder:
                both = f"{first.name} and {folder.name} in {printable(str(folder.parent))}"
                again = f"delete both folders, then reinstall {normalized(name)}"
                doubled[normalized(name)] = f"it is installed twice, as {both}: {again}"
            continue
        seen[normalized(name)] = folder
        try:
            if group in (distribution.read_text("entry_points.txt") or ""):  # faster than parsing every file
                if name.startswith("~"):
                    reason = f"it is what an interrupted pip left behind: delete {printable(str(folder))}"
                    damaged.append(PluginRecord(name, name, state="broken", reason=reason, remedy=""))
                    continue
                entries += distribution.entry_points.select(group=group)
        except Exception as error:  # noqa: BLE001  one damaged distribution must not hide the others
            reason = (
                f"its entry_points.txt cannot be read ({brief(error)}); torch reads it, too: {_remedy(distribution)}"
            )
            damaged.append(PluginRecord(name, name, state="broken", reason=reason, remedy=""))
    return entries, damaged, doubled


def record_of(entry: EntryPoint, disabled: Iterable[str] = ()) -> PluginRecord:
    """Return the record of an entry point that has not been imported; broken if its distribution is damaged."""
    distribution, version, damage = _identity(entry.dist)
    record = PluginRecord(printable(entry.name), distribution, version, printable(entry.value))
    if damage:
        record.state, record.reason, record.remedy = "broken", damage, ""
    elif misfit := _misfit(entry.dist, distribution):
        record.state, (record.reason, record.remedy) = "incompatible", misfit
    return disable(record, disabled)


def _misfit(distribution: Any, name: str) -> tuple[str, str] | None:
    """Why a distribution does not go with this rl-core, and the command that upgrades one of them; None if it does."""
    for needed, wanted, extra, conditional in [] if distribution is None else requirements(distribution):
        ours = normalized(needed) == "rl-core" and extra is None and not conditional
        if ours and not satisfies(__version__, wanted):
            upgrade = "rl-core" if is_below(__version__, wanted) else name
            reason = f"it needs rl-core{wanted}, this is rl-core {__version__}: upgrade {upgrade}"
            return reason, f"pip install --upgrade {upgrade}"
    return None


def disable(record: PluginRecord, disabled: Iterable[str]) -> PluginRecord:
    """Return the record, marked if it is one that the user left out."""
    names = {"*", normalized(record.name), normalized(record.distribution)}
    if hit := names & {normalized(name) for name in disabled}:
        record.state = "disabled"
        record.reason = f"RL_PLUGINS_DISABLE names {', '.join(sorted(hit))}"
    return record


def in_order(entries: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Entry points in an order that does not depend on the file system: first our own, then by name."""

    def rank(entry: EntryPoint) -> tuple[int, str, str]:
        distribution = normalized(_identity(entry.dist)[0])
        ours = FIRST_PARTY.index(distribution) if distribution in FIRST_PARTY else len(FIRST_PARTY)
        return ours, distribution, entry.name

    return sorted(entries, key=rank)


def _identity(distribution: Any) -> tuple[str, str, str]:
    """Name and version of a distribution, and the problem with its METADATA."""
    if distribution is None:
        return "?", "", ""
    try:
        name, version = distribution.name, distribution.version
    except Exception as error:  # noqa: BLE001  whatever it is, it is reported
        folder = _folder_name(distribution)
        return folder, "", f"its METADATA cannot be read ({brief(error)}): {_remedy(distribution)}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        folder = _folder_name(distribution)
        return folder, "", f"its METADATA has no usable Name ({_quoted(name)}): {_remedy(distribution)}"
    if not is_version(version):
        return name, "", f"its METADATA has no usable Version ({_quoted(version)}): {_remedy(distribution)}"
    return name, version, ""


def _folder_name(distribution: Any) -> str:
    """Return the name in the folder ``NAME-VERSION.dist-info``, for a distribution that may not be able to say it."""
    stem, _, suffix = getattr(_folder(distribution), "name", "").rpartition(".")
    return printable(stem.partition("-")[0]) if suffix in ("dist-info", "egg-info") else "?"


def _folder(distribution: Any) -> Any:
    return getattr(distribution, "_path", None)


def _remedy(distribution: Any) -> str:
    folder = _folder(distribution)
    return f"reinstall it, or delete {printable(str(folder))}" if folder else "reinstall it"


def _quoted(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


@dataclass(frozen=True)
class Intruder:
    """A file that turns ``rl`` into something else than our namespace.

    Args:
        path: File.
        owner: Distribution that installed it, or None if none did.
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
    """Return the distribution in `folder` that brought `file`."""
    wanted = file.relative_to(folder).as_posix()
    for distribution in distributions(path=[str(folder)]):
        with suppress(Exception):  # a damaged RECORD cannot list `file`
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
        paths: Folders; if None, the current folder and `sys.path`.

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
            except OSError:  # an unreadable or removed folder hides no module
                continue
            if hides:
                found[file.resolve()] = Intruder(file.resolve(), _owner(folder, file))
    return list(found.values())


def hint(missing: str) -> str:
    """Return what to add to a message about the absent module `missing`: the intruder that hides it, or nothing."""
    if missing.partition(".")[0] != "rl":
        return ""
    return "".join(f". {found.problem}: {found.remedy}" for found in intruders())
