"""Conformance of a declaration."""

from __future__ import annotations

from rl.core.component import CONTRACTS, Component
from rl.core.errors import CheckError, MissingExtraError, RLError
from rl.core.registry import Registry
from rl.core.targets import check_target
from rl.core.testing._report import Report

__all__ = ["check_component", "declaration_faults"]


def check_component(component: Component, distribution: str = "this program") -> Report:
    """Check the declaration of a component: kind, contract version, summary, and a target that fits the kind.

    Args:
        component: as a plugin declares it.
        distribution: that declares it, for messages.

    Returns:
        What was not exercised: the target, if a library that its extra brings is absent.

    Raises:
        CheckError: an `AssertionError` with a line for each fault, the most severe first.

    Example:
        >>> check_component(Component("tree_backend", "toy", "rl.core.testing:ToyPriorityTree", summary="An array."))
        Report(owner="tree_backend 'toy'", not_exercised=[])
    """
    report = Report(f"{getattr(component, 'kind', '')} {getattr(component, 'name', component)!r}".strip())
    if faults := declaration_faults(component, distribution, report):
        raise CheckError("\n".join(faults))
    return report.warn()


def declaration_faults(component: object, distribution: str, report: Report) -> list[str]:
    """What is wrong with a declaration, the most severe first; the report takes what was not exercised."""
    if not isinstance(component, Component):
        return [f"expected an rl.core.Component, got {component!r} of type {type(component).__name__}"]
    owner, faults = report.owner, list[str]()
    if component.kind not in CONTRACTS:
        faults.append(f"no kind of component is called {component.kind!r} (kinds: {', '.join(CONTRACTS)}) ({owner})")
    else:
        try:
            Registry().add(component, distribution)
            check_target(component, distribution)
        except MissingExtraError as error:
            report.skip(f"the target: {error}")
        except RLError as error:
            faults.append(f"{error} ({owner})")
    if not component.summary.strip():
        faults.append(f"has no summary: listings show a line for each component ({owner})")
    if "\n" in component.summary:
        faults.append(f"the summary has several lines, listings show one ({owner})")
    return faults
