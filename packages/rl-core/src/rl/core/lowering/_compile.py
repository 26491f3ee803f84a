"""`torch.compile`, put off until a number of calls has run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from operator import index
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch

from rl.core.errors import RLError

__all__ = ["WarmedUp", "compile_with_warmup"]

P = ParamSpec("P")
R = TypeVar("R")


class WarmedUp(Generic[P, R]):
    """A callable that runs eagerly at first and compiled later; all else is the model's own.

    Attributes that are read or set (``parameters()``, ``in_keys``, ``training``, ...) are those of the model.

    Args:
        model: a function or a module.
        warmup: number of calls that run eagerly.
        options: arguments of `torch.compile`.
    """

    _own = ("_calls", "_compiled", "_model", "_options", "_warmup")

    def __init__(self, model: Callable[P, R], warmup: int, options: dict[str, Any]) -> None:
        vars(self).update(_model=model, _warmup=warmup, _options=options, _calls=0, _compiled=None)
        if isinstance(model, FunctionType):
            update_wrapper(self, model, updated=())

    def __get__(self, owner: Any, _: type | None = None) -> Any:
        """Bound to an object, as a function in a class is; a module in a class stays itself."""
        return self if owner is None or not isinstance(self._model, FunctionType) else MethodType(self, owner)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._compiled is not None:
            return self._compiled(*args, **kwargs)
        if self._calls < self._warmup:
            out = self._model(*args, **kwargs)
            vars(self)["_calls"] += 1
            return out
        compiled = vars(self)["_compiled"] = torch.compile(self._model, **self._options)
        return compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in WarmedUp._own or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # copy and pickle ask before there is a model
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") and name.endswith("__"):
            vars(self)[name] = value  # name, signature and text of a function
        else:
            setattr(self._model, name, value)

    def __repr__(self) -> str:
        state = "compiled" if self._compiled is not None else f"{self._calls} of {self._warmup} warm-up calls"
        return f"compile_with_warmup({self._model!r}, {state})"


@overload
def compile_with_warmup(model: Callable[P, R], *, warmup: int = 1, **compile_kwargs: Any) -> WarmedUp[P, R]: ...
@overload
def compile_with_warmup(
    model: None = None, *, warmup: int = 1, **compile_kwargs: Any
) -> Callable[[Callable[P, R]], WarmedUp[P, R]]: ...
def compile_with_warmup(model: Any = None, *, warmup: int = 1, **compile_kwargs: Any) -> Any:
    """Compile a function or a module after its first `warmup` calls.

    The first calls settle what compilation depends on (lazily made state, shapes), and keep the seconds that
    it takes out of the first measurements. Both forms give the same results, up to rounding. The result is no
    `torch.nn.Module`: within a module, where its parameters would not be found, compile the outer one.

    Args:
        model: what to compile; if None, a decorator is returned.
        warmup: number of calls that run eagerly; 0 compiles at the first call.
        compile_kwargs: for `torch.compile`: ``mode``, ``fullgraph``, ``dynamic``, ``backend``, ...

    Raises:
        RLError: if `warmup` is negative or `model` cannot be called.

    Example:
        >>> @compile_with_warmup(warmup=2)
        ... def double(x):
        ...     return 2 * x
        >>> double(torch.ones(2))
        tensor([2., 2.])
        >>> net = compile_with_warmup(torch.nn.Linear(3, 1), warmup=3)
        >>> len(list(net.parameters()))
        2
    """
    if not hasattr(warmup, "__index__") or index(warmup) < 0:
        raise RLError(f"compile_with_warmup got warmup={warmup}; it counts calls: give 0 or more")
    if model is None:
        return partial(compile_with_warmup, warmup=warmup, **compile_kwargs)
    if not callable(model):
        raise RLError(
            f"compile_with_warmup got {type(model).__name__}, which cannot be called: give a function or a module"
        )
    return WarmedUp(model, warmup, compile_kwargs)
