"""The reward of a team, and the sum of the losses of several groups of agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract
from rl.core.errors import SpecError
from rl.core.keys import REWARD, NestedKey, as_tuple
from rl.core.specs import Unbounded
from rl.envs import Transform
from rl.envs.transforms import Specs

__all__ = ["GroupLosses", "TeamReward"]


class TeamReward(Transform):
    """Writes ``reward`` at the root: the mean of the rewards of all agents, or of those of one group.

    Args:
        group: name of the group; all groups if empty.
        keys: of the rewards of the environment.

    Raises:
        SpecError: if there is no such group.
    """

    def __init__(self, group: str, keys: Sequence[NestedKey]) -> None:
        chosen = [key for key in keys if not group or as_tuple(key)[0] == group]
        if not chosen:
            groups = ", ".join(as_tuple(key)[0] for key in keys)
            raise SpecError(f"report_group={group!r} (--report-group) is no group; the environment has {groups}")
        super().__init__()
        self._keys = chosen

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        outcome[REWARD] = torch.cat([outcome[key] for key in self._keys], -2).mean(-2)
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add ``reward``."""
        specs.reward[REWARD] = Unbounded(1, dtype=specs.reward[self._keys[0]].dtype, device=specs.reward.device)


class GroupLosses(nn.Module):
    """The losses of several groups as one: losses are added up, other figures averaged.

    Priorities ``td_error`` in a batch are the largest of the groups.

    Args:
        losses: one for each group.
    """

    def __init__(self, losses: Sequence[Any]) -> None:
        super().__init__()
        self._parts = list(losses)  # typed: a list of modules is one of Module or Tensor
        self.losses = nn.ModuleList(losses)

    @property
    def contract(self) -> Contract:
        """All that the losses read."""
        reads = {key.name: key for loss in self._parts for key in loss.contract.reads}
        return Contract(tuple(reads.values()))

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that must be in a batch."""
        return self.contract.in_keys

    @property
    def actor_network(self) -> nn.Module:
        """The actors of all groups."""
        return nn.ModuleList([loss.actor_network for loss in self._parts])

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of all critics."""
        for loss in self._parts:
            yield from loss.critic_parameters()

    def forward(self, batch: TensorDictBase) -> TensorDict:
        """The outputs of all losses."""
        return self._sum(batch, self._parts)

    def critic_loss(self, batch: TensorDictBase) -> TensorDict:
        """Those of the critics."""
        return self._sum(batch, [loss.critic_loss for loss in self._parts])

    def actor_loss(self, batch: TensorDictBase) -> TensorDict:
        """Those of the actors."""
        return self._sum(batch, [loss.actor_loss for loss in self._parts])

    @staticmethod
    def _sum(batch: TensorDictBase, calls: Sequence[Any]) -> TensorDict:
        found: list[TensorDictBase] = []
        errors: list[Tensor] = []
        for call in calls:
            found.append(call(batch))
            error: Any = batch.pop("td_error", None)  # else the next one takes its place
            if error is not None:
                errors.append(error)
        if errors:
            batch.set("td_error", torch.stack(errors).amax(0))
        out: dict[str, Tensor] = {}
        for name in found[0].keys():
            column = torch.stack([one.get(name) for one in found])
            out[str(name)] = column.sum(0) if str(name).startswith("loss") else column.mean(0)
        return TensorDict(out)
