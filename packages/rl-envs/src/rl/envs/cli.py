"""The command ``rl suggest-workers``."""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pkgutil import resolve_name
from time import perf_counter
from typing import Any

from rl.core.errors import UnknownComponentError
from rl.core.registry import components, load

__all__ = ["suggest_workers"]

STEPS, REPEATS = 20, 5  # of a rollout; of each measurement


def suggest_workers(argv: Sequence[str]) -> int:
    """Run ``rl suggest-workers ARGUMENTS``: measure an environment in this process and in worker processes.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there is no such environment, or it cannot be created.
    """
    parser = argparse.ArgumentParser(
        "rl suggest-workers",
        description="Measure how fast environments run in this process, as `rl train` creates them, and in worker"
        " processes (ParallelEnv, --workers), with random actions and resets, and say how many processes pay here.",
    )
    parser.add_argument("env", metavar="ENV", help="name or id of an environment, module:Class or module:function")
    parser.add_argument("--num-envs", type=_positive, default=16, metavar="N", help="environments (default: 16)")
    parser.add_argument("--frames", type=_positive, default=5000, metavar="N", help="of each measurement (5000)")
    parser.add_argument("--max-processes", type=_positive, metavar="P", help="most processes (default: cores)")
    options = parser.parse_args(list(argv))

    from rl.envs.batched import ParallelEnv
    from rl.envs.batched._parallel import cores

    make, count = _maker(options.env), options.num_envs
    most = min(options.max_processes or cores(), count)
    numbers = sorted({1 << power for power in range(most.bit_length())} | {most})
    with ExitStack() as stack:
        envs: list[Any] = []
        for number in (0, *numbers):
            envs.append(ParallelEnv(count, partial(_single, make), processes=number) if number else _batch(make, count))
            stack.callback(envs[-1].close)
        found = _frames_per_second(envs, max(1, options.frames // (count * STEPS * REPEATS)))
    kind = type(envs[0]).__name__
    sys.stdout.write("\n".join(_report(options.env, kind, count, dict(zip((0, *numbers), found, strict=True)))) + "\n")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _maker(env: str) -> Callable[[], Any]:
    """Return the function that creates an environment with this name."""
    known, (prefix, _, rest) = {component.name for component in components("env")}, env.partition("/")
    if env in known:
        return load("env", env)
    if prefix in known and rest:
        return partial(load("env", prefix), rest)
    if ":" in env:
        sys.path.insert(0, "")  # the current folder, as for `python`: the command itself is elsewhere
        try:
            return resolve_name(env)
        except (ImportError, AttributeError, ValueError) as error:
            if not _is_registered(env):  # module:ID
                raise UnknownComponentError(
                    f"there is no environment {env!r}: {error}. Write module:Class or module:function"
                ) from error
    return partial(load("env", "gym"), env)


def _is_registered(env: str) -> bool:
    """Whether a module registers a Gymnasium id, of ``module:ID``."""
    module, _, name = env.partition(":")
    try:
        import gymnasium

        import_module(module)
    except ImportError:
        return False
    return name in gymnasium.registry


def _arguments(make: Callable[..., Any]) -> set[str]:
    """Names of the arguments of `make`; none if it does not say."""
    try:
        return set(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return set()


def _integers(names: set[str]) -> dict[str, bool]:
    """Return the argument for actions that are integers, as `rl train` passes it."""
    return {"categorical_action_encoding": True} if "categorical_action_encoding" in names else {}


def _single(make: Callable[..., Any]) -> Any:
    """One environment, of Gymnasium or of ours."""
    made = make(**_integers(_arguments(make)))
    return _wrap_gymnasium(made) if _is_gymnasium(made) else made


def _batch(make: Callable[..., Any], count: int) -> Any:
    """Environments in this process, as `rl train` makes them: as a batch if they have one, else one after the other."""
    from rl.envs.batched import SerialEnv

    names = _arguments(make)
    given: dict[str, Any] = _integers(names)
    if "num_envs" in names:
        return make(num_envs=count, **given)
    if "batch_size" in names:
        return make(batch_size=[count], **given)
    first = make(**given)
    if _is_gymnasium(first):
        return _wrap_gymnasium([first, *(make() for _ in range(count - 1))])
    first.close()
    return SerialEnv(count, partial(_single, make))


def _is_gymnasium(env: Any) -> bool:
    return hasattr(env, "observation_space")


def _wrap_gymnasium(env: Any) -> Any:
    from rl.envs.gym import GymWrapper

    return GymWrapper(env, categorical_action_encoding=True)


def _frames_per_second(envs: Sequence[Any], rounds: int) -> list[float]:
    """Median speed of each environment over some repeats of `rounds` rollouts.

    They take turns, so that other work on the machine slows all of them down.
    """
    roots = [env.reset() for env in envs]
    speeds: list[list[float]] = [[] for _ in envs]
    for repeat in range(REPEATS + 1):  # the first one is to warm up
        for number, env in enumerate(envs):
            start = perf_counter()
            for _ in range(rounds if repeat else 1):
                data = env.rollout(STEPS, break_when_any_done=False, auto_reset=False, tensordict=roots[number])
                roots[number] = env.step_mdp(data[..., -1])
            if repeat:
                speeds[number].append(rounds * STEPS * env.batch_size.numel() / (perf_counter() - start))
    return [statistics.median(found) for found in speeds]


def _report(env: str, kind: str, count: int, speeds: Mapping[int, float]) -> Iterator[str]:
    """Return the table and the advice.

    Args:
        env: Name of the environment.
        kind: Class of the environments in this process.
        count: Number of environments.
        speeds: Frames a second, by number of worker processes; 0 is this process.
    """
    serial = speeds[0]
    yield f"{env}: {1e6 / serial:.0f} us a frame in this process, {count} environments, random actions, resets included"
    yield ""
    first = f"0 ({kind})"
    width = max(len("processes"), len(first))
    yield f"{'processes':<{width}}  frames/s  speed-up"
    yield f"{'-' * width}  --------  --------"
    for number, speed in speeds.items():
        yield f"{str(number) if number else first:<{width}}  {speed:>8,.0f}  {speed / serial:>8.2f}"
    yield ""
    best = next(number for number, speed in speeds.items() if speed >= 0.9 * max(speeds.values()))
    if best:
        yield (
            f"Use ParallelEnv({count}, make, processes={best}), or rl train --num-envs {count} --workers {best}:"
            f" {speeds[best] / serial:.1f} times as fast."
        )
    else:
        yield f"Worker processes do not pay for this environment on this machine: use {kind} in this process."
