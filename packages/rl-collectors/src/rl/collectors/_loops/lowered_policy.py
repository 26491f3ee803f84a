"""Lowered policies in the leaf loop."""

from __future__ import annotations

import torch

from rl.collectors._loops.leaves import LeafAct
from rl.core.interfaces import Leaves, LoweredModule
from rl.core.keys import NEXT, NestedKey, unwrap

__all__ = ["lowered_policy"]


def lowered_policy(module: LoweredModule, device: torch.device | None, home: torch.device) -> LeafAct:
    """Return a function that runs `module` on the leaves of the root.

    Args:
        module: lowered policy.
        device: device of the policy; None if it is that of the environment.
        home: device of the environment.
    """
    call = getattr(module, "fn", module)  # saves one call a step
    reads, writes = list(module.in_keys), list(module.out_keys)
    if device is not None:
        call = _elsewhere(call, device, home)
    if any(_under_next(key) for key in writes):
        return _act_with_next(call, reads, writes)
    if len(reads) == 1:
        (only,) = reads

        def act_on_one(root: Leaves) -> None:
            root.update(zip(writes, call(root[only]), strict=True))

        return act_on_one

    def act(root: Leaves) -> None:
        root.update(zip(writes, call(*[root[key] for key in reads]), strict=True))

    return act


def _act_with_next(call: LoweredModule, reads: list[NestedKey], writes: list[NestedKey]) -> LeafAct:
    """A recurrent policy, which also writes under ``next``."""
    here = [(i, key) for i, key in enumerate(writes) if not _under_next(key)]
    there = [(i, unwrap(key[1:])) for i, key in enumerate(writes) if _under_next(key)]

    def act(root: Leaves) -> Leaves:
        out = call(*[root[key] for key in reads])
        for i, key in here:
            root[key] = out[i]
        return {key: out[i] for i, key in there}

    return act


def _under_next(key: NestedKey) -> bool:
    return isinstance(key, tuple) and key[0] == NEXT


def _elsewhere(call: LoweredModule, device: torch.device, home: torch.device) -> LoweredModule:
    def call_there(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([out.to(home) for out in call(*[leaf.to(device) for leaf in leaves])])

    return call_there  # pyright: ignore[reportReturnType]  # only called; its keys are not read
