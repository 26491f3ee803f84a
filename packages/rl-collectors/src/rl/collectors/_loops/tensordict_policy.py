"""TensorDict policies in the leaf loop: one light TensorDict per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.collectors._loops.leaves import LeafAct, TensorDictAct, leaves_of, tensordict_of
from rl.core.errors import ContractError
from rl.core.interfaces import Leaves
from rl.core.keys import NEXT, NestedKey, unwrap

__all__ = ["opaque_act", "opaque_policy"]


def opaque_act(policy: Callable[..., Any], device: torch.device | None, home: torch.device) -> TensorDictAct:
    """Return the policy as a function that always returns the TensorDict with its outputs.

    Args:
        policy: called with the root; writes in place, or returns the result.
        device: device of the policy; None if it is that of the environment.
        home: device of the environment.
    """

    def act(td: TensorDictBase) -> TensorDictBase:
        out = policy(td)
        # a policy may return only its own entries
        return td if out is None or out is td else td.update(_checked(out, policy))

    def act_elsewhere(td: TensorDictBase) -> TensorDictBase:
        there = td.to(device)
        out = policy(there)
        return td.update((there if out is None else _checked(out, policy)).to(home))

    return act if device is None else act_elsewhere


def opaque_policy(act: TensorDictAct, batch_size: torch.Size, groups: Mapping[NestedKey, torch.Size]) -> LeafAct:
    """Return a function that wraps the root's leaves into a TensorDict and calls the policy.

    Args:
        act: from `opaque_act`.
        batch_size: batch of the environment.
        groups: batch sizes of groups.
    """

    def leaf_act(root: Leaves) -> Leaves | None:
        out = leaves_of(act(tensordict_of(root, batch_size, groups)))
        extra = {unwrap(key[1:]): out.pop(key) for key in list(out) if isinstance(key, tuple) and key[0] == NEXT}
        root.update(out)
        return extra or None

    return leaf_act


def _checked(out: Any, policy: Any) -> TensorDictBase:
    if isinstance(out, TensorDictBase):
        return out
    raise ContractError(
        f"the policy ({type(policy).__name__}) returned {type(out).__name__}, expected a TensorDict with the action:"
        " wrap a network as TensorDictModule(network, in_keys=['observation'], out_keys=['action'])"
    )
