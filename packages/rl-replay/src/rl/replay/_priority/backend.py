"""Selection of the priority tree of a sampler."""

from __future__ import annotations

from typing import Any

import torch

from rl.core.backends import AUTO, NATIVE, Accelerator, Backend, missing_native, select, warn_slow
from rl.core.errors import BackendError, ContractError
from rl.core.interfaces import PriorityTree
from rl.replay._priority.prefix_tree import PrefixTree

__all__ = ["Backend", "check_device", "find_tree"]

_HOOK = "rl_priority_tree"
_TORCH = "torch"
_INSTALL_NATIVE = 'pip install "rl-replay[native]"'
_ACCELERATORS = {
    "native": Accelerator(NATIVE.distribution, _INSTALL_NATIVE, "cpu"),
    "cuda": Accelerator("rl-prio-cuda", "pip install rl-prio-cuda", "cuda"),
}


def check_device(owner: str, device: torch.device | str, *, backend: str = AUTO) -> torch.device:
    """Check that this machine has `device`, and return it.

    Args:
        owner: for messages.
        device: device or its name.
        backend: the back end that needs the device, if that is the reason.

    Raises:
        ContractError: if it is not a device.
        BackendError: if torch is built without it, or it is absent; with the remedy.

    Example:
        >>> check_device("Sampler", "cpu")
        device(type='cpu')
    """
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ContractError(f"{owner}: device must be a device such as 'cpu' or 'cuda:0', got {device!r}") from error
    if place.type in ("cpu", "meta"):
        return place
    reason = _missing_device(place)
    if reason and backend in _ACCELERATORS:
        raise BackendError(
            f"{owner}: backend {backend!r} needs a {place} device, and `{_ACCELERATORS[backend].install}`: {reason};"
            " backend='auto' selects an installed one"
        )
    if reason:
        raise BackendError(f"{owner}: device {place}: {reason}; storage and sampler take device='cpu'")
    return place


def _missing_device(device: torch.device) -> str:
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
    except (AssertionError, RuntimeError, ImportError) as error:  # the type depends on the device
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        return f"torch cannot use it ({reason or type(error).__name__})"
    return ""


def find_tree(
    owner: str, backend: str, capacity: int, device: torch.device, dtype: torch.dtype
) -> tuple[PriorityTree, Backend]:
    """A priority tree and the reason for its selection.

    Args:
        owner: for messages.
        backend: name of the back end, or ``"auto"`` for the first that is available.
        capacity: number of priorities.
        device: of the priorities.
        dtype: of the priorities.

    Raises:
        BackendError: if the named back end is absent; with the command that installs it.
    """
    if backend == _TORCH:
        tree = PrefixTree(capacity, device, dtype)
        return tree, Backend(_TORCH, "rl-replay", f"asked for by name ({tree.why})")
    arguments: dict[str, Any] = {"capacity": capacity, "device": device, "dtype": dtype}
    tree, found, _ = select(
        owner,
        _HOOK,
        arguments,
        where=f"{device} and {dtype}",
        fallback="rl-replay",
        name=backend,
        accelerators=_ACCELERATORS,
    )
    if backend != AUTO or found.distribution != "rl-replay":
        return tree, found
    if device.type != "cpu":
        reason = f"no installed plugin offers a faster tree for {device.type}"
        install = next((f": {known.install}" for known in _ACCELERATORS.values() if known.device == device.type), "")
        warn_slow(
            f"{owner} samples with plain torch on {device}, because {reason}{install}. backend='torch' selects it"
            " without this warning"
        )
    else:
        reason = missing_native(owner, _HOOK, install=_INSTALL_NATIVE)
        if reason != "RL_NATIVE=off":
            warn_slow(
                f"{owner} samples with plain torch, about ten times slower, because {reason}. backend='torch' selects"
                " it without this warning"
            )
    return tree, Backend(found.name, found.distribution, f"{reason} ({tree.why})")
