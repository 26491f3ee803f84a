"""Checks of arguments, and arguments of other libraries that are replaced or unused."""

from __future__ import annotations

import inspect
import math
import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, wraps
from types import NoneType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, ShapeError, UnknownArgumentError
from rl.core.lazy import foreign_answers

__all__ = [
    "Needless",
    "as_integer",
    "as_number",
    "check_arguments",
    "constructor_setting",
    "foreign_arguments",
    "module_arguments",
    "one_of",
    "same_shape",
]


T = TypeVar("T")


def as_integer(value: Any, owner: str, name: str, least: int | None = None) -> int:
    """Convert an argument to a Python integer.

    Args:
        value: Integer of Python or NumPy, or a tensor of an integer dtype without dimensions; no bool, no float.
        owner: Component that the message names.
        name: Argument that the message names.
        least: Smallest value that is accepted; any if None.

    Raises:
        ArgumentError: If the value is no integer, or below `least`.

    Example:
        >>> import torch
        >>> as_integer(torch.tensor(3), "MLP", "depth", least=0)
        3
        >>> as_integer(2.0, "MLP", "depth")
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: MLP: depth must be an integer, got 2.0
    """
    if type(value) is not int:
        boolean = isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool
        if boolean or getattr(value, "shape", ()) or not hasattr(value, "__index__"):
            raise ArgumentError(f"{owner}: {name} must be an integer, got {value!r:.100}")
        try:
            value = operator.index(value)
        except TypeError as error:
            raise ArgumentError(f"{owner}: {name} must be an integer, got {value!r:.100}") from error
    if least is not None and value < least:
        raise ArgumentError(f"{owner}: {name} must be at least {least}, got {value}")
    return value


def as_number(
    value: Any,
    owner: str,
    name: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> float:
    """Convert an argument to a finite Python float.

    Args:
        value: Number of Python or NumPy, or a real tensor without dimensions; no bool, no text.
        owner: Component that the message names.
        name: Argument that the message names.
        least: Smallest value that is accepted.
        most: Largest value that is accepted.
        above: Value that must be exceeded.
        below: Value that must not be reached.

    Raises:
        ArgumentError: If the value is no finite number, or outside the limits.

    Example:
        >>> as_number(1, "GAE", "lmbda", least=0, most=1)
        1.0
        >>> as_number(1.5, "GAE", "lmbda", least=0, most=1)
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: GAE: lmbda must be at least 0 and at most 1, got 1.5
    """
    boolean = isinstance(value, bool | str) or getattr(value, "dtype", None) is torch.bool
    try:
        number = math.nan if boolean or getattr(value, "shape", ()) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number) and least <= number <= most and above < number < below:
        return number
    limits = (("at least", least), ("at most", most), ("above", above), ("below", below))
    wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit))
    raise ArgumentError(f"{owner}: {name} must be {wanted or 'a finite number'}, got {value!r:.100}")


def one_of(value: T, owner: str, name: str, choices: Iterable[T]) -> T:
    """Return an argument that is one of several values.

    Args:
        value: Value of the argument.
        owner: Component that the message names.
        name: Argument that the message names.
        choices: Values that are accepted.

    Raises:
        ArgumentError: If it is none of them.

    Example:
        >>> one_of("sum", "SACLoss", "reduction", ("none", "mean", "sum"))
        'sum'
        >>> one_of("max", "SACLoss", "reduction", ("none", "mean", "sum"))
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: SACLoss: reduction must be 'none', 'mean' or 'sum', got 'max'
    """
    known = list(choices)
    if any(type(value) is type(choice) and value == choice for choice in known):
        return value
    listed = [repr(choice) for choice in known]
    wanted = f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else "".join(listed)
    raise ArgumentError(f"{owner}: {name} must be {wanted}, got {value!r:.100}")


