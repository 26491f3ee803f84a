"""Components and code by name, and which of them a file may name. Imports no torch."""

from __future__ import annotations

import re
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from rl.core.component import CONTRACTS
from rl.core.errors import ArgumentError, MissingExtraError, RLError, UnknownComponentError
from rl.core.registry import components, default, load


def find_call(kind: str, text: str) -> tuple[Any, dict[str, Any]]:
    """Return the object and the keyword arguments that ``NAME[:ARGS]`` stands for.

    Args:
        kind: Kind of component, for example ``"transform"``.
        text: A component's name or ``module:attribute``; after another colon, a YAML mapping in braces.

    Raises:
        UnknownComponentError: If there is no such component, module or attribute.
        ArgumentError: If the arguments are no mapping.

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
            raise ArgumentError(_bad_arguments(kind, text)) from error
        if not isinstance(arguments, dict) or not all(map(is_argument, arguments.items())):
            raise ArgumentError(_bad_arguments(kind, text))
    try:
        return find(kind, name), arguments
    except UnknownComponentError as error:
        before = name.partition(":")[0]
        if before != name and kind in CONTRACTS and before in {component.name for component in components(kind)}:
            raise ArgumentError(_bad_arguments(kind, text)) from error
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
        " of each key, or on a command line NAME:key=value"
    )


def find(kind: str, name: str) -> Any:
    """Return the component `name`, or what ``module:attribute`` names.

    Raises:
        UnknownComponentError: If there is no such component, module or attribute.
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
    """Import what ``module:attribute`` names.

    Raises:
        UnknownComponentError: If there is no such module or attribute.
        MissingExtraError: If the module needs a library that is not installed.
        RLError: If the module raises.
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
    """Import the module `name`; the current folder is searched too, as `python` does.

    Args:
        name: Name of the module.
        what: Component that needs it, for messages.

    Raises:
        UnknownComponentError: If there is no such module.
        MissingExtraError: If it needs a library that is not installed.
        RLError: If it raises.
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
            f"{what}: importing the module {name!r} raised {type(error).__name__}: {error}{_line_of(error, name)};"
            " correct the module"
        ) from error


def _line_of(error: BaseException, module: str) -> str:
    """Return the line of a module that raised, in brackets; empty if it did not run, as with a syntax error."""
    steps = reversed(traceback.extract_tb(error.__traceback__))
    lines = [step for step in steps if Path(step.filename).stem == module.rpartition(".")[2]]
    return f" ({lines[0].filename}, line {lines[0].lineno})" if lines else ""


class GivenEnv(str):
    """The name of an environment, with the function that creates it in this process."""

    __slots__ = ("make",)

    def __new__(cls, name: str, make: Callable[..., Any]) -> GivenEnv:
        """Take a name and a function."""
        made = super().__new__(cls, name)
        made.make = make
        return made

    def __reduce__(self) -> Any:
        """For other processes."""
        return GivenEnv, (str(self), self.make)

    def __deepcopy__(self, memo: dict[int, Any]) -> GivenEnv:
        return self


def named_env(env: Any, env_kwargs: Any = None) -> tuple[Any, Any]:
    """Return name and arguments of an environment class or function, or of what ``gymnasium.make`` returned.

    A run needs several copies, and later commands have only its settings. So an environment is rebuilt from its
    ``spec``, and the arguments of it or of a ``functools.partial`` join those of the user.

    Args:
        env: Class, function, environment or name.
        env_kwargs: Arguments from the user, which go before those of `env`.

    Raises:
        ArgumentError: If it is an environment that cannot be rebuilt, or not from settings.

    Example:
        >>> named_env(dict)
        ('builtins:dict', {})
        >>> named_env(partial(dict, size=5), {"color": "red"})
        ('builtins:dict', {'size': 5, 'color': 'red'})
        >>> named_env("CartPole-v1")
        ('CartPole-v1', {})
    """
    given = {} if env_kwargs is None else env_kwargs
    if isinstance(env, str):
        return env, given
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        made, found = _of_callable(env)
    elif hasattr(env, "step"):
        made, found = _of_gymnasium(env)
    else:
        return env, given
    return made, {**found, **given} if isinstance(given, Mapping) else given


