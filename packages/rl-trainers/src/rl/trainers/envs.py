"""From the name of an environment to the environment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
from tensordict import TensorDictBase

from rl.collectors import Collector, RayCollector
from rl.core.errors import ArgumentError, RLError, SpecError, UnknownComponentError
from rl.core.interfaces import Env
from rl.core.keys import REWARD, as_tuple, key_str, leaf_keys
from rl.core.registry import load
from rl.core.specs import Bounded
from rl.envs import (
    ActionClipping,
    EnvBase,
    FrameSkipTransform,
    GymWrapper,
    ObservationIndices,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TeamReward,
    TransformedEnv,
    transforms,
)
from rl.trainers._device import storing_device
from rl.trainers._named import GivenEnv, find_call, import_attribute, import_named, is_component, named_env
from rl.trainers._preprocessing import (
    check_no_reward_statistics,
    normalized_observations,
    stacked_frames,
    training_rewards,
)
from rl.trainers.actions import LegalActions, choices, mask_in_info, mask_key
from rl.trainers.config import RunConfig
from rl.trainers.networks import MASK, action_of

__all__ = ["env_options", "make_collector", "make_env"]


Make = Callable[..., Any]

_ENV_ID = re.compile(r"[^\s:/]+(/[^\s:/]+)*(:[^\s:]+)?")
"""What may name an environment: parts joined by slashes, and after a colon what is in a module."""

_EXAMPLES = {
    "dm-control": "cheetah-run",
    "envpool": "HalfCheetah-v5",
    "gym": "CartPole-v1",
    "open-spiel": "tic_tac_toe",
    "pettingzoo": "mpe2/simple_spread",
    "vmas": "balance",
}
"""An id of components that take one, for messages."""


def make_env(  # noqa: PLR0913  one for each setting
    env: str,
    num_envs: int,
    *,
    seed: int,
    max_episode_steps: int = 0,
    observation_indices: Sequence[int] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    wrapper: Sequence[str] = (),
    transform: Sequence[str] = (),
    normalize_observation: bool = False,
    normalize_reward: bool = False,
    clip_actions: bool = False,
    frame_stack: int = 1,
    frame_skip: int = 1,
    atari: bool = False,
    gamma: float = 0.99,
    observation_layout: str = "auto",
    evaluation: bool = False,
    workers: int = 0,
    team: str | None = None,
    **options: Any,
) -> Env:
    """`num_envs` copies of an environment as one, seeded.

    Args:
        env: Environment, in this order: the name of an installed env component; COMPONENT/ID, where the component takes
            an id; ``module:Class``, an environment class or a function that creates one, ours or Gymnasium's;
            ``module:ID``, a Gymnasium id that the module registers; a Gymnasium id.
        num_envs: Batch size; an environment with a batch of its own keeps that.
        seed: Seed of the environment.
        max_episode_steps: Episodes end as truncated after this number of steps, each of `frame_skip` repetitions; 0
            for the environment's own ``max_episode_steps``, if it has one, which counts repetitions.
        observation_indices: Entries of a vector observation that are kept; all if empty.
        env_kwargs: Arguments for the environment, from the user.
        wrapper: Gymnasium wrappers, ``module:callable`` or ``module:callable:{key: value}``, innermost first.
        transform: Transforms in order: component names or ``module:callable``, both also with ``:{key: value}``.
        normalize_observation: Whether to normalize observations, see `RunConfig`, as for the following ones.
        normalize_reward: Whether to normalize rewards, of training only.
        clip_actions: Whether to clip actions, after `transform`.
        frame_stack: Number of stacked observations, after the normalization.
        frame_skip: Number of repetitions of an action, before `transform`.
        atari: Whether to preprocess Atari games, before `transform`.
        gamma: Discount of the return whose scale normalizes rewards.
        observation_layout: Reading of observations, which decides what is a vector and what is an image.
        evaluation: The environment is for an evaluation: rewards are those of the environment, and an Atari game ends
            with its last life. `set_statistics` gives it the statistics of training.
        workers: Processes that step the environments; 0 for this process. Transforms are in this process always.
        team: The environment has groups of agents; the root gets ``reward``, the mean of this group, or of all if
            empty.
        options: Further arguments for the environment, for example ``render_mode="rgb_array"``.

    Raises:
        UnknownComponentError: If there is no such environment, wrapper or transform; the message names the nearest.
        MissingExtraError: If a library that the environment needs is not installed.
        ArgumentError: If wrappers are given for an environment that is not Gymnasium's, or `atari` or `workers` for
            one that they are not for.
        SpecError: If the observation has no such entries, there are several rewards, or `frame_stack` or a
            normalization does not fit the environment.
        RLError: If the environment does not take `env_kwargs`.

    Example:
        >>> make_env("CartPole-v1", 2, seed=0).batch_size
        torch.Size([2])
        >>> env = make_env("CartPole-v1", 2, seed=0, transform=["step-counter:{max_steps: 10}"])
        >>> "step_count" in env.observation_spec.keys()
        True
    """
    env, env_kwargs = named_env(env, env_kwargs)
    make, arguments = _resolve(env)
    given = {**(env_kwargs or {}), **options}
    by_id = make is load("env", "gym")
    if atari:
        given |= _atari_arguments(env, given, by_id=by_id)
    elif frame_skip > 1 and by_id:
        given |= _exclusive("frame_skip", given, {"frame_skip": frame_skip})
    wrappers = [_wrapper(text) for text in wrapper]
    with _explain(env, arguments, env_kwargs, atari=atari):
        if workers:
            made = _in_processes(make, arguments, num_envs, given, wrappers, workers, seed)
        else:
            made = _create_batch(make, arguments, num_envs, given, wrappers, seed)
        if atari:
            made = TransformedEnv(made, transforms.atari(episodic_life=not evaluation, clip_reward=False))
    made = _limit_steps(made, max_episode_steps, 1 if by_id else frame_skip)
    for text in transform:
        made = _add_transform(made, text)
    if team is None:
        made = _with_legal_actions(made)
    made = _observe(
        made,
        observation_indices,
        observation_layout,
        clip_actions=clip_actions,
        normalize=normalize_observation,
        frame_stack=frame_stack,
    )
    if not evaluation and (atari or normalize_reward):
        made = training_rewards(made, sign=atari, normalize=normalize_reward, gamma=gamma)
    if team is None:
        _check_one_reward(made)
    else:
        made = _with_team_reward(made, team)
    made.set_seed(seed)
    return made


def _observe(
    made: Env, indices: Sequence[int], layout: str, *, clip_actions: bool, normalize: bool, frame_stack: int
) -> Env:
    """Give an environment the observations and the actions of the settings."""
    if indices:
        made = _selected(made, indices)
    if clip_actions:
        made = _clipped(made)
    if normalize:
        made = normalized_observations(made, layout)
    if frame_stack > 1:
        made = stacked_frames(made, frame_stack, layout)
    return made


def _selected(made: Env, indices: Sequence[int]) -> Env:
    """Hide all but some elements of the observation from the policy."""
    try:
        return TransformedEnv(made, ObservationIndices(indices))
    except SpecError as error:
        raise SpecError(f"{error}: leave observation_indices out") from error


def _clipped(made: Env) -> Env:
    """Clip the one action of the environment to its bounds."""
    keys = leaf_keys(made.full_action_spec)
    spec: Any = made.full_action_spec[keys[0]] if len(keys) == 1 else None
    if type(spec) is not Bounded or not spec.dtype.is_floating_point:
        raise SpecError(
            f"clip_actions (--clip-actions) is for one action of bounded floats; the environment has"
            f" {', '.join(map(key_str, keys))} with {made.full_action_spec}: leave it out"
        )
    return TransformedEnv(made, ActionClipping(keys))


@contextmanager
def _explain(
    env: str, arguments: tuple[Any, ...], env_kwargs: Mapping[str, Any] | None, *, atari: bool
) -> Generator[None]:
    """Errors of the creation of an environment, with what to do about them."""
    try:
        yield
    except UnknownComponentError as error:
        if arguments != (env,):
            raise
        stop = "" if str(error).endswith((".", "?")) else "."
        raise UnknownComponentError(f"{error}{stop} {_no_component(env)}") from error
    except gymnasium.error.Error as error:  # of a malformed id, and what else Gymnasium rejects
        said = " ".join(str(error).split()).removesuffix(".")
        raise RLError(f"{env!r} cannot be created, Gymnasium says: {said}. Write an id as in CartPole-v1") from error
    except (TypeError, ArgumentError, SpecError) as error:
        if atari:
            raise ArgumentError(
                f"atari (--atari) is for games of the Arcade Learning Environment, such as ALE/Pong-v5, and {env!r}"
                f" does not work with it: {error}"
            ) from error
        if not isinstance(error, TypeError):
            raise
        given_kwargs = f" with env_kwargs={dict(env_kwargs)}" if env_kwargs else ""
        raise RLError(
            f"{env!r} cannot be created{given_kwargs}: {error}; pass what it takes with --env-kwargs '{{key: value}}'"
        ) from error


def _check_one_reward(env: Any) -> None:
    """Raise unless the environment has one reward and one group of done flags, under their usual names."""
    rewards, flags = leaf_keys(env.full_reward_spec), leaf_keys(env.full_done_spec)
    if rewards != [REWARD] or any(as_tuple(key)[:-1] for key in flags):
        listed = ", ".join(key_str(key) for key in [*rewards, *flags])
        raise SpecError(
            f"recipes train one agent with one {REWARD!r} and done flags beside it; the environment has {listed}. Train"
            " groups of agents with mappo, ippo, maddpg, qmix, vdn or iql-ma, or make them one with --transform"
        )


def _with_legal_actions(env: Any) -> Any:
    """Convert a mask that fits to booleans, by which random actions are legal."""
    keys = leaf_keys(env.full_action_spec)
    if mask_key(env) is None or len(keys) != 1 or not choices(action_of(env)[1]):
        return env
    return TransformedEnv(env, LegalActions(keys[0]))


def _with_team_reward(env: Any, group: str) -> Any:
    """Add a reward of all agents at the root."""
    rewards, flags = leaf_keys(env.full_reward_spec), leaf_keys(env.full_done_spec)
    if "done" not in flags or not rewards:
        listed = ", ".join(key_str(key) for key in [*rewards, *flags])
        raise SpecError(f"recipes of several agents need 'done' at the root; the environment has {listed}")
    if rewards == [REWARD]:
        return env
    chosen = [key for key in rewards if not group or as_tuple(key)[0] == group]
    if not chosen:
        groups = ", ".join(as_tuple(key)[0] for key in rewards)
        raise ArgumentError(f"report_group={group!r} (--report-group) is no group; the environment has {groups}")
    return TransformedEnv(env, TeamReward(chosen))


def env_options(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of `make_env` that a config holds, besides the name of the environment."""
    return {
        "max_episode_steps": config.max_episode_steps,
        "observation_indices": config.observation_indices,
        "env_kwargs": config.env_kwargs,
        "wrapper": config.wrapper,
        "transform": (*config.transform, *config.own_transforms),
        "normalize_observation": config.normalize_observation,
        "normalize_reward": config.normalize_reward,
        "clip_actions": config.clip_actions,
        "frame_stack": config.frame_stack,
        "frame_skip": config.frame_skip,
        "atari": config.atari,
        "gamma": config.gamma,
        "observation_layout": config.observation_layout,
        "team": config.report_group if config.multi_agent else None,
    }


