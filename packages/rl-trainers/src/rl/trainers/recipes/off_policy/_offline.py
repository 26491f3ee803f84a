"""From a data set to the environment: what a run takes from an earlier run, and its buffer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.replay import OfflineToOnlineReplayBuffer, ReplayBuffer, TensorStorage
from rl.trainers._build.dataset import open_dataset
from rl.trainers._build.legal_actions import masked_rows
from rl.trainers._run.finite import check_rows
from rl.trainers._storage.checkpoint import load_checkpoint
from rl.trainers._storage.folder import RunFolder
from rl.trainers.recipes.off_policy._config import OffPolicyConfig
from rl.trainers.recipes.offline._windows import check_entries

__all__ = ["buffer_with_dataset", "take_networks"]


def buffer_with_dataset(
    config: OffPolicyConfig, env: Env, reads: Sequence[NestedKey], keys: Sequence[NestedKey]
) -> tuple[OfflineToOnlineReplayBuffer, list[NestedKey]]:
    """A buffer of a data set and new experience, and the keys that both have.

    Args:
        config: `dataset`, `offline_fraction`, `buffer_size`, `minibatch_size` and `device`.
        env: Environment of the training, which the data set has to fit.
        reads: keys that the loss needs.
        keys: these and optional ones, which the environment writes.

    Raises:
        SpecError: if the data set lacks a key that the loss needs.
    """
    data = open_dataset(config.dataset, env, config.minibatch_size, config.env)
    check_entries(config.recipe, config.dataset, data[0], reads)
    both = [key for key in keys if data[0].get(key, None) is not None]
    rows = masked_rows(data[:].select(*both)).to(config.device)
    check_rows(rows, config.dataset)
    buffer = OfflineToOnlineReplayBuffer(
        ReplayBuffer(storage=TensorStorage(rows)),
        online_capacity=config.buffer_size,
        offline_fraction=config.offline_fraction,
        batch_size=config.minibatch_size,
    )
    return buffer, both


def take_networks(config: OffPolicyConfig, policy: nn.Module, loss: nn.Module) -> None:
    """Give policy and loss the weights of the last checkpoint of the run `config.init`.

    Raises:
        CheckpointError: if there is no run, or its checkpoint is damaged.
        SpecError: if its networks are others.
    """
    state = load_checkpoint(RunFolder.open(config.init).last)
    for part, saved in ((policy, state["policy"]), (loss, state.get("loss", {}))):
        own = part.state_dict()
        unfit = [name for name, one in own.items() if name not in saved or saved[name].shape != one.shape]
        if unfit:
            raise SpecError(
                f"{config.recipe} cannot start from {config.init}, whose networks are others ({unfit[0]}); sac starts"
                " from runs of cql or sac, td3 from td3-bc or td3, with the same --hidden"
            )
        part.load_state_dict({name: saved[name] for name in own})
