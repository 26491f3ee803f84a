"""The commands ``rl train``, ``rl eval``, ``rl runs``, ``rl plot``, ``rl compare`` and others."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, get_args

from rl.core.errors import RLError
from rl.core.registry import components, load
from rl.trainers._arguments import (
    OneLineParser,
    UsageError,
    add_policy_options,
    add_trust,
    find_recipe,
    parse_train,
    unknown,
)
from rl.trainers._benchmark import read_cases
from rl.trainers._new import write_page
from rl.trainers._presets import describe_preset, presets_page
from rl.trainers._signals import SavedInterrupt
from rl.trainers._storage import RunFolder, only_run, package_versions, runs_in, this_process
from rl.trainers.config import OldNameWarning
from rl.trainers.display import DisplayMode

__all__ = [
    "benchmark",
    "compare",
    "completion",
    "dataset",
    "evaluate",
    "export",
    "hub",
    "new",
    "play",
    "plot",
    "presets",
    "runs",
    "train",
    "tune",
]


def _notes(command: Callable[[Sequence[str]], int]) -> Callable[[Sequence[str]], int]:
    """Let a command report each older name of a setting once, in a line."""

    @wraps(command)
    def run(argv: Sequence[str]) -> int:
        with warnings.catch_warnings():
            show, shown = warnings.showwarning, set[str]()

            def note(message: Warning | str, category: type[Warning], *rest: Any) -> None:
                if not issubclass(category, OldNameWarning):
                    show(message, category, *rest)
                elif str(message) not in shown:
                    shown.add(str(message))
                    sys.stderr.write(f"note: {message}\n")

            warnings.showwarning = note
            warnings.simplefilter("always", OldNameWarning)
            return command(argv)

    return run


@_notes
def train(argv: Sequence[str]) -> int:
    """Run ``rl train ARGUMENTS``.

    Returns:
        The exit status: 0, 2 if the arguments cannot be understood, 130 if the run was interrupted and saved.

    Raises:
        RLError: About everything else; nothing has been overwritten.
        SavedInterrupt: If a second Ctrl-C ended a run that has a checkpoint.
    """
    _search_current_folder()
    try:
        return _train(argv)
    except UsageError as error:
        sys.stderr.write(f"rl train: {error}\n")
        return 2
    except SavedInterrupt:
        raise
    except KeyboardInterrupt as error:
        raise RLError("interrupted; nothing was saved, so there is nothing to resume: train again") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise RLError(
                f"the run cannot be written: {error}; free some room, or choose another disk with --out"
            ) from error
        raise


def _train(argv: Sequence[str]) -> int:
    arguments = parse_train(argv)
    if isinstance(arguments, str):
        sys.stdout.write(arguments)
        return 0
    if arguments.config.learners > 1:
        from rl.trainers._learners import number_in_torchrun

        if number_in_torchrun(arguments.config) > 0:  # the first one talks
            arguments = replace(arguments, display="none")
    if arguments.display != "none":
        sys.stdout.write(f"rl train: {arguments.recipe.name} on {arguments.config.env}; importing libraries ...\n")
        if arguments.preset is not None:
            sys.stdout.write(f"{describe_preset(arguments.preset)}\n")
        if arguments.like is not None:
            sys.stdout.write("".join(f"note: {line}\n" for line in _other_versions(arguments.like)))
        sys.stdout.flush()
    if arguments.seeds:
        from rl.trainers._benchmark import train_seeds

        recipe, config = arguments.recipe, arguments.config
        options: dict[str, Any] = {"out": arguments.out, "display": arguments.display, "jobs": arguments.jobs}
        done = train_seeds(recipe, config, arguments.seeds, **options)
        return 130 if done is None else 0
    train = arguments.recipe.train
    result = train(arguments.config, out=arguments.out, resume=arguments.resume, display=arguments.display)
    return 130 if result.interrupted else 0


def _other_versions(run: str) -> list[str]:
    """Say which versions and which commit are not those of an earlier run, so that its numbers may differ."""
    history = RunFolder(run).read_history()
    then = history[-1] if history else {}
    now = {**package_versions(), "git_commit": this_process().get("git_commit")}
    before = {**then.get("versions", now), "git_commit": then.get("git_commit")}
    return [f"{name} is {now.get(name)}; {run} had {value}" for name, value in before.items() if now.get(name) != value]


def _search_current_folder() -> None:
    """Let modules of the current folder be imported, as `python` does: the command itself lies elsewhere."""
    if not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, "")


@_notes
def dataset(argv: Sequence[str]) -> int:
    """Run ``rl dataset record RUN NAME`` or ``rl dataset info NAME``.

    Returns:
        The exit status: 0.

    Raises:
        RLError: If there is no such run or data set, or it cannot be written.
    """
    parser = argparse.ArgumentParser(
        "rl dataset", description="Record data sets of trained policies, and describe them."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write episodes of a run's policy, or its replay buffer, for Minari")
    record.add_argument("run", metavar="RUN", help="run folder")
    record.add_argument("name", metavar="NAME", help="id of the data set, as in pendulum/medium-v0")
    record.add_argument("--frames", type=int, default=100_000, metavar="N", help="steps at least (default: 100000)")
    record.add_argument("--random", type=float, default=0.0, metavar="P", help="share of random actions (default: 0)")
    record.add_argument("--checkpoint", choices=("best", "last"), default="best")
    record.add_argument("--seed", type=int, default=0, metavar="N")
    record.add_argument("--replay", action="store_true", help="the replay buffer of the last checkpoint; plays nothing")
    add_trust(record)
    info = commands.add_parser("info", help="steps, episodes, returns and entries of a data set")
    info.add_argument("name", metavar="NAME", help="SOURCE:NAME, or the id of a Minari data set")
    options = parser.parse_args(list(argv))
    _search_current_folder()
    from rl.trainers._dataset_command import describe_dataset, record_dataset

    if options.command == "info":
        sys.stdout.write(describe_dataset(options.name))
        return 0
    if options.frames < 1 or not 0 <= options.random <= 1:
        parser.error("--frames is above 0, and --random in [0, 1]")
    line = record_dataset(
        options.run,
        options.name,
        frames=options.frames,
        random=options.random,
        checkpoint=options.checkpoint,
        seed=options.seed,
        replay=options.replay,
        trust=options.trust,
    )
    sys.stdout.write(f"{line}\n")
    return 0


def plot(argv: Sequence[str]) -> int:
    """Run ``rl plot ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there is no such run, its metrics cannot be read, or the plot cannot be written.
    """
    return _with_usage("plot", argv)


def runs(argv: Sequence[str]) -> int:
    """Run ``rl runs ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there is no such run.
    """
    return _with_usage("runs", argv)


@_notes
def tune(argv: Sequence[str]) -> int:
    """Run ``rl tune ARGUMENTS``.

    Returns:
        The exit status: 0, 2 if the arguments cannot be understood, 130 if the search was interrupted.

    Raises:
        RLError: If the environment does not fit, Optuna is not installed, or no trial is complete.
    """
    _search_current_folder()
    return _with_usage("tune", argv, "_tune_command")


def compare(argv: Sequence[str]) -> int:
    """Run ``rl compare ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there are no such runs, or they cannot be compared.
    """
    return _with_usage("compare", argv)


@_notes
def play(argv: Sequence[str]) -> int:
    """Run ``rl play ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there is no such run, or it can be neither shown nor written.
    """
    _search_current_folder()
    return _with_usage("play", argv, "_play_command")


@_notes
def hub(argv: Sequence[str]) -> int:
    """Run ``rl hub push|pull|card ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there is no such run, or it cannot be sent or received.
    """
    return _with_usage("hub", argv, "_hub")


def _with_usage(name: str, argv: Sequence[str], module: str = "_runs_command") -> int:
    """Run ``run_NAME`` of a module, which is imported now: it may import torch."""
    try:
        return getattr(import_module(f"rl.trainers.{module}"), f"run_{name}")(argv)
    except UsageError as error:
        sys.stderr.write(f"rl {name}: {error}\n")
        return 2


@_notes
def export(argv: Sequence[str]) -> int:
    """Run ``rl export ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If there is no such run, or its policy cannot be exported.
    """
    parser = OneLineParser(
        "rl export",
        description="Write a run's policy as files that run without rl, and compare them with it.",
    )
    parser.add_argument("run", metavar="RUN", help="the run folder that `rl train` printed")
    parser.add_argument(
        "--format",
        default="pt2",
        metavar="NAMES",
        help="of pt2 (torch.export), onnx and aoti (compiled, needs a C++ compiler), as in pt2,onnx (default: pt2)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the files (default: export in the run folder)")
    parser.add_argument("--checkpoint", choices=("best", "last"), default="best")
    add_trust(parser)
    _search_current_folder()
    try:
        options = parser.parse_args(list(argv))
    except UsageError as error:
        sys.stderr.write(f"rl export: {error}\n")
        return 2
    from rl.trainers.export import export_policy

    formats = [name.strip() for name in options.format.split(",") if name.strip()]
    done = export_policy(options.run, options.out, formats=formats, checkpoint=options.checkpoint, trust=options.trust)
    sys.stdout.write("".join(f"{path}: the same actions as the policy\n" for path in done.values()))
    return 0


@_notes
def presets(argv: Sequence[str]) -> int:
    """Run ``rl presets ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.
    """
    parser = OneLineParser("rl presets", description="List the presets of recipes, and the returns measured with them.")
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="show all settings of its presets")
    _search_current_folder()
    try:
        options = parser.parse_args(list(argv))
        named = None if options.recipe is None else find_recipe(options.recipe)
    except UsageError as error:
        sys.stderr.write(f"rl presets: {error}\n")
        return 2
    recipes = [load("recipe", component.name) for component in components("recipe")] if named is None else [named]
    sys.stdout.write(presets_page(recipes, settings=named is not None))
    return 0


def completion(argv: Sequence[str]) -> int:
    """Run ``rl completion SHELL``, or ``rl completion words INDEX WORDS``, which the scripts of shells call.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.
    """
    from rl.trainers import _completion

    if argv[:1] == ["words"] and len(argv) > 1 and argv[1].isdecimal():
        _search_current_folder()
        sys.stdout.writelines(f"{word}\n" for word in _completion.complete(argv[1:]))
        return 0
    parser = OneLineParser(
        "rl completion",
        description="Print the script with which a shell completes the commands and options of rl.",
        epilog=_completion.INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_completion.SCRIPTS))
    try:
        options = parser.parse_args(list(argv))
    except UsageError as error:
        sys.stderr.write(f"rl completion: {error}\n")
        return 2
    sys.stdout.write(_completion.SCRIPTS[options.shell])
    return 0


def new(argv: Sequence[str]) -> int:
    """Run ``rl new recipe ARGUMENTS``; ``rl new algorithm`` is the same.

    Returns:
        The exit status: 0, or 2 if the arguments cannot be understood.

    Raises:
        RLError: If the file exists, or cannot be a module.
    """
    parser = OneLineParser("rl new", description="Copy a recipe into one file to change: settings, policy, loss.")
    parser.add_argument("what", choices=["recipe", "algorithm"], metavar="recipe", help="`algorithm` is the same")
    parser.add_argument("file", metavar="FILE", help="a new file, as my_td3.py")
    parser.add_argument(
        "--like", metavar="RECIPE", default="ppo", help="the algorithm that it begins as (default: ppo)"
    )
    _search_current_folder()
    try:
        options = parser.parse_args(list(argv))
        like = find_recipe(options.like)
    except UsageError as error:
        sys.stderr.write(f"rl new: {error}\n")
        return 2
    path = write_page(options.file, like)
    sys.stdout.write(f"{path} has all of {like.name}; to train with it: rl train {_as_path(path)} --env ID\n")
    return 0


def _as_path(path: Path) -> str:
    return str(path) if path.parts[1:] else f"./{path}"


@_notes
def benchmark(argv: Sequence[str]) -> int:
    """Run ``rl benchmark ARGUMENTS``.

    Returns:
        The exit status: 0, 1 if a published run is not reproduced, 2 if the arguments or the file cannot be
        understood, 130 if a run was interrupted.

    Raises:
        RLError: If a run fails, or the folder contains runs with other settings.
    """
    _search_current_folder()
    parser = OneLineParser(
        "rl benchmark",
        description="Train all cases of a YAML file with all their seeds; write results.json, results.md and plots."
        " Runs that are complete are not repeated.",
    )
    parser.add_argument("file", metavar="FILE", help="YAML: seeds, and a list of cases")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="train this case; may be repeated")
    parser.add_argument("--out", metavar="DIR", help="folder of the runs (default: the name of FILE without .yaml)")
    parser.add_argument(
        "--check",
        action="store_true",
        help="train one seed of a short case again, or of each --case, and compare with the published returns",
    )
    parser.add_argument("--display", choices=get_args(DisplayMode), default="auto", help="as in rl train")
    add_trust(parser)
    try:
        options = parser.parse_args(list(argv))
        if options.check and options.out is not None:
            raise UsageError("--check keeps no runs: remove --out")
        cases, others = read_cases(options.file, options.trust, options.case)
    except UsageError as error:
        sys.stderr.write(f"rl benchmark: {error}\n")
        return 2

    from rl.trainers._benchmark import check_published, run_cases

    if options.check:
        return check_published(cases, named=bool(options.case), display=options.display)
    out = Path(options.file).with_suffix("").name if options.out is None else options.out
    return 0 if run_cases(cases, Path(out), kept=others, display=options.display) else 130


@_notes
def evaluate(argv: Sequence[str]) -> int:
    """Run ``rl eval ARGUMENTS``.

    Returns:
        The exit status: 0, or 2 if the arguments make no sense.

    Raises:
        RLError: If there is no such run, its checkpoint is damaged, its device is not here, or the video cannot
            be written.
    """
    _search_current_folder()
    try:
        options = _parse_eval(argv)
    except UsageError as error:
        sys.stderr.write(f"rl eval: {error}\n")
        return 2

    from rl.trainers._play import record_video
    from rl.trainers._storage import check_video

    if options.video:
        check_video(options.video)
    runs = [only_run(options.run, "--video shows one")] if options.video else runs_in(options.run)
    means: list[float] = []
    for run in runs:
        text, mean, trained = _evaluate_run(run.path, options)
        sys.stdout.write(f"{run.path}: {text}\n" if len(runs) > 1 else f"{text}\n")
        means.append(mean)
        if options.video and trained is not None:  # of the only run
            seed = trained.config.seed if options.seed is None else options.seed
            count = record_video(trained, options.video, seed=seed, deterministic=options.deterministic)
            sys.stdout.write(f"{options.video}: {count} frames\n")
    if len(runs) > 1:
        sys.stdout.write(f"{len(runs)} seeds: median {median(means):.2f} (from {min(means):.2f} to {max(means):.2f})\n")
    return 0


def _evaluate_run(path: Path, options: argparse.Namespace) -> tuple[str, float, Any]:
    """Play episodes of a run; return the result as a text, the mean return, and the run if its policy is of an env."""
    from rl.trainers.evaluation import evaluate as returns_of
    from rl.trainers.evaluation import load_config, load_run, play_fresh

    how: dict[str, Any] = {"seed": options.seed, "deterministic": options.deterministic}
    recipe, config = load_config(path, options.trust)
    successes = trained = None
    if recipe.evaluate is None:
        trained = load_run(path, device=options.device, trust=options.trust)
        which = f"{trained.checkpoint} policy, {trained.frames} frames"
        returns, successes = play_fresh(trained, options.episodes, **how)
    else:
        if options.video or options.device:
            raise RLError(f"runs of {recipe.name} are evaluated without --video and --device")
        which = f"last policy, {config.total_frames} frames"
        returns = returns_of(path, episodes=options.episodes, trust=options.trust, **how)
    episodes = "1 episode" if options.episodes == 1 else f"{options.episodes} episodes"
    mean, std = float(returns.mean()), float(returns.std(correction=0))
    rate = "" if successes is None else f", success rate {float(successes.double().mean()):.2f}"
    return f"return {mean:.2f} ± {std:.2f}{rate} over {episodes} ({which})", mean, trained


def _parse_eval(argv: Sequence[str]) -> argparse.Namespace:
    parser = _eval_parser()
    known = [name.removeprefix("--") for name in parser._option_string_actions if name.startswith("--")]  # noqa: SLF001
    for word in argv:
        option = word.partition("=")[0]
        if option.startswith("--") and option[2:] not in known:
            raise UsageError(unknown("option", option[2:], known, dashed=True, more="rl eval --help"))
    options = parser.parse_args(list(argv))
    if options.episodes < 1:
        raise UsageError(f"--episodes must be above 0, got {options.episodes}")
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise UsageError(f"--seed must be in [0, 2147483647], got {options.seed}")
    return options


def _eval_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        "rl eval",
        description="Play episodes with the best policy of a run; print mean and deviation of returns.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="the run folder that `rl train` printed, or the one of --seeds")
    parser.add_argument("--episodes", type=int, metavar="N", default=20, help="how many (default: 20)")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="of the environments (default: one that training has not used)"
    )
    parser.add_argument("--video", metavar="FILE", help="write one episode to this .mp4 or .gif")
    add_policy_options(parser)
    return parser
