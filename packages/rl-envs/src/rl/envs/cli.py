"""The command ``rl suggest-workers``."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from time import perf_counter
from typing import Any

from rl.core.errors import UnknownComponentError
from rl.core.registry import components, load

__all__ = ["suggest_workers"]

STEPS, REPEATS = 20, 3  # of a rollout; of each measurement


def suggest_workers(argv: Sequence[str]) -> int:
    """Run ``rl suggest-workers ARGUMENTS``: measure an environment in this process and in worker processes.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: if there is no such environment, or it cannot be made.
    """
    parser = argparse.ArgumentParser(
        "rl suggest-workers",
        description="Measure how fast environments run in this process (SerialEnv) and in worker processes"
        " (ParallelEnv), with random actions and resets, and say how many processes pay on this machine.",
    )
    parser.add_argument("env", metavar="ENV", help="name of an environment, module:function that makes one, or an id")
    parser.add_argument("--num-envs", type=_positive, default=16, metavar="N", help="environments (default: 16)")
    parser.add_argument("--frames", type=_positive, default=5000, metavar="N", help="of each measurement (5000)")
    parser.add_argument("--max-processes", type=_positive, metavar="P", help="most processes (default: cores)")
    options = parser.parse_args(list(argv))

    from rl.envs.batched import ParallelEnv, SerialEnv
    from rl.envs.batched._parallel import cores

    make, count = _maker(options.env), options.num_envs
    most = min(options.max_processes or cores(), count)
    rounds = max(1, options.frames // (count * STEPS * REPEATS))
    speeds = [_frames_per_second(partial(SerialEnv, count, make), rounds)]
    speeds += [_frames_per_second(partial(ParallelEnv, count, make, processes=n), rounds) for n in range(1, most + 1)]
    sys.stdout.write("\n".join(_report(options.env, count, speeds)) + "\n")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _maker(env: str) -> Callable[[], Any]:
    """The function that makes an environment with this name."""
    if env in {component.name for component in components("env")}:
        return load("env", env)
    if ":" in env:
        sys.path.insert(0, "")  # the current folder, as for `python`: the command itself is elsewhere
        try:
            return resolve_name(env)
        except (ImportError, AttributeError) as error:
            raise UnknownComponentError(f"there is no environment {env!r}: {error}. Write module:function") from error
    return partial(load("env", "gym"), env)


def _frames_per_second(make: Callable[[], Any], rounds: int) -> float:
    """Median over some repeats of `rounds` rollouts."""
    env = make()
    try:
        root = env.reset()
        speeds: list[float] = []
        for repeat in range(REPEATS + 1):  # the first one is to warm up
            start = perf_counter()
            for _ in range(rounds if repeat else 1):
                data = env.rollout(STEPS, break_when_any_done=False, auto_reset=False, tensordict=root)
                root = env.step_mdp(data[..., -1])
            speeds.append(rounds * STEPS * env.batch_size.numel() / (perf_counter() - start))
    finally:
        env.close()
    return statistics.median(speeds[1:])


def _report(env: str, count: int, speeds: Sequence[float]) -> Iterator[str]:
    """The table and the advice.

    Args:
        env: its name.
        count: number of environments.
        speeds: frames a second in this process, then with 1, 2, ... worker processes.
    """
    serial = speeds[0]
    yield f"{env}: {1e6 / serial:.0f} us a frame in this process, {count} environments, random actions, resets included"
    yield ""
    yield "processes        frames/s  speed-up"
    yield "---------------  --------  --------"
    for number, speed in enumerate(speeds):
        name = str(number) if number else "0 (SerialEnv)"
        yield f"{name:<15}  {speed:>8,.0f}  {speed / serial:>8.2f}"
    yield ""
    best = next(number for number, speed in enumerate(speeds) if speed >= 0.9 * max(speeds))
    if best:
        yield f"Use ParallelEnv({count}, make, processes={best}): {speeds[best] / serial:.1f} times as fast."
    else:
        yield "Worker processes do not pay for this environment on this machine: use SerialEnv, or GymEnv(num_envs=)."
