"""Versions of installed distributions, read without importing them."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, requires, version

__all__ = ["Requirement", "installed_version", "is_below", "is_version", "requirements", "satisfies"]

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
    """The version of a distribution, or None if it is not installed; ``unreadable`` if its metadata is damaged.

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
    """What a distribution asks for; nothing if it is not installed."""
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
