"""Which priority tree a sampler uses, and why."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rl.core import registry
from rl.core.errors import BackendError, ContractError, SlowBackendWarning
from rl.core.interfaces import PriorityTree
from rl.core.registry import Answer
from rl.core.settings import settings
from rl.replay._priority.prefix_tree import PrefixTree

__all__ = ["Backend", "find_tree", "offers_more_than_torch", "refuse_device", "takes"]

_HOOK = "rl_priority_tree"
_TORCH = "torch"
_INSTALL = {"native": 'pip install "rl-replay[native]"', "cuda": "pip install rl-prio-cuda"}
_DEVICE = {"native": "cpu", "cuda": "cuda"}
_DISTRIBUTION = {"native": "rl-native", "cuda": "rl-prio-cuda", "torch": "rl-replay"}

_warned: set[str] = set()


@dataclass(frozen=True)
class Backend:
    """Who computes, and why that one.

    Args:
        name: ``"native"``, ``"torch"``, ``"cuda"``, or what another plugin calls itself.
        distribution: the package that it comes from.
        why: a sentence.

    Example:
        >>> str(Backend("torch", "rl-replay", "asked for by name"))
        'torch of rl-replay: asked for by name'
    """

    name: str
    distribution: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution}: {self.why}"


def refuse_device(who: str, device: torch.device | str, *, backend: str = "auto") -> torch.device:
    """`device`, if this machine has it: nobody needs to be asked for a tree elsewhere.

    Args:
        who: for messages.
        device: any kind of it.
        backend: the one that needs it there, if that is why.

    Raises:
        ContractError: if there is no such kind of device.
        BackendError: if torch is built without it, or it is not there; says what to give instead.

    Example:
        >>> refuse_device("Sampler", "cpu")
        device(type='cpu')
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ContractError(
            f"{who}: device must be that of a machine, such as 'cpu' or 'cuda:0', got {device!r}"
        ) from error
    if place.type in ("cpu", "meta"):
        return place
    reason = _why_no(place)
    if reason and backend in _INSTALL:
        raise BackendError(
            f"{who}: backend {backend!r} needs a {place} device, and `{_INSTALL[backend]}`: {reason}; backend='auto'"
            " takes what there is"
        )
    if reason:
        raise BackendError(f"{who}: device {place}: {reason}; storage and sampler take device='cpu'")
    return place


def _why_no(device: torch.device) -> str:
    if device.type == "cuda":
        if torch.version.cuda is None and torch.version.hip is None:
            return "this torch is built without CUDA"
        count = torch.cuda.device_count()
        if not count or not torch.cuda.is_available():
            return "no CUDA device is available"
        if (device.index or 0) >= count:
            return f"the last CUDA device is cuda:{count - 1}"
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, ImportError) as error:  # torch raises one or the other, by device
        said = str(error).strip().partition("\n")[0].partition(". ")[0]
        return f"torch cannot use it ({said or type(error).__name__})"
    return ""


def find_tree(
    who: str, backend: str, capacity: int, device: torch.device, dtype: torch.dtype
) -> tuple[PriorityTree, Backend]:
    """A priority tree and what is to be said about it.

    Args:
        who: for messages.
        backend: the name of one, or ``"auto"`` for the first that answers.
        capacity: number of leaves.
        device: where priorities live.
        dtype: of the priorities.

    Raises:
        BackendError: if the one that was asked for does not answer here; says how to install it.
    """
    if backend == _TORCH:
        tree = PrefixTree(capacity, device, dtype)
        return tree, Backend(_TORCH, _DISTRIBUTION[_TORCH], f"asked for by name ({tree.why})")
    arguments: dict[str, Any] = {"capacity": capacity, "device": device, "dtype": dtype}
    found = registry.default().answer(_HOOK, **arguments)
    if backend != "auto" and (found is None or not _is(found, backend)):
        answers = registry.default().answers(_HOOK, **arguments)
        found = next((answer for answer in answers if _is(answer, backend)), None)
        if found is None:
            raise BackendError(_absent(who, backend, device, dtype, answers))
    if found is None:
        raise BackendError(
            f"{who}: no installed plugin offers a priority tree for {device} and {dtype}; priorities are float32 or "
            "float64, and rl-replay itself answers for both: is it left out by RL_PLUGINS_DISABLE?"
        )
    said = getattr(found.value, "why", "")
    if backend != "auto":
        reason = "asked for by name"
    elif _is(found, _TORCH):
        reason = _fell_to_torch(who, found, device)
    else:
        reason = f"the first that answers for {device.type}"
    return found.value, Backend(_name(found), found.plugin.distribution, f"{reason}{f' ({said})' if said else ''}")


