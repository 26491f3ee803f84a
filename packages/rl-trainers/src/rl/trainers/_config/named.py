"""Components and callables by name: ``NAME``, ``module:attribute``, and either with arguments."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import yaml

from rl.core.component import CONTRACTS
from rl.core.errors import MissingExtraError, RLError, UnknownComponentError
from rl.core.registry import components, default, load

__all__ = ["find", "find_call", "import_attribute", "import_named", "is_argument", "is_component"]


def find_call(kind: str, text: str) -> tuple[Any, dict[str, Any]]:
    """The object and the keyword arguments that ``NAME[:ARGS]`` stands for.

    Args:
        kind: of component, for example ``"transform"``.
        text: a component's name or ``module:attribute``; after another colon, a YAML mapping in braces.

    Raises:
        UnknownComponentError: if there is no such component, module or attribute.
        RLError: if the arguments are no mapping.

    Example:
        >>> find_call("transform", "step-counter:{max_steps: 10}")[1]
        {'max_steps': 10}
    """
    name, brace, rest = text.partition(":{")
    arguments: Any = {}
    if brace:
        try:
            arguments = yaml.safe_load("{" + rest)
        except (yaml.YAMLError, RecursionError) as error:
            raise RLError(_bad_arguments(kind, text)) from error
        if not isinstance(arguments, dict) or not all(map(is_argument, arguments.items())):
            raise RLError(_bad_arguments(kind, text))
    try:
        return find(kind, name), arguments
    except UnknownComponentError as error:
        before = name.partition(":")[0]
        if before != name and kind in CONTRACTS and before in {component.name for component in components(kind)}:
            raise RLError(_bad_arguments(kind, text)) from error
        raise


def is_argument(item: tuple[Any, Any]) -> bool:
    """Whether a name and its value can be an argument; ``{size:2}`` is the name ``size:2`` without a value in YAML.

    Example:
        >>> is_argument(("size", 2)), is_argument(("size:2", None))
        (True, False)
    """
    name, value = item
    return isinstance(name, str) and not (value is None and ":" in name)


def _bad_arguments(kind: str, text: str) -> str:
    return (
        f"the arguments of the {kind} {text!r} are no mapping; write NAME:{{key: value}}, with a space after the colon"
        " of each key"
    )


def find(kind: str, name: str) -> Any:
    """The component `name`, or what ``module:attribute`` names.

    Raises:
        UnknownComponentError: if there is no such component, module or attribute.
    """
    return load(kind, name) if ":" not in name or is_component(kind, name) else import_attribute(name, kind)


def is_component(kind: str, name: str) -> bool:
    """Whether `name`, which may have its distribution in front, is an installed component.

    Example:
        >>> is_component("recipe", "ppo"), is_component("recipe", "rl-trainers:ppo"), is_component("env", "my_env:Maze")
        (True, True, False)
    """
    distribution, colon, plain = name.rpartition(":")
    if kind not in CONTRACTS or plain not in {component.name for component in components(kind)}:
        return False
    try:
        return not colon or bool(default().owner(kind, f"{distribution}:{plain}"))
    except UnknownComponentError:
        return False


def import_attribute(target: str, what: str) -> Any:
    """What ``module:attribute`` names.

    Raises:
        UnknownComponentError: if there is no such module or attribute.
        MissingExtraError: if the module needs a library that is not installed.
        RLError: if the module raises.
    """
    module_name, _, attribute = target.partition(":")
    module = import_named(module_name, f"{what} {target!r}")
    try:
        found = module
        *path, last = attribute.split(".")
        for name in path:
            found = getattr(found, name)
            if isinstance(found, ModuleType):  # else my_env:os.system would be code of my_env
                raise UnknownComponentError(
                    f"{what} {target!r} leads through the module {found.__name__!r}; write {found.__name__}:{last}"
                )
        return getattr(found, last)
    except AttributeError as error:
        raise UnknownComponentError(
            f"{what} {target!r}: the module {module_name!r} has no attribute {attribute!r}; write module:attribute"
        ) from error


def import_named(name: str, what: str) -> Any:
    """The module `name`; the current folder is searched too, as `python` does.

    Args:
        name: of the module.
        what: needs it, for messages.

    Raises:
        UnknownComponentError: if there is no such module.
        MissingExtraError: if it needs a library that is not installed.
        RLError: if it raises.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnknownComponentError(
            f"{what}: {name!r} is no name of a module; write module:attribute, as in my_module:MyClass, without .py"
        )
    try:
        return import_module(name)
    except RLError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise UnknownComponentError(
                f"{what}: there is no module {missing!r}; install it, or run the command in the folder that holds it"
            ) from error
        raise MissingExtraError(
            f"{what}: the module {name!r} needs {missing!r}, which is not installed; install it"
        ) from error
    except (Exception, SystemExit) as error:  # a module may raise what it likes
        raise RLError(
            f"{what}: importing the module {name!r} raised {type(error).__name__}: {error}; correct the module"
        ) from error
