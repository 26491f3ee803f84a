"""From the name of an environment to the environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from rl.core.components import Component
from rl.core.errors import RLError, UnknownComponentError
from rl.core.interfaces import Env
from rl.core.registry import components, load
from rl.trainers._run_config import RunConfig

__all__ = ["env_options", "make_env"]

Make = Callable[..., Any]


def make_env(
    env: str,
    num_envs: int,
    *,
    seed: int,
    max_episode_steps: int = 0,
    observation_indices: Sequence[int] = (),
    **options: Any,
) -> Env:
    """`num_envs` copies of an environment as one, seeded, in this process.

    Args:
        env: in this order: the name of an installed env component; COMPONENT/ID, where the component takes an
            id; a Gymnasium id.
        num_envs: batch size; an environment with a batch of its own keeps that.
        seed: of the environment.
        max_episode_steps: episodes end as truncated after so many steps; 0 for the environment's own
            ``max_episode_steps``, if it has one.
        observation_indices: entries of a vector observation that are kept; all if empty.
        options: for the environment, for example ``render_mode="rgb_array"``.

    Raises:
        UnknownComponentError: if there is no such environment; the message names the nearest.
        SpecError: if the observation has no such entries.

    Example:
        >>> make_env("CartPole-v1", 2, seed=0).batch_size
        torch.Size([2])
    """
    make, arguments = _resolve(env)
    made = _batched(make, arguments, num_envs, options)
    from rl.envs import EnvBase, StepCounter, TransformedEnv

    if isinstance(made, EnvBase) and not max_episode_steps:
        max_episode_steps = int(getattr(type(made), "max_episode_steps", 0))
    if max_episode_steps:
        made = TransformedEnv(made, StepCounter(max_steps=max_episode_steps))
    if observation_indices:
        from rl.trainers._observation_indices import ObservationIndices

        made = TransformedEnv(made, ObservationIndices(observation_indices))
    made.set_seed(seed)
    return made


def env_options(config: RunConfig) -> dict[str, Any]:
    """What `make_env` is told about the environment besides its name, in every part of a run."""
    return {"max_episode_steps": config.max_episode_steps, "observation_indices": config.observation_indices}


def _resolve(env: str) -> tuple[Make, tuple[str, ...]]:
    """The callable that makes the environment, and its positional arguments."""
    known = {component.name: component for component in components("env")}
    prefix, _, rest = env.partition("/")
    if env in known and not _takes_id(load("env", env)):
        return load("env", env), ()
    if prefix in known and rest:
        if not _may_take_id(load("env", prefix)):
            raise UnknownComponentError(
                f"the environment component {prefix!r} takes no id, so there is no {env!r}: write --env {prefix}"
            )
        if prefix == "gym":
            _check_gymnasium_id(rest, known)
        return load("env", prefix), (rest,)
    if env in known:
        raise UnknownComponentError(
            f"the environment component {env!r} takes an id: write {env}/ID, for example gym/CartPole-v1"
        )
    _check_gymnasium_id(env, known)
    return load("env", "gym"), (env,)


def _check_gymnasium_id(env: str, known: dict[str, Component]) -> None:
    """Raise, with the nearest name there is, unless Gymnasium knows `env`."""
    import gymnasium

    if ":" in env:  # module:id, which gymnasium imports
        return
    try:
        gymnasium.spec(env)
    except gymnasium.error.Error as error:
        names = [*gymnasium.registry, *known]
        close = get_close_matches(env, names, n=1, cutoff=0.5) or [
            name for name in names if name.lower() == env.lower()
        ]
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise UnknownComponentError(
            f"no environment is called {env!r}{hint} It is neither an installed env component"
            f" ({', '.join(sorted(known)) or 'none'}) nor an id that Gymnasium knows ({error})"
        ) from error


def _takes_id(make: Make) -> bool:
    """Whether `make` has a required positional argument."""
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in _parameters(make).values()
    )


def _may_take_id(make: Make) -> bool:
    """Whether the first positional argument can be an id: it is required, or a string by default."""
    parameters = _parameters(make)
    if not parameters:  # a callable that does not say
        return True
    first = next(iter(parameters.values()))
    positional = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD, first.VAR_POSITIONAL)
    wanted = first.default is first.empty or first.default is None or isinstance(first.default, str)
    return positional and wanted


def _parameters(make: Make) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # a callable that does not say
        return {}


def _batched(make: Make, arguments: tuple[str, ...], num_envs: int, options: dict[str, Any]) -> Any:
    names = _parameters(make)
    options = {name: value for name, value in options.items() if name != "device" or name in names}
    if "categorical_action_encoding" in names:
        options.setdefault("categorical_action_encoding", True)
    if "num_envs" in names:
        return make(*arguments, num_envs=num_envs, **options)
    if "batch_size" in names:
        return make(*arguments, batch_size=[num_envs], **options)
    first = make(*arguments, **options)
    if len(first.batch_size) == 1 and first.batch_size.numel() == num_envs:
        return first
    if len(first.batch_size):
        raise RLError(
            f"{type(first).__name__} has the batch size {tuple(first.batch_size)} and takes no num_envs; set num_envs="
            f"{first.batch_size.numel()}, or give its constructor the argument num_envs"
        )
    rest = [make(*arguments, **options) for _ in range(num_envs - 1)]
    return _side_by_side([first, *rest])


def _side_by_side(envs: list[Any]) -> Any:
    from rl.envs import SerialEnv

    return SerialEnv(len(envs), [partial(_itself, env) for env in envs])


def _itself(env: Any) -> Any:
    return env
