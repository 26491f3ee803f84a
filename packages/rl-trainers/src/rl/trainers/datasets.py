"""Data sets of a run: compared with its environment, and read as windows of successive steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, RLError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, REWARD, NestedKey, key_str, leaf_keys
from rl.core.specs import Categorical
from rl.replay.datasets import load_dataset
from rl.trainers.networks import action_of, observations_of

__all__ = ["ENVIRONMENT", "Windows", "check_entries", "chunk_reader", "open_dataset", "origin_of", "returns_to_go"]

#: where the metadata of our own data sets of Minari has the name of the environment
ENVIRONMENT = "environment"

#: rows that are read at a time, with all entries, where only one is looked at
_ROWS = 4096


def open_dataset(name: str, env: Env, batch_size: int, env_name: str) -> Any:
    """Open a data set as a replay buffer, if it can be of the environment.

    Args:
        name: Name as ``SOURCE:NAME``.
        env: Environment that the policy is trained for.
        batch_size: Rows of a sample.
        env_name: Name of the environment, for messages.

    Raises:
        SpecError: If an observation or the action has another shape than in the environment, or more choices.
        RLError: If there is no such data set; the message has a command that downloads it.
    """
    try:
        data = load_dataset(name, batch_size=batch_size)
    except RLError as error:
        remedy = str(error).partition("download=True")
        if not remedy[1]:
            raise
        command = f"from rl.replay.datasets import load_dataset; load_dataset({name!r}, download=True)"
        raise RLError(f'{remedy[0]}python -c "{command}", which downloads it') from error
    row, batch = data[0], len(env.batch_size)
    key, action = action_of(env)
    wanted = {name: tuple(spec.shape[batch:]) for name, spec in observations_of(env).items()}
    wanted |= {key: tuple(action.shape)} if torch.empty(0, dtype=action.dtype).is_floating_point() else {}
    found = {name: tuple(row[name].shape) for name in wanted if row.get(name, None) is not None}
    wrong = [
        f"{key_str(name)} is {list(shape)} there and {list(wanted[name])} in {env_name!r}"
        for name, shape in found.items()
        if shape != wanted[name]
    ]
    if type(action) is Categorical and not action.shape and row.get(key, None) is not None and row[key].ndim == 0:
        most = max(int(data[i : i + _ROWS].get(key).max()) for i in range(0, len(data), _ROWS))
        if most >= int(action.n):
            wrong.append(f"{key_str(key)} goes up to {most} there, and {env_name!r} has {int(action.n)} choices")
    if wrong:
        origin = origin_of(data)
        of = f", which is of {origin}" if origin else ""
        raise SpecError(
            f"the data set {name}{of} does not fit the environment: {'; '.join(wrong)}. Name its environment with"
            " --env, with the wrappers and transforms that it was recorded with"
        )
    return data


def origin_of(data: Any) -> str:
    """Name of the environment that a data set was recorded on; empty if the data set does not say."""
    source = getattr(data, "minari_dataset", None)
    ours = getattr(getattr(source, "storage", None), "metadata", {}).get(ENVIRONMENT)
    return str(ours or getattr(getattr(source, "env_spec", None), "id", "") or "")


def check_entries(recipe: str, dataset: str, row: TensorDictBase, keys: Sequence[NestedKey]) -> None:
    """Raise unless a row of a data set has all entries that a recipe reads.

    Args:
        recipe: Name of the recipe, for messages.
        dataset: Name of the data set, for messages.
        row: A row of it.
        keys: Keys that are read.

    Raises:
        ContractError: If one is missing.
    """
    missing = [key for key in keys if row.get(key, None) is None]
    if missing:
        there = ", ".join(key_str(key) for key in leaf_keys(row))
        raise ContractError(f"{recipe} reads {', '.join(map(key_str, missing))}, which {dataset} lacks; it has {there}")


class Windows:
    """Samples windows of steps of one episode; each step of the data set is equally often the first one.

    Args:
        data: A data set whose episodes are in time order, one after the other, as a replay buffer.
        keys: Entries of a step that are read.
        length: Steps of a window.
        count: Windows of a sample.

    Example:
        >>> from rl.replay import ReplayBuffer, TensorStorage
        >>> after = TensorDict(done=torch.tensor([False, True, False, False, True]).unsqueeze(-1), batch_size=[5])
        >>> rows = TensorDict(x=torch.arange(5), next=after, batch_size=[5])
        >>> windows = Windows(ReplayBuffer(storage=TensorStorage(rows)), ["x"], 3, 4)
        >>> windows.last_step
        tensor([1, 1, 4, 4, 4])
        >>> windows.sample()["x"].shape
        torch.Size([4, 3])
    """

    def __init__(self, data: Any, keys: Sequence[NestedKey], length: int, count: int) -> None:
        rows = data[:]
        self._rows, self._length, self._count = rows.select(*keys), length, count
        self.last_step = _last_steps(rows)

    def sample(self, **columns: Tensor) -> TensorDict:
        """Windows ``[count, length]``; after the end of an episode they repeat its last step.

        ``("collector", "mask")`` is false there. Uses torch's generator.

        Args:
            columns: Further entries of all steps of the data set, ``[rows, ...]``.
        """
        first = torch.randint(len(self.last_step), (self._count, 1))
        step = first + torch.arange(self._length)  # [count, length]; may run into the next episode
        last = self.last_step[first]  # [count, 1]
        rows = step.minimum(last)  # padding repeats the last step
        found: Any = self._rows[rows.flatten()].to_tensordict()
        for name, column in columns.items():
            found.set(name, column[rows.flatten()])
        found = found.reshape(rows.shape)
        return found.set(("collector", "mask"), step <= last)


def _last_steps(rows: TensorDictBase) -> Tensor:
    """Index of the last step of the episode of each step, int64 ``[rows]``."""
    ends = rows[NEXT, DONE].reshape(-1).clone()
    number = rows.get("episode", None)
    if number is not None:
        ends[:-1] |= number.reshape(-1).diff() != 0  # recorded episodes may end without a flag
    ends[-1] = True
    at = ends.nonzero().flatten()
    return at[torch.searchsorted(at, torch.arange(len(ends)))]  # the first end at or after each step


def returns_to_go(data: Any, last_step: Tensor) -> Tensor:
    """Sum of the rewards from each step to the end of its episode, float32 ``[rows, 1]``.

    Args:
        data: The data set, as a replay buffer.
        last_step: Last step of each row's episode, from `Windows`.

    Example:
        >>> after = TensorDict(reward=torch.tensor([1.0, 2.0, 3.0]).unsqueeze(-1), batch_size=[3])
        >>> returns_to_go(TensorDict(next=after, batch_size=[3]), torch.tensor([1, 1, 2])).flatten()
        tensor([3., 2., 3.])
    """
    reward = data[:][NEXT, REWARD].reshape(-1).double()
    # sum over [t, last] = total[last] - total[t] + reward[t]; in float64, as totals of long data sets cancel
    total = reward.cumsum(0)
    return (total[last_step] - total + reward).float().unsqueeze(-1)


def chunk_reader(
    config: Any, data: Any, observation: NestedKey, action: NestedKey, chunk_key: NestedKey
) -> Callable[[], TensorDictBase]:
    """Return a sampler of observations with the chunks of actions that follow.

    A batch ``[batch_size]`` has the observation, the chunk, which repeats the last action after the end of an
    episode, and ``action_is_pad`` ``[B, chunk_size]``, true there.

    Args:
        config: Settings of the recipe: `recipe`, `dataset`, `chunk_size`, `batch_size`.
        data: The data set.
        observation: Key of the observation.
        action: Key of the action.
        chunk_key: Key of the chunk.

    Raises:
        ContractError: If the data set lacks one of these, or the end of episodes.
    """
    check_entries(config.recipe, config.dataset, data[0], [observation, action, (NEXT, DONE)])
    windows = Windows(data, [observation, action], config.chunk_size, config.batch_size)

    def read() -> TensorDictBase:
        window = windows.sample()
        batch = TensorDict({}, batch_size=window.batch_size[:1])
        batch.set(observation, window.get(observation)[:, 0].float())  # a chunk is planned from its first step
        batch.set(chunk_key, window.get(action).float())
        return batch.set("action_is_pad", ~window["collector", "mask"])

    return read