def same_shape(**tensors: Tensor) -> None:
    """Raise unless all tensors have one shape.

    Args:
        tensors: Tensors by the name that the message uses.

    Raises:
        ShapeError: If two shapes differ.

    Example:
        >>> import torch
        >>> same_shape(value=torch.zeros(3, 1), target=torch.zeros(3, 1))
        >>> same_shape(value=torch.zeros(3), target=torch.zeros(3, 1))
        Traceback (most recent call last):
        ...
        rl.core.errors.ShapeError: expected one shape, got value (3,), target (3, 1): ...
    """
    shapes = [t.shape for t in tensors.values()]
    if any(shape != shapes[0] for shape in shapes[1:]):
        listed = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        raise ShapeError(
            f"expected one shape, got {listed}: they would broadcast; per-step scalars keep a"
            " trailing dimension of 1, log-probabilities do not"
        )


def constructor_setting(stored: str, remedy: str = "") -> Any:
    """Create a property for a setting that is read once: an assignment, which would change nothing, raises.

    Args:
        stored: Name of the attribute that the constructor sets.
        remedy: Sentence about what to do in place of the assignment; to create a new object if empty.

    Raises:
        AttributeError: Where the setting is assigned.

    Example:
        >>> class Repeat:
        ...     times = constructor_setting("_times")
        ...     def __init__(self, times):
        ...         self._times, self.text = times, "ab" * times
        >>> Repeat(2).times
        2
        >>> Repeat(2).times = 3
        Traceback (most recent call last):
        ...
        AttributeError: Repeat.times is set by the constructor, and assigning it would change nothing. Make a new Repeat
    """
    return _Fixed(stored, remedy)


class _Fixed(property):
    def __init__(self, stored: str, remedy: str) -> None:
        super().__init__(lambda self: getattr(self, stored))
        self._remedy = remedy

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, instance: Any, value: Any) -> None:
        kind = type(instance).__name__
        raise AttributeError(
            f"{kind}.{self._name} is set by the constructor, and assigning it would change nothing."
            f" {self._remedy or f'Create a new {kind}'}"
        )


F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

Needless = tuple[str, *tuple[object, ...]]
"""Message for an argument of another library, followed by the values that are accepted and ignored; `...` is any."""