def _atari_arguments(env: str, given: Mapping[str, Any], *, by_id: bool) -> dict[str, Any]:
    """Arguments of a game whose frames the preset processes."""
    if not by_id:
        raise ArgumentError(
            f"atari (--atari) is for games of the Arcade Learning Environment, such as ALE/Pong-v5, and {env!r} is none"
        )
    return _exclusive("atari", given, {"frameskip": 1, "obs_type": "grayscale", "info_keys": ["lives"]})


def _exclusive(name: str, given: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """`arguments`, if none of them is given.

    Raises:
        ArgumentError: If one is.
    """
    both = sorted(given.keys() & arguments.keys())
    if both:
        raise ArgumentError(
            f"env_kwargs has {', '.join(both)}, which {name} (--{name.replace('_', '-')}) sets: leave one of them out"
        )
    return arguments


def _limit_steps(env: Any, max_episode_steps: int, frame_skip: int) -> Any:
    """Repeat actions, with the environment's own step limit before and that of the user after the repetition."""
    own = int(getattr(type(env), "max_episode_steps", 0)) if isinstance(env, EnvBase) and not max_episode_steps else 0
    if own:
        env = TransformedEnv(env, StepCounter(max_steps=own))
    if frame_skip > 1:
        env = TransformedEnv(env, FrameSkipTransform(frame_skip))
    if max_episode_steps:
        env = TransformedEnv(env, StepCounter(max_steps=max_episode_steps))
    return env


def _add_transform(env: Any, text: str) -> Any:
    transform = _transform(text)
    try:
        made = TransformedEnv(env, transform)
        _ = made.observation_spec  # calls the transform, which may be no transform at all
    except TypeError as error:
        raise RLError(
            f"the transform {text!r} does not fit: {str(error).splitlines()[0]}; name a Transform, or a function from"
            " TensorDict to TensorDict"
        ) from error
    check_no_reward_statistics(transform, made, text)
    return made


def _transform(text: str) -> Any:
    """Call a class with the arguments; a function from TensorDict to TensorDict is used as it is."""
    found, arguments = find_call("transform", text)
    if not isinstance(found, type):
        return partial(found, **arguments) if arguments else found
    several = (name for name, one in _parameters(found).items() if one.kind is one.VAR_POSITIONAL)
    positional = arguments.pop(next(several, ""), ())  # *excluded_keys of ExcludeTransform
    try:
        return found(*positional, **arguments)
    except TypeError as error:
        raise ArgumentError(f"the transform {text!r} cannot be created: {error}; write NAME:{{key: value}}") from error


def _wrapper(text: str) -> Callable[[Any], Any]:
    name, _, _ = text.partition(":{")
    if ":" not in name:
        raise UnknownComponentError(f"the wrapper {text!r} names no module; write module:callable")
    found, arguments = find_call("wrapper", text)
    return partial(_wrap, found, arguments, text)


def _wrap(wrapper: Make, arguments: Mapping[str, Any], text: str, env: Any) -> Any:
    try:
        return wrapper(env, **arguments)
    except TypeError as error:
        raise RLError(
            f"the wrapper {text!r} cannot be created: {error}; pass its arguments as in module:callable:{{key: value}}"
        ) from error


def _resolve(env: str) -> tuple[Make, tuple[str, ...]]:
    """Return the callable that creates the environment, and its positional arguments."""
    if isinstance(env, GivenEnv):
        return env.make, ()
    _check_form(env)
    prefix, _, rest = env.partition("/")
    known = is_component("env", env)
    if known and not _takes_id(load("env", env)):
        return load("env", env), ()
    if rest and is_component("env", prefix):
        if not _may_take_id(load("env", prefix)):
            raise UnknownComponentError(
                f"the environment component {prefix!r} takes no id, so there is no {env!r}: write --env {prefix}"
            )
        return load("env", prefix), (rest,)
    if known:
        example = f", for example {env}/{_EXAMPLES[env]}" if env in _EXAMPLES else ""
        raise UnknownComponentError(f"the environment component {env!r} takes an id: write {env}/ID{example}")
    if ":" in env:
        module, _, name = env.partition(":")
        if ":" in name or not module:
            raise UnknownComponentError(f"the environment {env!r} has the wrong form; write module:Class or module:ID")
        if hasattr(import_named(module, f"env {env!r}"), name):
            return import_attribute(env, "env"), ()
    return load("env", "gym"), (env,)


def _check_form(env: str) -> None:
    """Raise about a name that nothing can have."""
    module, _, name = env.partition(":")
    stem = re.sub(r"\W+", "_", Path(module).stem) or "my_env"
    if module.endswith(".py") and "/" not in name:
        raise UnknownComponentError(
            f"the environment {env!r} names a file; in the folder of {Path(module).name} write"
            f" {stem}:{name if name.isidentifier() else 'MyEnv'}, module and class without .py"
        )
    component, _, rest = env.partition("/")
    if rest and is_component("env", component):
        return  # whose ids may be paths
    if env.startswith((".", "/", "~")) or not _ENV_ID.fullmatch(env) or env.endswith(("/", ":", ".")):
        example = f", for example gym/{_EXAMPLES['gym']}" if env == "gym/" else ""
        raise UnknownComponentError(
            f"the environment {env!r} has the wrong form; write a Gymnasium id (CartPole-v1), COMPONENT/ID,"
            f" module:Class or module:ID, without spaces{example}"
        )


def _no_component(env: str) -> str:
    """Return the message of the module or the registry: the nearest name, and plugins that are left out."""
    module, colon, name = env.partition(":")
    if colon:
        return f"And the module {module!r} has no {name!r}."
    try:
        load("env", env)
    except UnknownComponentError as error:
        return f"And {error}"
    return ""


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


def _create_batch(
    make: Make,
    arguments: tuple[str, ...],
    num_envs: int,
    options: dict[str, Any],
    wrappers: list[Callable[[Any], Any]],
    seed: int,
) -> Any:
    names = _parameters(make)
    options = {name: value for name, value in options.items() if name != "device" or name in names}
    if "categorical_action_encoding" in names:
        options.setdefault("categorical_action_encoding", True)
    if "wrappers" in names:
        options |= {"wrappers": wrappers} if wrappers else {}
        wrappers = []
    if "num_envs" in names:
        return _check_no_wrappers(_create(make, arguments, {**options, "num_envs": num_envs}, seed), wrappers)
    if "batch_size" in names:
        return _check_no_wrappers(_create(make, arguments, {**options, "batch_size": [num_envs]}, seed), wrappers)
    options, info_keys = _without_info_keys(names, options)
    first = _create(make, arguments, options, seed)
    if isinstance(first, gymnasium.Env):
        envs = [first, *(make(*arguments, **options) for _ in range(num_envs - 1))]
        return _gym_wrapper([reduce(_apply, wrappers, env) for env in envs], seed, info_keys)
    first = _check_no_wrappers(first, wrappers, info_keys)
    if not hasattr(first, "batch_size"):
        raise RLError(
            f"{getattr(make, '__name__', make)} returned a {type(first).__name__}, which is neither an environment of"
            " ours (rl.core.interfaces.Env) nor a gymnasium.Env; return one of these"
        )
    if len(first.batch_size) == 1 and first.batch_size.numel() == num_envs:
        return first
    if len(first.batch_size):
        raise RLError(
            f"{type(first).__name__} has the batch size {tuple(first.batch_size)} and takes no num_envs; set num_envs="
            f"{first.batch_size.numel()}, or give its constructor the argument num_envs"
        )
    rest = [make(*arguments, **options) for _ in range(num_envs - 1)]
    return _side_by_side([first, *rest])


def _in_processes(
    make: Make,
    arguments: tuple[str, ...],
    num_envs: int,
    options: dict[str, Any],
    wrappers: list[Callable[[Any], Any]],
    workers: int,
    seed: int,
) -> Any:
    one = partial(_single, make, arguments, options, wrappers, seed)
    one().close()  # an error of the environment is raised here, without the traceback of a worker
    return ParallelEnv(num_envs, one, processes=workers)


def _single(make: Make, arguments: tuple[str, ...], options: dict[str, Any], wrappers: list[Any], seed: int) -> Any:
    """One environment without a batch."""
    names = _parameters(make)
    size = names.get("num_envs")
    if size is not None and size.default is size.empty and "num_envs" not in options:
        _reject_workers(make, "creates a batch of environments itself")
    options = {name: value for name, value in options.items() if name != "device"}
    if "categorical_action_encoding" in names:
        options.setdefault("categorical_action_encoding", True)
    if "wrappers" in names:
        options |= {"wrappers": wrappers} if wrappers else {}
        wrappers = []
    options, info_keys = _without_info_keys(names, options)
    made = _create(make, arguments, options, seed)
    if isinstance(made, gymnasium.Env):
        return _gym_wrapper(reduce(_apply, wrappers, made), seed, info_keys)
    made = _check_no_wrappers(made, wrappers, info_keys)
    if getattr(made, "batch_size", None) != ():
        _reject_workers(make, "creates a batch or no environment of ours")
    return made


def _reject_workers(make: Make, why: str) -> NoReturn:
    raise ArgumentError(
        f"workers (--workers) puts single environments into processes, and {getattr(make, '__name__', make)} {why}:"
        " leave it out"
    )


def _without_info_keys(
    names: Mapping[str, inspect.Parameter], options: dict[str, Any]
) -> tuple[dict[str, Any], Iterable[str] | None]:
    """Split off ``info_keys`` where what creates the environment does not take it: `GymWrapper` does."""
    if "info_keys" in names or any(one.kind is one.VAR_KEYWORD for one in names.values()):
        return options, None
    return {name: value for name, value in options.items() if name != "info_keys"}, options.get("info_keys")


def _check_no_wrappers(env: Any, wrappers: list[Callable[[Any], Any]], info_keys: Iterable[str] | None = None) -> Any:
    if info_keys is not None:
        raise ArgumentError(f"info_keys is for Gymnasium environments, and {type(env).__name__} is none: leave it out")
    if wrappers:
        raise ArgumentError(
            f"a wrapper is for Gymnasium environments, and {type(env).__name__} is none; use a transform"
        )
    return env


def _apply(env: Any, wrapper: Callable[[Any], Any]) -> Any:
    return wrapper(env)


def _create(make: Make, arguments: tuple[str, ...], options: dict[str, Any], seed: int) -> Any:
    """Create an environment with `make`; with the mask of legal actions, if it is in ``info``."""
    made = make(*arguments, **options)
    found = {} if options.get("info_keys") is not None else mask_in_info(made, seed)
    if not found:
        return made
    made.close()
    if "info_keys" not in _parameters(make):
        raise SpecError(
            f"{getattr(make, '__name__', make)} returns an environment whose info has {MASK!r}, which policies have to"
            f" read: pass info_keys=[{MASK!r}] to its GymEnv or GymWrapper"
        )
    return make(*arguments, **options, info_keys=found)


def _gym_wrapper(env: Any, seed: int, info_keys: Iterable[str] | None) -> Any:
    """One environment of Gymnasium, or several, with the mask of legal actions if it is in ``info``."""
    made = GymWrapper(env, categorical_action_encoding=True, info_keys=info_keys)
    found = mask_in_info(made, seed) if info_keys is None else {}
    return GymWrapper(env, categorical_action_encoding=True, info_keys=found) if found else made


def _side_by_side(envs: list[Any]) -> Any:
    return SerialEnv(len(envs), [partial(_itself, env) for env in envs])


def _itself(env: Any) -> Any:
    return env


def make_collector(config: RunConfig, env: Env, policy: Any, seed: int, **settings: Any) -> Collector | RayCollector:
    """Return what collects ``[num_envs, T]``.

    Args:
        config: Settings of the run; with `ray` as many actors as `workers`, each with its share of the environments.
        env: Environment of training. With `ray` the actors create their own, and this one is closed.
        policy: Policy that collects.
        seed: Seed of the first environment.
        settings: Arguments of the collector.

    Raises:
        MissingExtraError: If `ray` is set and Ray is not installed.
    """
    if not config.ray:
        settings["policy_backend"] = None if config.policy_backend == "torch" else config.policy_backend
        return Collector(env, policy, storing_device=storing_device(config.device), **settings)
    env.close()
    share = config.num_envs // config.workers
    return RayCollector(
        [partial(_environments, config, share, seed + share * index) for index in range(config.workers)],
        policy,
        sync=True,
        cat_results=0,
        update_at_each_batch=True,
        restart=True,  # the nodes of a cluster come and go
        ray_init_config={} if config.ray == "local" else {"address": config.ray},
        postproc=partial(_learnable, device=config.device),
        **settings,
    )


def _environments(config: RunConfig, count: int, seed: int) -> Env:
    return make_env(config.env, count, seed=seed, **env_options(config))


def _learnable(batch: TensorDictBase, device: str) -> TensorDictBase:
    return batch.exclude("policy_version").to(device)