def offers_more_than_torch(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether an accelerator answers for `device`."""
    found = registry.default().answer(_HOOK, capacity=1, device=device, dtype=dtype)
    return found is not None and not _is(found, _TORCH)


def takes(method: Callable[..., Any] | None, *names: str) -> bool:
    """Whether an optional method of a tree has these arguments; those of an earlier interface may lack some.

    Example:
        >>> takes(sorted, "key"), takes(sorted, "raw"), takes(None, "key")
        (True, False, False)
    """
    return method is not None and set(names) <= set(inspect.signature(method).parameters)


def _name(answer: Answer) -> str:
    return getattr(answer.value, "name", None) or answer.plugin.name


def _is(answer: Answer, backend: str) -> bool:
    return _name(answer) == backend or answer.plugin.distribution == _DISTRIBUTION.get(backend)


def _absent(who: str, backend: str, device: torch.device, dtype: torch.dtype, answers: list[Answer]) -> str:
    names = ", ".join(dict.fromkeys(_name(answer) for answer in answers)) or "nobody"
    if backend not in _INSTALL:
        remedy = "`rl doctor` shows who answers"
    elif device.type != _DEVICE[backend]:
        remedy = f"it needs device={_DEVICE[backend]!r}, and `{_INSTALL[backend]}`"
    else:
        installed, reason = _reason(_DISTRIBUTION[backend])
        remedy = reason or "`rl doctor` says why it does not answer" if installed else _install(backend)
    return f"{who}: backend {backend!r} does not answer for {device} and {dtype} (those that do: {names}); {remedy}"


def _install(backend: str) -> str:
    return f"install it with `{_INSTALL[backend]}`"


def _reason(distribution: str) -> tuple[bool, str]:
    """Whether a distribution is installed, and what it says, or others, about why it does not answer."""
    plugins = registry.default().plugins
    own = [plugin for plugin in plugins if plugin.distribution == distribution]
    said = [f"{plugin.id} is {plugin.state}: {plugin.reason}" for plugin in own if plugin.state != "loaded"]
    said += [problem for plugin in own for problem in plugin.problems if problem.startswith(_HOOK)]
    for answer in registry.default().answers("rl_notes"):
        if answer.plugin.distribution == distribution:
            said += answer.value
    return bool(own), "; ".join(said)


def _fell_to_torch(who: str, found: Answer, device: torch.device) -> str:
    """Why it is the torch tree; on a CPU, where something faster exists, not without a word."""
    if device.type != "cpu":
        return f"no installed plugin offers a faster tree for {device.type}"
    mode = settings().native
    if mode == "off":
        return "RL_NATIVE=off"
    passed = any(plugin.startswith("rl-native:") for plugin in found.passed)
    installed, reason = _reason("rl-native")
    absent = "rl-native is installed but does not answer" if passed or installed else "rl-native is not installed"
    remedy = reason or "`rl doctor` says why" if passed or installed else _install("native")
    if mode == "require":
        raise BackendError(f"{who}: RL_NATIVE=require, and {absent}: {remedy}")
    if absent not in _warned:
        _warned.add(absent)
        warnings.warn(
            f"{who} samples with plain torch, many times slower than need be, because {absent}: {remedy}. "
            "backend='torch' asks for it without this warning",
            SlowBackendWarning,
            stacklevel=_outside(),
        )
    return absent


def _outside() -> int:
    """How many frames lie between the caller of this function and the first that is not of rl-replay."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rl.replay"):
        frame, level = frame.f_back, level + 1
    return level
