"""Recurrent states: declaration by a module, and the mode that selects steps or sequences."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from tensordict.nn import set_interaction_type
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn

from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import NestedKey, key_str, unwrap

__all__ = ["RecurrentOptions", "State", "keep_modes", "recurrent_mode", "set_recurrent_mode", "states_of"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MODES: dict[Any, bool | None] = {True: True, False: False, None: None, "recurrent": True, "sequential": False}


class _ThisThread(threading.local):
    mode: bool | None = None


class _Traced:
    """The mode again, where the compiler can see it and guard on it: of all threads, the last that set one."""

    mode: bool | None = None


_this_thread, _traced = _ThisThread(), _Traced()


@dataclass(frozen=True)
class State:
    """One entry that a module carries from step to step.

    The module reads it at the root and writes that of the following step under ``next``. The caller of the module
    puts `initial` at the root of the first step of each trajectory.

    Args:
        name: Key at the root.
        shape: Shape without the batch, ``(layers, hidden)`` for recurrent cells.
        dtype: Dtype of the entry.
        initial: Value of every element before the first step.
        owner: Class of the module, for messages.

    Example:
        >>> State(("recurrent_state", "h"), (1, 4)).start((2,)).shape
        torch.Size([2, 1, 4])
    """

    name: NestedKey
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    initial: float = 0.0
    owner: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", unwrap(self.name))

    def start(self, batch_size: tuple[int, ...] = (), device: torch.device | str | None = None) -> Tensor:
        """Return the entry before the first step, ``[*batch_size, *shape]``."""
        return torch.full((*batch_size, *self.shape), self.initial, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class RecurrentOptions:
    """Options of a recurrent back end, which raises `BackendError` for those that it does not support.

    Args:
        recompute: ``"none"`` keeps the gates of the forward pass for the backward pass, ``"full"`` computes them again.
        compute_dtype: Dtype of products and gates; that of the inputs if None.
        matmul_precision: ``"ieee"``, ``"tf32"``, ``"tf32x3"``; what torch is set to if None, for matrix
            products or for its own recurrent layers.
    """

    recompute: Literal["none", "full"] = "none"
    compute_dtype: torch.dtype | None = None
    matmul_precision: Literal["ieee", "tf32", "tf32x3"] | None = None


def states_of(component: Any) -> tuple[State, ...]:
    """List the recurrent states of a policy or a critic; none if it is stateless.

    Args:
        component: Component; its own ``states``, a tuple of `State`, and for an `nn.Module` those of its parts.

    Raises:
        ContractError: If two parts declare one key.

    Example:
        >>> states_of(nn.Linear(3, 2))
        ()
    """
    if not isinstance(component, nn.Module):
        return _tuple_of_states(getattr(component, "states", ()))
    found: dict[NestedKey, State] = {}
    for part in component.modules():
        for state in declared_states(part):
            if state.name in found:
                raise ContractError(
                    f"{found[state.name].owner or 'a module'} and {state.owner or 'another one'} both carry"
                    f" {key_str(state.name)} from step to step: give one of them other keys with in_keys= and out_keys="
                )
            found[state.name] = state
    return tuple(found.values())


def declared_states(part: nn.Module) -> tuple[State, ...]:
    """List the states that a module itself declares; a wrapper that passes attributes on declares none.

    Args:
        part: Module, without regard to its parts.
    """
    return _tuple_of_states(part.states) if getattr_static(part, "states", None) is not None else ()


def _tuple_of_states(states: Any) -> tuple[State, ...]:
    return states if isinstance(states, tuple) and all(isinstance(state, State) for state in states) else ()


def recurrent_mode() -> bool | None:
    """Whether recurrent modules see sequences (True), single steps (False), or what each was built for (None)."""
    return _traced.mode if torch.compiler.is_compiling() else _this_thread.mode


class set_recurrent_mode:  # noqa: N801  called like a function, as torch.no_grad is
    """Let recurrent modules take what they get as sequences, or as single steps; a context manager and a decorator.

    It holds for the calling thread and ends with the block. Collectors and rollouts run single steps whatever it says,
    losses and value estimators switch to sequences by themselves. A compiled function is compiled once for each mode.

    Args:
        mode: True or ``"recurrent"``: the last batch dimension is time, and the state restarts where ``is_init`` is
            true. False or ``"sequential"``: the batch is one step. None: what each module was built for.

    Raises:
        ArgumentError: If it is none of these.

    Example:
        >>> with set_recurrent_mode(True):
        ...     recurrent_mode()
        True
        >>> recurrent_mode() is None
        True
    """

    def __init__(self, mode: bool | Literal["recurrent", "sequential"] | None = True) -> None:  # noqa: FBT001, FBT002  the call that users know
        if mode not in _MODES:
            raise ArgumentError(
                f"set_recurrent_mode got {mode!r}; it is True, 'recurrent', False, 'sequential' or None"
            )
        self.mode = _MODES[mode]
        self._before: list[bool | None] = []

    def __enter__(self) -> None:
        self._before.append(recurrent_mode())
        self._set(self.mode)

    def __exit__(self, *_: object) -> None:
        self._set(self._before.pop())

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Wrap `function` so that it is always called in this mode."""

        @functools.wraps(function)
        def inside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with set_recurrent_mode(self.mode):
                return function(*args, **kwargs)

        return inside

    @staticmethod
    def _set(mode: bool | None) -> None:  # noqa: FBT001  a value, not a switch
        _traced.mode = mode
        if not torch.compiler.is_compiling():
            _this_thread.mode = mode


class keep_modes:  # noqa: N801  a context manager, as set_recurrent_mode is
    """Restore after an error what held before for gradients, recurrent modules and random actions.

    Ctrl-C can come between the last line of a ``with`` block and its end, which then never runs: a `torch.no_grad` that
    was interrupted there would hold for the rest of the process.

    Example:
        >>> with keep_modes():
        ...     _ = torch.set_grad_enabled(False)
        ...     raise RuntimeError
        Traceback (most recent call last):
        ...
        RuntimeError
        >>> torch.is_grad_enabled()
        True
    """

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled(), recurrent_mode(), interaction_type()

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            gradients, mode, kind = self._before
            torch.set_grad_enabled(gradients)
            set_recurrent_mode(mode).__enter__()
            set_interaction_type(kind).__enter__()
