"""The command ``rl tune``."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.trainers._arguments import OneLineParser, TrainArguments, UsageError, find_recipe, parse_train
from rl.trainers._runs import as_json
from rl.trainers._runs_command import print_table
from rl.trainers._space import space_of
from rl.trainers._storage import file_name
from rl.trainers._tune import Study
from rl.trainers.config import config_fields, old_names

#: trials in the table
SHOWN = 10


def run_tune(argv: Sequence[str]) -> int:
    """Run ``rl tune ARGUMENTS``.

    Raises:
        UsageError: If the arguments cannot be understood.
        RLError: If the environment does not fit, Optuna is not installed, or no trial is complete.
    """
    words = list(argv)
    name = words.pop(0) if words and not words[0].startswith("-") else "ppo"
    parser = _parser(name)
    options, rest = parser.parse_known_args(words)
    if options.help:
        sys.stdout.write(_help_page(parser, name))
        return 0
    if options.trials < 1:
        raise UsageError(f"--trials must be above 0, got {options.trials}")
    arguments = _parse(name, options, rest)
    recipe, config = arguments.recipe, arguments.config
    if options.prune and recipe.evaluate is not None:
        raise UsageError(f"--prune compares evaluations in an environment, and {recipe.name} has none: leave it out")
    typed = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")]
    typed = [old_names(type(config)).get(one, one) for one in typed]
    space = space_of(config, options.space, only=options.only, typed=typed)
    quiet = options.json or arguments.display == "none"
    if not quiet:
        _write(f"rl tune: {recipe.name} on {config.env}, seeds {', '.join(map(str, arguments.seeds))};")
        _write(" importing libraries ...\n")
        _write("".join(f"  {one.name:<{max(len(other.name) for other in space)}}  {one.text}\n" for one in space))
    file = _file(recipe.name, config.env) if options.study is None else Path(options.study)
    study = Study(file, recipe, config, space, arguments.seeds, report=lambda trial: quiet or _report(study, trial))
    _check_environment(arguments)
    over = study.run(options.trials, jobs=arguments.jobs, prune=options.prune)
    if over or study.ranking:
        preset = study.write_preset()
        _write(as_json(_as_values(study, preset))) if options.json else _show(study, preset)
    if not over and not options.json:
        _write(f"interrupted, and saved; the same command with --study {file} continues\n")
    return 0 if over else 130


def _parser(name: str) -> argparse.ArgumentParser:
    parser = OneLineParser(
        "rl tune",
        usage=f"rl tune {name} [--OPTION VALUE ...] [--trials N] [--seeds 0-2] [--jobs N] [--study FILE] [--prune]",
        description="Search for good settings of a recipe. The value of a trial is the median return over seeds. The"
        " result is a preset for `rl train --preset FILE`. Options of rl train are the same in all trials.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this page, and what is searched")
    parser.add_argument(
        "--trials", type=int, default=20, metavar="N", help="trials of the study, earlier ones included (default: 20)"
    )
    parser.add_argument("--seeds", default="0-2", metavar="SEEDS", help="seeds of each trial (default: 0-2)")
    parser.add_argument("--jobs", default="1", metavar="N", help="runs at a time, in processes (default: 1)")
    parser.add_argument(
        "--study",
        metavar="FILE",
        help="journal of the study, which continues if it is there, also in several processes"
        " (default: tune/RECIPE-ENV-COUNTER.journal); runs and result are in the folder of that name without .journal",
    )
    parser.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="NAME=RANGE",
        help="what to search for a setting: low..high, low..high:log, or values a,b,c; may be repeated",
    )
    parser.add_argument("--only", metavar="NAMES", help="search these settings alone, as learning_rate,gamma")
    parser.add_argument(
        "--prune",
        action="store_true",
        help="end runs whose best evaluation is below the median of other trials with the same seed and frames",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _help_page(parser: argparse.ArgumentParser, name: str) -> str:
    recipe = find_recipe(name)
    declared = [field for field in config_fields(recipe.config) if field.search]
    width = max((len(field.name) for field in declared), default=0)
    lines = [f"  {field.name:<{width}}  {field.search}" for field in declared] or ["  nothing: name it with --space"]
    return f"{parser.format_help()}\nsearched of {recipe.name}, but for what is typed:\n" + "\n".join(lines) + "\n"


def _parse(name: str, options: argparse.Namespace, rest: Sequence[str]) -> TrainArguments:
    """Return the arguments of rl train that all trials share.

    Raises:
        UsageError: If they cannot be understood, or an option has no meaning here.
    """
    for word in rest:
        option = word.partition("=")[0]
        if option in ("--out", "--resume"):
            raise UsageError(
                f"{option} is of one run: remove it; --study FILE names where runs are, and continues them"
            )
    arguments = parse_train([name, *rest, f"--seeds={options.seeds}", f"--jobs={options.jobs}"])
    assert isinstance(arguments, TrainArguments)
    study = options.study
    if study is not None and (not Path(study).suffix or Path(study).is_dir()):
        raise UsageError(f"--study {study} must be a file with an ending, as {Path(study).name or 'study'}.journal")
    return arguments


def _file(recipe: str, env: str) -> Path:
    """Return the first name of a study that is free."""
    names = (Path("tune") / f"{file_name(recipe)}-{file_name(env)}-{count}.journal" for count in itertools.count(1))
    return next(path for path in names if not path.exists() and not path.with_suffix("").exists())


def _check_environment(arguments: TrainArguments) -> None:
    """Raise if no trial can begin, before anything is written.

    Raises:
        RLError: If there is no such device, environment or data set, or the recipe does not train its actions.
    """
    from rl.trainers._checks import check_dataset_named
    from rl.trainers._device import check_device
    from rl.trainers.datasets import open_dataset
    from rl.trainers.envs import env_options, make_env

    recipe, config = arguments.recipe, arguments.config
    check_device(config.device)
    if recipe.evaluate is None:
        name: str | None = getattr(config, "dataset", None)  # of recipes that learn from one
        if name is not None:
            check_dataset_named(recipe.name, name)
        env = make_env(config.env, config.num_envs, seed=0, device=config.device, **env_options(config))
        try:
            recipe.make_policy(config, env)
            if name is not None:
                open_dataset(name, env, 1, config.env)
        finally:
            env.close()


def _report(study: Study, trial: Any) -> None:
    """Print a line about a trial that has ended."""
    state = trial.state.name
    if state == "COMPLETE":
        best = study.ranking[0]
        how = f"return {trial.value:.4g}" + (", the best" if best.number == trial.number else "")
    elif state == "PRUNED":
        how = f"pruned in seed {trial.user_attrs['pruned_at']}"
    else:
        how = f"failed, {trial.user_attrs['error']}"
    _write(f"trial {trial.number}: {how} ({_options(study.settings(trial))})\n")


def _options(settings: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {_text(value)}" for name, value in settings.items())


def _as_values(study: Study, preset: Path) -> dict[str, Any]:
    best = study.ranking[0]
    trials = [
        {
            "trial": one.number,
            "state": one.state.name.lower(),
            "value": one.value if one.state.name == "COMPLETE" else None,
            "returns": dict(one.user_attrs.get("returns", [])),
            "settings": study.settings(one),
            "folder": str(study.folder / one.user_attrs["folder"]),
            "error": one.user_attrs.get("error"),
        }
        for one in study.trials
    ]
    return {
        "study": str(study.file),
        "recipe": study.recipe.name,
        "env": study.config.env,
        "seeds": study.seeds,
        "best": best.number,
        "preset": str(preset),
        "importance": study.importance(),
        "trials": trials,
    }


def _show(study: Study, preset: Path) -> None:
    """Print the best trials, and what is next."""
    importance = study.importance()
    names = [*importance, *(one.name for one in study.space if one.name not in importance)]
    states = [one.state.name for one in study.trials]
    names_of = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    counts = ", ".join(f"{states.count(state)} {name}" for state, name in names_of.items() if state in states)
    _write(f"\n{study.file}: {counts}\n\n")
    rows: list[dict[str, str]] = []
    for one in study.ranking[:SHOWN]:
        settings = study.settings(one)
        returns = dict(one.user_attrs["returns"])
        row = {"trial": str(one.number), "return": f"{one.value:.4g}"}
        row["seeds"] = " ".join(f"{returns[seed]:.4g}" for seed in study.seeds)
        rows.append(row | {name: _text(settings[name]) for name in names})
    print_table(rows, fit=True)
    if importance:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in importance.items())
        _write(f"\nimportance: {shares}\n")
    command = f"rl train {study.recipe.reference} --env {study.config.env} --preset {preset}"
    _write(f"\ntrain with the best settings:\n  {command}\n")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
