"""Replay buffers: what they keep, how they sample, and how a run goes on from a data set or another run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from rl.core.errors import ArgumentError, CheckpointError
from rl.core.interfaces import Env
from rl.core.keys import NEXT, NestedKey, as_tuple, leaf_keys
from rl.replay import (
    LazyTensorStorage,
    OfflineToOnlineReplayBuffer,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rl.trainers._checks import check_rows
from rl.trainers._named import find_call
from rl.trainers._storage import RunFolder
from rl.trainers.actions import choices, masked_rows
from rl.trainers.checkpoint import load_checkpoint
from rl.trainers.datasets import check_entries, open_dataset
from rl.trainers.families import OffPolicyConfig
from rl.trainers.networks import action_of

__all__ = [
    "added_by_buffer",
    "buffer_with_dataset",
    "replay_sampler",
    "stored_keys",
    "take_networks",
    "transitions_buffer",
]


def replay_sampler(config: Any) -> Any:
    """Create the sampler by name; one that takes `max_capacity` gets the size of the buffer.

    Raises:
        ArgumentError: If it does not take the arguments.
    """
    make, arguments = find_call("sampler", config.sampler)
    if "max_capacity" in inspect.signature(make).parameters:
        arguments = {"max_capacity": config.buffer_size, **arguments}
    try:
        return make(**arguments)
    except TypeError as error:
        raise ArgumentError(
            f"the sampler {config.sampler!r} cannot be created: {error}; write NAME:{{key: value}}"
        ) from error


def transitions_buffer(config: Any) -> ReplayBuffer:
    """Create an empty buffer of single steps, as the settings have it."""
    kind = ReplayBuffer if config.sampler == "random" else TensorDictReplayBuffer  # a uniform sample has no info
    storage = LazyTensorStorage(config.buffer_size, device=config.device)
    return kind(storage=storage, sampler=replay_sampler(config), batch_size=config.batch_size)


def added_by_buffer(config: Any) -> list[str]:
    """Keys that replay buffer, loss and loop add to a batch, besides those of networks."""
    return ["td_error", "break", *([] if config.sampler == "random" else ["index", "priority_weight"])]


def stored_keys(loss: Any, env: Env) -> list[NestedKey]:
    """Keys of a batch that a replay buffer keeps: those that the loss needs, and optional ones that there are.

    Args:
        loss: Loss with a contract.
        env: Environment, which writes observations and flags.
    """
    written = {as_tuple(key) for spec in (env.observation_spec, env.full_done_spec) for key in leaf_keys(spec)}
    optional = [key.name for key in loss.contract.reads if key.optional]
    there = [key for key in optional if as_tuple(key)[as_tuple(key)[0] == NEXT :] in written]
    masks = [(NEXT, *as_tuple(key)) for key in there if as_tuple(key)[0] != NEXT]  # of agents, also after the step
    return [*loss.in_keys, *there, *masks]


def buffer_with_dataset(
    config: OffPolicyConfig, env: Env, reads: Sequence[NestedKey], keys: Sequence[NestedKey]
) -> tuple[OfflineToOnlineReplayBuffer, list[NestedKey]]:
    """Create a buffer of a data set and new experience, and the keys that both have.

    Args:
        config: Settings: `dataset`, `offline_fraction`, `buffer_size`, `batch_size` and `device`.
        env: Environment of the training, which the data set has to fit.
        reads: Keys that the loss needs.
        keys: Keys of these and of optional entries, which the environment writes.

    Raises:
        ContractError: If the data set lacks a key that the loss needs.
    """
    data = open_dataset(config.dataset, env, config.batch_size, config.env)
    check_entries(config.recipe, config.dataset, data[0], reads)
    both = [key for key in keys if data[0].get(key, None) is not None]
    rows = masked_rows(data[:].select(*both), choices(action_of(env)[1])).to(config.device)
    check_rows(rows, config.dataset)
    buffer = OfflineToOnlineReplayBuffer(
        ReplayBuffer(storage=TensorStorage(rows)),
        online_capacity=config.buffer_size,
        offline_fraction=config.offline_fraction,
        batch_size=config.batch_size,
    )
    return buffer, both


def take_networks(config: OffPolicyConfig, policy: nn.Module, loss: nn.Module) -> None:
    """Give policy and loss the weights of the last checkpoint of the run `config.init`.

    Raises:
        CheckpointError: If there is no run, its checkpoint is damaged, or its networks are others.
    """
    state = load_checkpoint(RunFolder.open(config.init).last)
    for part, saved in ((policy, state["policy"]), (loss, state.get("loss", {}))):
        own = part.state_dict()
        unfit = [name for name, one in own.items() if name not in saved or saved[name].shape != one.shape]
        if unfit:
            raise CheckpointError(
                f"{config.recipe} cannot start from {config.init}, whose networks are others ({unfit[0]}); sac starts"
                " from runs of cql or sac, td3 from td3-bc or td3, with the same --num-cells"
            )
        part.load_state_dict({name: saved[name] for name in own})
