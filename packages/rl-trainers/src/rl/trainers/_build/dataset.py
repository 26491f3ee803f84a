"""The data set of a run, compared with its environment."""

from __future__ import annotations

from typing import Any

import torch

from rl.core.errors import RLError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import key_str
from rl.core.specs import Categorical
from rl.replay.datasets import load_dataset
from rl.trainers._build.networks import action_of, observations_of

__all__ = ["ENVIRONMENT", "open_dataset", "origin_of"]

#: where the metadata of our own data sets of Minari has the name of the environment
ENVIRONMENT = "environment"

#: rows that are read at a time, with all entries, where only one is looked at
_ROWS = 4096


def open_dataset(name: str, env: Env, batch_size: int, env_name: str) -> Any:
    """Open a data set as a replay buffer, if it can be of the environment.

    Args:
        name: ``SOURCE:NAME``.
        env: Environment that the policy is trained for.
        batch_size: rows of a sample.
        env_name: name of the environment, for messages.

    Raises:
        SpecError: if an observation or the action has another shape than in the environment, or more choices.
        RLError: if there is no such data set; the message has a command that downloads it.
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
            f"the data set {name}{of} does not fit the environment: {'; '.join(wrong)}. Name its environment with --env,"
            " with the wrappers and transforms that it was recorded with"
        )
    return data


def origin_of(data: Any) -> str:
    """Name of the environment that a data set was recorded on; empty if the data set does not say."""
    source = getattr(data, "minari_dataset", None)
    ours = getattr(getattr(source, "storage", None), "metadata", {}).get(ENVIRONMENT)
    return str(ours or getattr(getattr(source, "env_spec", None), "id", "") or "")
