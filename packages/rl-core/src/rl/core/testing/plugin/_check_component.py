"""Conformance of a declaration."""

from __future__ import annotations

from rl.core.component import CONTRACTS, Component
from rl.core.errors import CheckError, MissingExtraError, RLError
from rl.core.registry import Registry
from rl.core.targets import check_target
from rl.core.testing._report import Report, require

__all__ = ["check_component"]


def check_component(component: Component, distribution: str = "this program") -> Report:
    """Check the declaration of a component: kind, contract version, summary, and a target that fits the kind.

    Args:
        component: as a plugin declares it.
        distribution: that declares it, for messages.

    Returns:
        What was not exercised: the target, if a library that its extra brings is absent.

    Raises:
        CheckError: an `AssertionError` with the reason first.

    Example:
        >>> check_component(Component("tree_backend", "toy", "rl.core.testing:ToyPriorityTree", summary="An array."))
        Report(owner="tree_backend 'toy'", not_exercised=[])
    """
    who = f"{component.kind} {component.name!r}"
    report = Report(who)
    kinds = ", ".join(CONTRACTS)
    require(component.kind in CONTRACTS, f"no kind of component is called {component.kind!r} (kinds: {kinds})", who)
    require(bool(component.summary.strip()), "has no summary: listings show a line for each component", who)
    require("\n" not in component.summary, "the summary has several lines, listings show one", who)
    try:
        Registry().add(component, distribution)
        check_target(component, distribution)
    except MissingExtraError as error:
        report.skip(f"the target: {error}")
    except RLError as error:
        raise CheckError(f"{error} ({who})") from error
    return report.warn()
