"""Find the plugins of this environment in the metadata of its distributions, without importing any.

Metadata may be damaged: what cannot be read belongs to one distribution, and the others are found all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import EntryPoint, distributions
from typing import Any

from rl.core.__about__ import __version__
from rl.core._plugins.record import PluginRecord, brief, printable
from rl.core._plugins.versions import is_below, is_version, requirements, satisfies
from rl.core.settings import normalized

__all__ = ["FIRST_PARTY", "disable", "in_order", "record_of", "scan"]

FIRST_PARTY = (
    "rl-core",
    "rl-envs",
    "rl-modules",
    "rl-collectors",
    "rl-replay",
    "rl-objectives",
    "rl-trainers",
    "rl-native",
    "rl-prio-cuda",
    "rl-recurrent-triton",
)
"""Distributions that are listed first, and whose components keep their plain names."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def scan(group: str) -> tuple[list[EntryPoint], list[PluginRecord], dict[str, str]]:
    """The entry points of a group, a broken record for each distribution without readable ones, and doubled names.

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
            if group in (distribution.read_text("entry_points.txt") or ""):  # parsing each would take longer
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
    """The record of an entry point that has not been imported; broken if its distribution is damaged."""
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
    """The record, marked if it is one that the user left out."""
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
    """The name in the folder ``NAME-VERSION.dist-info``, for a distribution that may not be able to say it."""
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
