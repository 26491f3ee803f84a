"""Names of `Bounded`, `Unbounded` and `Stacked` that state the domain, as TorchRL has them."""

from __future__ import annotations

from abc import ABCMeta
from inspect import signature
from typing import Any, cast

import torch

from rl.core.errors import SpecError
from rl.core.specs._bounded import Bounded
from rl.core.specs._stacked import Stacked
from rl.core.specs._unbounded import Unbounded

__all__ = ["BoundedContinuous", "BoundedDiscrete", "StackedComposite", "UnboundedContinuous", "UnboundedDiscrete"]


class _OfDomain(ABCMeta):
    """A class whose instances are the instances of its base class with values of one domain."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        base: Any = cls.__base__
        discrete = cls.__name__.endswith("Discrete")
        parameters = signature(base)
        if not kwargs.keys() <= parameters.parameters.keys():
            return base(*args, **kwargs)  # raises the error about the arguments
        given = parameters.bind(*args, **kwargs)
        if discrete and given.arguments.get("dtype") is None:
            given.arguments["dtype"] = torch.int64
        spec = base(*given.args, **given.kwargs)
        if not isinstance(spec, cls):
            other = cls.__name__.removesuffix("Discrete" if discrete else "Continuous")
            other += "Continuous" if discrete else "Discrete"
            raise SpecError(f"{cls.__name__} holds no values of {spec.dtype}: use {other}, or another dtype")
        return spec

    def __instancecheck__(cls, instance: Any) -> bool:
        domain = "discrete" if cls.__name__.endswith("Discrete") else "continuous"
        return isinstance(instance, cast("type", cls.__base__)) and instance.domain == domain


class UnboundedContinuous(Unbounded, metaclass=_OfDomain):
    """`Unbounded` of a float dtype; makes an `Unbounded`.

    Example:
        >>> spec = UnboundedContinuous(3)
        >>> type(spec).__name__, isinstance(spec, UnboundedContinuous), isinstance(spec, UnboundedDiscrete)
        ('Unbounded', True, False)
    """


class UnboundedDiscrete(Unbounded, metaclass=_OfDomain):
    """`Unbounded` of an integer dtype or bool; makes an `Unbounded`, of int64 by default.

    Example:
        >>> UnboundedDiscrete(3).dtype
        torch.int64
    """


class BoundedContinuous(Bounded, metaclass=_OfDomain):
    """`Bounded` of a float dtype; makes a `Bounded`.

    Example:
        >>> BoundedContinuous(-1.0, 1.0, (3,)) == Bounded(-1.0, 1.0, (3,))
        True
    """


class BoundedDiscrete(Bounded, metaclass=_OfDomain):
    """`Bounded` of an integer dtype or bool; makes a `Bounded`, of int64 by default.

    Example:
        >>> BoundedDiscrete(0, 4).cardinality()
        5
    """


StackedComposite = Stacked
"""`Stacked`, whose values are TensorDicts where it stacks composites."""
