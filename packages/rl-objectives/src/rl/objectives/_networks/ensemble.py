"""Several critics as one network, and calls that give no gradient to parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey, unwrap
from rl.core.lowering import Lowered, lower
from rl.objectives._networks.calls import NetworkCall

__all__ = ["Ensemble", "FrozenCall"]


class Ensemble(nn.Module):
    """Networks with the same keys as one, whose results are stacked: ``[n, *B, ...]``.

    Members are called one after the other: on a CPU that takes the time of a batched matrix product, and less than half
    that of `torch.vmap`.

    Args:
        networks: TensorDict modules with the same ``in_keys`` and ``out_keys``; or one, of which the others are copies
            with new initial parameters.
        count: number of networks.
        owner: the loss, for messages.

    Raises:
        ContractError: if a network has no keys, or they differ.
        SpecError: if the number of networks is another, or parameters cannot be initialized again.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_action_value"])
        >>> twins = Ensemble(critic, 2, "SACLoss")
        >>> twins(TensorDict(observation=torch.ones(5, 3), batch_size=[5]))["state_action_value"].shape
        torch.Size([2, 5, 1])
    """

    def __init__(self, networks: nn.Module | Sequence[nn.Module], count: int, owner: str) -> None:
        super().__init__()
        if isinstance(networks, nn.Module) and not isinstance(networks, nn.ModuleList):
            members = [networks, *(_with_new_parameters(networks, owner) for _ in range(count - 1))]
        else:
            members = list(networks)
        if count < 1 or len(members) != count:
            raise SpecError(f"{owner} got {len(members)} networks for num_qvalue_nets={count}: give one, or {count}")
        for member in members:
            if not hasattr(member, "in_keys") or not hasattr(member, "out_keys"):
                raise ContractError(
                    f"{owner} got a critic {type(member).__name__} without in_keys and out_keys: wrap it, as"
                    " TensorDictModule(network, in_keys=[...], out_keys=['state_action_value'])"
                )
        self.in_keys: list[NestedKey] = [unwrap(key) for key in members[0].in_keys]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues, reportArgumentType]
        self.out_keys: list[NestedKey] = [unwrap(key) for key in members[0].out_keys]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues, reportArgumentType]
        for member in members[1:]:
            keys = [[unwrap(key) for key in found] for found in (member.in_keys, member.out_keys)]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues, reportArgumentType]
            if keys != [self.in_keys, self.out_keys]:
                raise ContractError(
                    f"{owner} got critics with different keys: {keys} and {self.in_keys, self.out_keys}"
                )
        self.members = nn.ModuleList(members)

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """The stacked results, in a TensorDict without batch."""
        found = [member(tensordict.copy()) for member in self.members]
        return TensorDict({key: torch.stack([one.get(key) for one in found]) for key in self.out_keys})  # pyright: ignore[reportArgumentType]  # nested keys

    def lowered(self) -> Lowered | None:
        """Return the function of tensors, if each network has one."""
        parts = [lower(member) for member in self.members]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or any(part.in_keys != known[0].in_keys for part in known):
            return None

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            return tuple([torch.stack(column) for column in zip(*[part(*leaves) for part in known], strict=True)])

        return Lowered(call, known[0].in_keys, known[0].out_keys)


def _with_new_parameters(network: nn.Module, owner: str) -> nn.Module:
    """A copy whose layers are initialized again."""
    copied = deepcopy(network)
    for part in copied.modules():
        reset: Callable[[], Any] | None = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
        elif any(True for _ in part.parameters(recurse=False)):
            raise SpecError(
                f"{owner} copies its critic, and {type(part).__name__} has parameters and no reset_parameters(): give a"
                " list of networks instead"
            )
    return copied


class _Parameters(nn.Module):
    """A network call as a module, whose parameters `torch.func.functional_call` replaces."""

    def __init__(self, call: NetworkCall) -> None:
        super().__init__()
        self.module = call.module
        self.call = call

    def forward(self, entries: Mapping[NestedKey, Tensor], size: torch.Size) -> list[Tensor]:
        return self.call(entries, size)


class FrozenCall:
    """A network call through which gradients reach the inputs, and no parameter.

    Args:
        call: the call.
    """

    def __init__(self, call: NetworkCall) -> None:
        self._module = _Parameters(call)

    def __call__(self, entries: Mapping[NestedKey, Tensor], size: torch.Size) -> list[Tensor]:
        fixed = {name: parameter.detach() for name, parameter in self._module.named_parameters(remove_duplicate=False)}
        return torch.func.functional_call(self._module, fixed, (entries, size), tie_weights=False)
