"""Compare objects with the protocols of `rl.core.interfaces`: targets of components, and answers of hooks.

A class is compared by its methods, since the attributes of its objects exist only after construction. An object is
compared by everything. Signatures are left to the conformance kit.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isfunction
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl.core.component import Component

__all__ = ["check_answer", "check_kind"]

_KINDS = {
    "collector": "Collector",
    "env": "Env",
    "estimator": "Estimator",
    "logger": "Logger",
    "loss": "Loss",
    "module": "Transform",
    "recurrent_backend": "RecurrentBackend",
    "sampler": "Sampler",
    "storage": "Storage",
    "transform": "Transform",
    "tree_backend": "PriorityTree",
    "writer": "Writer",
}
"""Kind of component to the protocol of what its target makes; a module only needs `__call__`."""

_RECIPE = ("name", "config", "train", "policy", "load_train", "load_policy")
"""What a target of kind recipe has; its class is in rl-trainers."""

_HOOKS = {
    "rl_linear_recurrence": "LinearRecurrence",
    "rl_priority_tree": "PriorityTree",
    "rl_recurrent_backend": "RecurrentBackend",
    "rl_row_gather": "RowGather",
}
"""Hook to the protocol of its answer."""


def check_kind(component: Component, target: object) -> str:
    """What keeps `target` from being a target of the component's kind; an empty string if nothing does."""
    if component.kind == "recipe":
        absent = [name for name in _RECIPE if not hasattr(target, name)]
        return f"{_shown(target)} is no rl.trainers.Recipe: it lacks {', '.join(absent)}" if absent else ""
    if not callable(target):
        return f"{_shown(target)} is neither a class nor a function"
    if component.kind not in _KINDS or not isinstance(target, type):
        return ""  # what a function returns is known when it is called
    if abstract := sorted(getattr(target, "__abstractmethods__", ())):
        return f"{_shown(target)} is abstract: it lacks {', '.join(abstract)}"
    name = _KINDS[component.kind]
    absent = [method for method in _methods(_protocol(name)) if not _defines(target, method)]
    if not absent or _forwards(target):
        return ""
    return (
        f"{_shown(target)} lacks the method{'s' if absent[1:] else ''} {', '.join(absent)} of rl.core.interfaces.{name}"
    )


def check_answer(hook: str, value: object) -> str:
    """What keeps `value` from being an answer of `hook`; an empty string if nothing does."""
    name = _HOOKS.get(hook)
    if name is None:
        return ""
    protocol = _protocol(name)
    members = [*_methods(protocol), *_attributes(protocol)]
    absent = [member for member in members if not _has(value, member)]
    return f"{_shown(value)}, which lacks {', '.join(absent)} of rl.core.interfaces.{name}" if absent else ""


def _protocol(name: str) -> type:
    from rl.core import interfaces

    return getattr(interfaces, name)


def _methods(protocol: type) -> Iterator[str]:
    """Those that the protocol defines, not those that `typing.Protocol` adds."""
    return (
        name for name, value in vars(protocol).items() if isfunction(value) and value.__module__ == protocol.__module__
    )


def _attributes(protocol: type) -> list[str]:
    properties = [name for name, value in vars(protocol).items() if isinstance(value, property)]
    return [*properties, *vars(protocol).get("__annotations__", {})]


def _defines(kind: type, method: str) -> bool:
    """Whether the class or a base defines the method; methods of its metaclass do not count."""
    return next((vars(base)[method] for base in kind.__mro__ if method in vars(base)), None) is not None


def _has(value: object, member: str) -> bool:
    return callable(value) if member == "__call__" else hasattr(value, member)


def _forwards(kind: type) -> bool:
    """Whether its objects may have more methods than the class: it defines `__getattr__`.

    That of `torch.nn.Module` finds parameters, buffers and submodules, none of which is a method.
    """
    found: Any = getattr(kind, "__getattr__", None)
    return isinstance(found, FunctionType) and found.__module__ != "torch.nn.modules.module"


def _shown(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    text = repr(value)
    return text if len(text) <= 60 else f"an object of {type(value).__module__}.{type(value).__qualname__}"