def foreign_arguments(
    *, needless: Mapping[str, Needless] | None = None, replaced: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Decorate a class or function to answer keyword arguments that it does not have before it runs.

    The signature stays as it is, for `inspect.signature` as for type checkers. Arguments that a constructor passes on
    with ``**kwargs`` are answered by the class that they reach. Arguments of TorchRL are answered by rl-torchrl where
    it is installed.

    Args:
        needless: Sentence by argument, followed by the values that are ignored, such as the default of
            another library; any other value is rejected with the sentence.
        replaced: Replacement by argument; the argument is rejected with any value.

    Returns:
        The decorator; of a class it wraps ``__init__``, own or inherited.

    Raises:
        UnknownArgumentError: Where the class or function is called with an argument that is rejected, or that neither
            the signature nor a table knows.

    Example:
        >>> @foreign_arguments(needless={"vectorized": ("it always is", True)}, replaced={"lr": "use rate"})
        ... def train(rate=0.1): return rate
        >>> train(vectorized=True)
        0.1
        >>> train(lr=1)
        Traceback (most recent call last):
        ...
        rl.core.errors.UnknownArgumentError: train got an unexpected keyword argument 'lr': use rate
    """
    table: dict[str, Needless] = {**(needless or {}), **{name: (why,) for name, why in (replaced or {}).items()}}

    def decorate(target: F) -> F:
        made: Any = target
        name = f"{'.'.join(made.__module__.split('.')[:2])}.{made.__qualname__}"
        if not isinstance(made, type):
            return cast("F", _answering(made, _Answers.of(made, name, table), made.__name__))
        start = _start if made.__init__ is object.__init__ else made.__init__
        made.__init__ = _answering(start, _Answers.of(start, name, table), None)
        return target

    return decorate


def module_arguments(needless: dict[str, Needless] | None = None) -> Callable[[C], C]:
    """Decorate the class of a module: `foreign_arguments`, and the argument `device`, to which it is moved.

    Args:
        needless: Answers to arguments that it does not have, as of `foreign_arguments`.

    Example:
        >>> from torch import nn
        >>> @module_arguments({"safe": ("needless: it never fails", ...)})
        ... class Double(nn.Module):
        ...     def __init__(self) -> None:
        ...         super().__init__()
        ...         self.linear = nn.Linear(1, 1)
        >>> Double(device="meta", safe=False).linear.weight.device
        device(type='meta')
    """

    def decorate(target: C) -> C:
        return foreign_arguments(needless=needless)(_movable(target))

    return decorate


def check_arguments(target: type, given: Mapping[str, Any], owner: str) -> None:
    """Reject keyword arguments that the constructor of a class decorated with `foreign_arguments` would reject.

    Args:
        target: Class that was called.
        given: Arguments, which reach it later, for example in another process.
        owner: Component that was given them, for messages.

    Raises:
        UnknownArgumentError: As the constructor would raise it.
    """
    constructor: Any = target.__init__
    constructor.answers.keep(dict(given), owner)


def _movable(target: C) -> C:
    """Give the constructor of a module the argument `device` of TorchRL: the module is moved there when it is built."""
    made: Any = target
    start = made.__init__
    signature = inspect.signature(start)
    if "device" in signature.parameters:  # that of a base class
        return target

    @wraps(start)
    def begin(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        if device is not None:
            self.to(device)

    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    rest = [one for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
    device = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default=None)
    cast("Any", begin).__signature__ = signature.replace(parameters=[*own, device, *rest])
    made.__init__ = begin
    return target


def _start(self: object) -> None:
    """Return the constructor of a class that has none."""


@dataclass(frozen=True)
class _Answers:
    """What a function says to keyword arguments that are not in its signature."""

    name: str  # package and qualified name, by which installed packages know it
    own: Mapping[str, Needless]
    known: frozenset[str]
    passes_on: bool  # further ones, to a function that answers itself

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, own: Mapping[str, Needless]) -> _Answers:
        parameters = inspect.signature(function).parameters.values()
        known = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        return cls(name, own, known, any(p.kind is p.VAR_KEYWORD for p in parameters))

    @cached_property
    def table(self) -> dict[str, Needless]:
        """Own sentences, and those of installed packages."""
        tables = [answer(self.name) for answer in foreign_answers("arguments")]
        return dict(ChainMap(dict(self.own), *tables))

    def keep(self, given: dict[str, Any], owner: str) -> dict[str, Any]:
        """`given` without what is dropped; the first that is rejected raises."""
        return {name: value for name, value in given.items() if name in self.known or self._passes(name, value, owner)}

    def _passes(self, name: str, value: object, owner: str) -> bool:
        what = f"{name!r}"
        if found := self.table.get(name):
            why, *values = found
            if ... in values or any(value is one or (type(value) is type(one) and value == one) for one in values):
                return False
            shown = values and isinstance(value, (str, int, float, NoneType))
            what = f"{f'{name}={value!r}' if shown else what:.60}: {why}"
        elif self.passes_on:
            return True
        elif near := get_close_matches(name, self.known - {"self"}, n=1):
            what += f"; did you mean {near[0]!r}?"
        elif not foreign_answers("arguments"):
            what += "; if TorchRL has it, rl-torchrl says what to use: pip install rl-torchrl"
        raise UnknownArgumentError(f"{owner} got an unexpected keyword argument {what}")


def _answering(function: Callable[..., Any], answers: _Answers, owner: str | None) -> Callable[..., Any]:
    """Wrap `function` with its answers; without `owner` it is a method, named by its object's class."""
    known = answers.known

    def keep(given: dict[str, Any], owner: str) -> dict[str, Any]:  # torch.compile takes functions out of closures only
        return answers.keep(given, owner)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                kwargs = keep(kwargs, owner or type(args[0]).__name__)
                break
        return function(*args, **kwargs)

    open_to_tests: Any = call
    open_to_tests.answers = answers
    return call