def _of_callable(make: Callable[..., Any]) -> tuple[GivenEnv, dict[str, Any]]:
    inner, found = make, dict[str, Any]()
    if isinstance(make, partial):
        inner, found = make.func, make.keywords
        if make.args:
            raise _not_named("is a partial with arguments without names")
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return GivenEnv(f"{getattr(inner, '__module__', type(inner).__module__)}:{name}", inner), _plain(found)


def _of_gymnasium(env: Any) -> tuple[GivenEnv, dict[str, Any]]:
    spec = getattr(env, "spec", None)
    if spec is None or getattr(spec, "entry_point", None) is None:
        raise ArgumentError(
            f"env is a {type(env).__name__}, which cannot be rebuilt, and a run needs several; pass the class or a"
            " function that creates it, as in env=MyEnv or env=lambda: MyEnv(size=5)"
        )
    import gymnasium

    own = gymnasium.registry.get(spec.id)
    if own is None or own.entry_point != spec.entry_point:
        raise _not_named(f"has the id {spec.id!r}, which Gymnasium does not know or knows for another environment")
    if spec.additional_wrappers:
        names = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        raise _not_named(f"has the wrappers {names}")
    found = {
        name: value
        for name, value in spec.kwargs.items()
        if name not in own.kwargs or repr(own.kwargs[name]) != repr(value)  # comparing arrays returns an array
    }
    if spec.max_episode_steps != own.max_episode_steps:
        found["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    return GivenEnv(spec.id, partial(gymnasium.make, own)), _plain(found)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they are after a file, with lists in place of tuples.

    Raises:
        ArgumentError: If no settings can hold one.
    """
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            plain[name] = yaml.safe_load(yaml.safe_dump(value))
        except yaml.YAMLError:
            raise _not_named(f"has the argument {name} of type {type(value).__name__}") from None
    return plain


def _not_named(what: str) -> ArgumentError:
    return ArgumentError(
        f"env {what}, which no settings can hold, so that later commands would create another environment; pass a"
        " function of a module that creates all of it, as in env=my_env.make_maze"
    )


_CODE = frozenset({"recipe", "env", "wrapper", "transform", "sampler", "loggers"})
"""Settings whose values name components or ``module:attribute``; a colon in them is nothing else."""
SETTING_KINDS = {"recipe": "recipe", "env": "env", "transform": "transform", "sampler": "sampler", "loggers": "logger"}
"""Kinds of the components that these settings name."""
_NO_CODE = frozenset({"dataset", "device", "init"})
"""Settings that may look like it: ``minari:pendulum``, ``runs/a:b``."""
_LIKE_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\S*")
_PROGRAMS = "unity-mlagents"
"""The component whose id is a program that it starts."""


def check_trusted(settings: Mapping[str, Any], trust: str | Sequence[str], file: str | Path) -> None:
    """Raise if settings from a file name code that is neither an installed component nor trusted.

    Run folders, config files and benchmark files are data that people share. So nothing in them is imported or called,
    also if the run was created here: every file is treated alike, and only the command line or the caller adds modules.

    Args:
        settings: Settings of `file`, without those that the command line replaces.
        trust: Modules whose code may be named, with all that is in them: ``my_env`` includes ``my_env.mazes``.
        file: Path for the message.

    Raises:
        RLError: If so.

    Example:
        >>> check_trusted({"env": "CartPole-v1", "loggers": ["csv"]}, (), "config.yaml")
        >>> check_trusted({"env": "my_env:Maze"}, ["my_env"], "config.yaml")
        >>> check_trusted({"env": "subprocess:getoutput"}, (), "config.yaml")
        Traceback (most recent call last):
        ...
        rl.core.errors.RLError: config.yaml names code of the module subprocess (env: 'subprocess:getoutput'), and ...
    """
    trusted = (trust,) if isinstance(trust, str) else tuple(trust)
    found = {
        (name, setting, text)
        for setting, value in settings.items()
        for name, text in _texts_of(str(setting).replace("-", "_"), value)
        if not any(name == one or name.startswith(f"{one}.") for one in trusted if one)
    }
    if found:
        modules = sorted({_printable(name) for name, _, _ in found})
        listed = ", ".join(f"{setting}: {text!r}" for _, setting, text in sorted(found))
        options = " ".join(f"--trust {shlex.quote(name)}" for name in modules)  # for a shell, from a file of others
        raise RLError(
            f"{file} names code of the module{'s' * (len(modules) > 1)} {', '.join(modules)} ({listed}), and no file"
            f" makes others' code run by itself. If you know this code, add {options}; in Python"
            f" trust=({', '.join(map(repr, modules))},)"
        )


def trust_options(settings: Mapping[str, Any]) -> str:
    """Return the options, after a space, with which a file of these settings can be read; empty if none is needed.

    Example:
        >>> trust_options({"env": "my_env:Maze"})
        ' --trust my_env'
    """
    return "".join(f" --trust {shlex.quote(_printable(name))}" for name in modules_of(settings))


def modules_of(settings: Mapping[str, Any]) -> list[str]:
    """List the modules that settings name, whose code reading them runs.

    Example:
        >>> modules_of({"env": "my_env:Maze"})
        ['my_env']
    """
    return sorted({name for setting, value in settings.items() for name, _ in _texts_of(setting, value)})


def unimportable(settings: Mapping[str, Any]) -> list[str]:
    """List what settings name that no other process can import: in a script, a lambda, or inside of a function.

    Example:
        >>> unimportable({"env": "__main__:Maze", "wrapper": ["my_env:<lambda>", "my_env:Wrapper"]})
        ['__main__:Maze', 'my_env:<lambda>']
    """
    found = [
        (module, text.partition(":{")[0]) for key, value in settings.items() for module, text in _texts_of(key, value)
    ]
    return sorted({name for module, name in found if module == "__main__" or "<" in name})


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _texts_of(setting: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield what has to be trusted for a value, with the text that names it."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts_of(setting, key)  # a mapping in the place of a list is read as its keys
            yield from _texts_of(f"{setting}.{key}", one)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _texts_of(setting, one)
    elif isinstance(value, str) and setting not in _NO_CODE:
        yield from _named_in(setting, value)


def _is_offered(setting: str, name: str) -> bool:
    """Whether ``distribution:name``, in an environment also ``distribution:name/ID``, is an installed component."""
    kind = SETTING_KINDS.get(setting)
    if kind is None or name.count(":") != 1:
        return False
    prefix = name.partition("/")[0]
    return is_component(kind, name) or (kind == "env" and ":" in prefix and is_component(kind, prefix))


def _named_in(setting: str, text: str) -> Iterator[tuple[str, str]]:
    name, brace, arguments = text.partition(":{")
    before, colon, rest = name.partition(":")
    if colon and _is_offered(setting, name):  # acme-rl:acme/line
        name, colon = rest, ""
    if setting == "ray":
        if text not in ("", "auto", "local"):  # what a cluster returns is unpickled, which runs code
            yield text, text
    elif setting == "env" and name.partition("/")[0] == _PROGRAMS:
        yield _PROGRAMS, text
    elif colon and (setting in _CODE or _LIKE_CODE.fullmatch(name)):
        yield before.rpartition("/")[2], text  # gym/my_env:Maze-v0 imports my_env
    if brace and setting in _CODE:
        try:
            inner = yaml.safe_load("{" + arguments)
        except (yaml.YAMLError, RecursionError):
            return  # rejected where it is used
        yield from _texts_of(f"{setting}.arguments", inner)
