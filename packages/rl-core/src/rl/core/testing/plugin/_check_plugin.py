"""Conformance of a whole plugin."""

from __future__ import annotations

from rl.core.errors import CheckError
from rl.core.testing._report import Report
from rl.core.testing.plugin._examine import examine_plugin

__all__ = ["check_plugin"]


def check_plugin(module: str, distribution: str = "this program") -> Report:
    """Check the declaration of a plugin, and every component that it lists.

    The declaration is imported in a process of its own: it takes 50 ms at most and imports neither torch nor
    tensordict. Each component passes `check_component`; what can be made without arguments passes the check of its
    kind. ``rl doctor --plugin NAME`` does the same for an installed plugin, and prints a table.

    Args:
        module: what the entry point names, ``"acme_rl.plugin"`` or ``"acme_rl.plugin:attribute"``.
        distribution: that declares it, for messages.

    Returns:
        What was not exercised: a sentence for each component whose check needs arguments or data, and those of the
        checks that ran.

    Raises:
        CheckError: an `AssertionError` with a line for each fault that was found.

    Example:
        >>> check_plugin("rl.core.no_such_module")
        Traceback (most recent call last):
        ...
        rl.core.errors.CheckError: ModuleNotFoundError: No module named 'rl.core.no_such_module' (declaration rl...)
    """
    rows = list(examine_plugin(module, distribution))
    faults = [row for row in rows if row.state == "problem"]
    if faults:
        raise CheckError("\n".join(f"{row.text} ({row.name})" for row in faults))
    report = Report(module)
    for row in rows:
        if row.state == "not exercised":
            report.skip(f"{row.text} ({row.name})")
    return report.warn()
