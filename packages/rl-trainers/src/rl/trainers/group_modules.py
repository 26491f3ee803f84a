"""Networks, random actions, losses and estimators of groups of agents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn

from rl.core.contract import Contract
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.modules import EGreedyModule, MultiAgentMLP, orthogonal_init
from rl.trainers.groups import Group
from rl.trainers.networks import ACTIVATIONS
from rl.trainers.recurrent import activation_of, recurrent_layers

__all__ = [
    "GroupEstimators",
    "GroupLosses",
    "Mixed",
    "RandomActions",
    "group_network",
    "inputs_of",
    "joined",
    "layers_of",
]


def joined(entries: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
    """Entries as one vector of float32, ``[*B, width]``; `dims` are the dimensions of each without ``[*B]``."""
    flat = [
        entry.unsqueeze(-1) if own == 0 else entry.flatten(-own) if own > 1 else entry
        for entry, own in zip(entries, dims, strict=True)
    ]
    return (flat[0] if len(flat) == 1 else torch.cat(flat, -1)).float()


class _Joined(nn.Module):
    """Entries ``[*B, n_agents, ...]`` as one vector of float32 for each agent, before a network.

    Args:
        net: The network.
        dims: Number of dimensions of each entry of one agent.
    """

    def __init__(self, net: nn.Module, dims: Sequence[int]) -> None:
        super().__init__()
        self.net, self.dims = net, list(dims)

    def forward(self, *entries: Tensor) -> Any:
        return self.net(joined(entries, self.dims))


def layers_of(
    config: Any,
    group: Group,
    out_features: int,
    *,
    centralized: bool,
    activation: str,
    last_gain: float | None,
    more: int = 0,
    width: int | None = None,
    num_cells: Sequence[int] | None = None,
) -> nn.Module:
    """Create the multi-layer perceptron of a group that `config` describes.

    Args:
        config: Settings, with `num_cells` and `share_params`.
        group: The group.
        out_features: Width of the output of one agent.
        centralized: Whether each output depends on the inputs of all agents.
        activation: A key of `ACTIVATIONS`.
        last_gain: Scale of the last layer's orthogonal initial weights; torch's initial weights if None.
        more: Width of further inputs of one agent.
        width: Width of an input of one agent that takes the place of the observations.
        num_cells: Widths of the hidden layers; those of `config` if None.
    """
    net = MultiAgentMLP(
        (group.width if width is None else width) + more,
        out_features,
        group.n_agents,
        centralized=centralized,
        share_params=config.share_params,
        num_cells=list(config.num_cells if num_cells is None else num_cells),
        activation_class=ACTIVATIONS[activation],
    )
    return net if last_gain is None else orthogonal_init(net, math.sqrt(2), last_gain)


def inputs_of(
    env: Env, group: Group, net: nn.Module, out_keys: Sequence[NestedKey], device: str, more: Sequence[NestedKey] = ()
) -> TensorDictModule:
    """Create a network that reads the observations of a group.

    Args:
        env: Environment, for the shapes of its observations.
        group: The group.
        net: Network of ``[*B, n_agents, width]``.
        out_keys: Keys that it writes.
        device: Device of its parameters.
        more: Further entries that it reads, vectors of each agent.
    """
    batch = len(env.batch_size)
    dims = [len(env.observation_spec[key].shape) - batch - 1 for key in group.observations]
    joined = _Joined(net, [*dims, *[1] * len(more)])
    return TensorDictModule(joined.to(device), in_keys=[*group.observations, *more], out_keys=list(out_keys))


def group_network(
    config: Any,
    env: Env,
    group: Group,
    make: Callable[..., nn.Module],
    out_keys: Sequence[NestedKey],
    *,
    centralized: bool,
    state: str = "recurrent_state",
) -> TensorDictModuleBase:
    """Create a network from the observations of a group; with recurrent layers in front if the policy is so.

    Args:
        config: Settings, which decide the layers.
        env: Environment, for the shapes of the observations.
        group: The group.
        make: Constructor of the network, called with ``centralized`` and ``width``; a width of None is for
            observations.
        out_keys: Keys that it writes.
        centralized: Whether it sees the observations of all agents.
        state: First key of the recurrent states, as in ``(group, state, "h")``.
    """
    if config.policy == "mlp":
        net = make(centralized=centralized, width=None)
        return inputs_of(env, group, net, out_keys, config.device)
    size, activation = config.recurrent_size, activation_of(config)
    gain = math.sqrt(2) if config.ortho_init else None
    dense = layers_of(config, group, size, centralized=centralized, activation=activation, last_gain=gain, num_cells=())
    inputs, features = (group.name, state, "inputs"), (group.name, state, "features")
    return TensorDictSequential(
        inputs_of(env, group, nn.Sequential(dense, ACTIVATIONS[activation]()), [inputs], config.device),
        recurrent_layers(config, inputs, features, (group.name, state), n_agents=group.n_agents),
        TensorDictModule(
            make(centralized=False, width=size).to(config.device), in_keys=[features], out_keys=list(out_keys)
        ),
    )


class Mixed(nn.Module):
    """A mixer that reads parts of the state, flat."""

    def __init__(self, mixer: nn.Module, dims: list[int]) -> None:
        super().__init__()
        self.mixer, self.dims = mixer, dims

    def forward(self, values: Tensor, *parts: Tensor) -> Tensor:
        return self.mixer(values, joined(parts, self.dims)) if parts else self.mixer(values)


class RandomActions(TensorDictSequential):
    """Random actions of several groups, with one probability.

    Args:
        parts: Modules of the groups.
    """

    def __init__(self, parts: Sequence[EGreedyModule]) -> None:
        super().__init__(*parts)
        self._parts = list(parts)

    @property
    def eps(self) -> Tensor:
        """Probability of a random action, of all groups."""
        return self._parts[0].eps

    def step(self, frames: int = 1) -> None:
        """Lower it by `frames` frames."""
        for part in self._parts:
            part.step(frames)


class GroupLosses(nn.Module):
    """The losses of several groups as one: losses are added up, other metrics averaged.

    Priorities ``td_error`` in a batch are the largest of the groups.

    Args:
        losses: Losses, one for each group.
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
        """Yield the parameters of all critics."""
        for loss in self._parts:
            yield from loss.critic_parameters()

    def forward(self, batch: TensorDictBase) -> TensorDict:
        """Compute the outputs of all losses."""
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


class GroupEstimators:
    """The estimators of all groups, one after the other."""

    def __init__(self, estimators: Sequence[Any]) -> None:
        self._estimators = estimators
        self.contract = _joined_contracts([one.contract for one in estimators])

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        for one in self._estimators:
            batch = one(batch)
        return batch


def _joined_contracts(contracts: list[Any]) -> Contract:
    reads = {key.name: key for one in contracts for key in one.reads}
    return Contract(tuple(reads.values()), tuple(key for one in contracts for key in one.writes))
