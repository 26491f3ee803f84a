"""Several runs: of seeds, and of the cases of a benchmark."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from rl.core.errors import RLError
from rl.trainers._arguments import UsageError, find_recipe, parse_train, read_yaml
from rl.trainers._named import check_trusted
from rl.trainers._report import plot_seeds
from rl.trainers._storage import (
    RunFolder,
    check_name,
    file_name,
    new_folder_of_runs,
    package_versions,
    settings_of,
    write_atomic,
)
from rl.trainers.algorithm import Algorithm, TrainResult
from rl.trainers.config import RunConfig, config_fields, with_new_names
from rl.trainers.display import DisplayMode, make_display


@dataclass(frozen=True)
class Case:
    """One line of a benchmark.

    Args:
        name: Name of its folder.
        recipe: The recipe.
        config: Settings; the seed is replaced.
        seeds: Seeds of its runs.
        reference: Return that it is compared with; None without one.
        source: Origin of that return.
    """

    name: str
    recipe: Algorithm
    config: RunConfig
    seeds: tuple[int, ...]
    reference: float | None = None
    source: str = ""


_KEYS = ("name", "recipe", "env", "frames", "seeds", "preset", "settings", "reference", "source")


def read_cases(path: str, trust: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[list[Case], list[str]]:
    """Read the cases of a file.

    Args:
        path: YAML with ``cases``, a list of mappings with ``recipe`` and ``env`` and optionally ``frames``, ``seeds``,
            ``preset``, ``settings`` (options of the recipe), ``reference``, ``source`` and ``name``
            (``RECIPE-ENV`` if absent), and ``seeds`` for cases without their own, ``[0, 1, 2]`` if absent.
        trust: Modules that the cases may name.
        names: Names of the cases to read; all of them without names. The others may name any module.

    Returns:
        The cases in the order of the file, and the names of the others.

    Raises:
        UsageError: If the file cannot be read, a case is wrong, or there is no case of a name.
        RLError: If it names a module that is not trusted.
    """
    values = read_yaml(path)
    given = values.get("cases")
    if set(values) - {"seeds", "cases"} or not isinstance(given, list) or not given:
        raise UsageError(f"{path} has {', '.join(values) or 'nothing'}; write seeds: [0, 1, 2] and cases: [...]")
    cases: list[Case] = []
    known: list[str] = []
    for number, entry in enumerate(given, start=1):
        try:
            known.append(_name(entry))
            if names and known[-1] not in names:
                continue
            case = _case(entry, values.get("seeds", [0, 1, 2]), trust, path)
            check_trusted(settings_of(case.recipe.reference, case.config), trust, path)
            cases.append(case)
        except (UsageError, TypeError, ValueError) as error:
            raise UsageError(f"{path}, case {number}: {error}") from error
    twice = sorted({name for name in known if known.count(name) > 1})
    if twice:
        raise UsageError(f"{path} has several cases {', '.join(twice)}: give each a name")
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1) or known
            raise UsageError(f"there is no case {name}; did you mean {', '.join(close)}?")
    chosen = {case.name for case in cases}
    return cases, [name for name in known if name not in chosen]


def _name(entry: Any) -> str:
    if not isinstance(entry, Mapping) or not {"recipe", "env"} <= entry.keys() or entry.keys() - {*_KEYS}:
        raise UsageError(f"a case has recipe and env, and may have {', '.join(_KEYS)}; got {entry}")
    return file_name(str(entry.get("name", f"{entry['recipe']}-{entry['env']}")))


def _case(entry: Mapping[str, Any], seeds: Sequence[int], trust: Sequence[str], path: str) -> Case:
    check_trusted({"recipe": entry["recipe"]}, trust, path)
    words = [str(entry["recipe"]), *map(str, entry.get("settings") or {})]
    other = sorted({"config", "display", "out", "resume", "seed", "seeds", "trust"} & {*words[1:]})
    other += [word for word in words if not re.fullmatch(r"[\w.:][\w.:-]*", word)]  # such as seed=1, or --out
    if other:
        raise UsageError(f"settings has {', '.join(other)}, which is no setting of a recipe: remove it")
    settings: dict[str, Any] = {"env": entry["env"], **(entry.get("settings") or {})}
    settings |= {"total_frames": entry["frames"]} if "frames" in entry else {}
    settings |= {"preset": entry["preset"]} if "preset" in entry else {}
    settings["seeds"] = ",".join(map(str, entry.get("seeds", seeds)))
    options = [word for name, value in settings.items() for word in _words(name, value)]
    arguments = parse_train([str(entry["recipe"]), *options])
    assert not isinstance(arguments, str)
    reference = entry.get("reference")
    return Case(
        _name(entry),
        arguments.recipe,
        arguments.config,
        arguments.seeds,
        None if reference is None else float(reference),
        str(entry.get("source", "")),
    )


#: settings whose option is given once for each value
_REPEATED = frozenset(field.name for field in config_fields(RunConfig) if field.repeated)


def _words(name: str, value: Any) -> list[str]:
    values = value if name in _REPEATED and isinstance(value, list) else [value]
    return [f"--{name}={one if isinstance(one, str) else json.dumps(one)}" for one in values]


#: entries of a summary of which that of several runs has median and range
SPREAD_METRICS = ("best/return_mean", "last/return_mean", "time/seconds", "time/cpu_seconds")


def train_seeds(
    recipe: Algorithm,
    config: RunConfig,
    seeds: Sequence[int],
    *,
    out: str | Path | None = None,
    display: DisplayMode = "auto",
    reference: float | None = None,
    jobs: int = 1,
) -> dict[str, Any] | None:
    """Train once for each seed, in ``seed-0``, ``seed-1``, ... of one folder; runs there are continued, not repeated.

    Writes ``summary.json`` and ``learning_curve.png`` into the folder.

    Args:
        recipe: The recipe.
        config: Settings; the seed is replaced.
        seeds: Seeds of the runs.
        out: The folder, which may contain some of the runs; a new one under ``runs/`` if None.
        display: Mode of the display, as of `Algorithm.train`.
        reference: Return at which the plot has a line.
        jobs: Number of runs at a time; more than one are in processes of their own, without their displays.

    Returns:
        What ``summary.json`` contains; None if a run was interrupted.

    Raises:
        RLError: If there is a run with other settings in the folder.
    """
    check_seeds(recipe, config, seeds, out)
    folder = new_folder_of_runs(recipe.name, config) if out is None else Path(out)
    try:
        if not _train_missing(recipe, config, seeds, folder, display=display, jobs=jobs):
            if display != "none":
                sys.stdout.write(f"the same command with --out {folder} continues all seeds\n")
            return None
        return _summarize_seeds(recipe, config, seeds, folder, display=display, reference=reference)
    finally:
        with suppress(OSError):
            folder.rmdir()  # of a failed start; a folder with anything in it stays


def _train_missing(
    recipe: Algorithm, config: RunConfig, seeds: Sequence[int], folder: Path, *, display: DisplayMode, jobs: int
) -> bool:
    """Train what is not complete; returns whether all is."""
    missing = [seed for seed in seeds if RunFolder(folder / f"seed-{seed}").read_summary() is None]
    if jobs > 1:
        return _train_side_by_side(recipe, config, missing, folder, display=display, jobs=jobs)
    for seed in missing:
        if display != "none":
            sys.stdout.write(f"seed {seed} ({seeds.index(seed) + 1} of {len(seeds)})\n")
        if recipe.train(replace(config, seed=seed), display=display, **_place(folder, seed)).interrupted:
            return False
    return True


def _place(folder: Path, seed: int) -> dict[str, Any]:
    run = RunFolder(folder / f"seed-{seed}")
    return {"resume": run.path} if run.config.is_file() else {"out": run.path}


def _train_side_by_side(
    recipe: Algorithm, config: RunConfig, seeds: Sequence[int], folder: Path, *, display: DisplayMode, jobs: int
) -> bool:
    """Train in processes; after Ctrl-C, which they get as well, wait until they have saved."""
    context = multiprocessing.get_context("spawn")  # a copy of this process would share its threads' locks
    with ProcessPoolExecutor(min(jobs, len(seeds)) or 1, mp_context=context) as pool:
        waiting = {
            pool.submit(_train_one, recipe.reference, replace(config, seed=seed), _place(folder, seed)): seed
            for seed in seeds
        }
        complete = True
        try:
            for count, done in enumerate(as_completed(waiting), start=1):
                result = done.result()
                complete = complete and not result.interrupted
                if display != "none":
                    found = "saved, not complete" if result.interrupted else f"return {result.eval_return_mean:.1f}"
                    sys.stdout.write(f"seed {waiting[done]} ({count} of {len(seeds)}): {found}\n")
                    sys.stdout.flush()
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            return False
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return complete


def _train_one(recipe: str, config: RunConfig, place: Mapping[str, Any]) -> TrainResult:
    return find_recipe(recipe).train(config, display="none", **place)


def _summarize_seeds(
    recipe: Algorithm,
    config: RunConfig,
    seeds: Sequence[int],
    folder: Path,
    *,
    display: DisplayMode,
    reference: float | None,
) -> dict[str, Any]:
    runs = [RunFolder(folder / f"seed-{seed}") for seed in seeds]
    summary = _summary(recipe, config, seeds, [run.read_summary() or {} for run in runs])
    write_atomic(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    if all(run.metrics.is_file() for run in runs):
        title = f"{recipe.name} on {config.env}, {_count(seeds)}"
        plot_seeds([run.metrics for run in runs], folder / "learning_curve.png", title, reference)
    if display != "none":
        best = summary["best/return_mean"]
        found = f"return {best['median']:.1f}"
        if len(seeds) > 1:
            found = f"median {found} (from {best['min']:.1f} to {best['max']:.1f})"
        sys.stdout.write(f"{_count(seeds)}: best policy, {found}\nfolder: {folder}\n")
    return summary


def check_seeds(recipe: Algorithm, config: RunConfig, seeds: Sequence[int], out: str | Path | None) -> None:
    """Raise if a run in the folder `out` has other settings than it would get.

    Raises:
        RLError: If so, or if `out` is a run folder itself.
        CheckpointError: If its config cannot be read.
    """
    if out is None:
        return
    check_name(out)
    if RunFolder(out).config.is_file():
        raise RLError(f"{out} is the folder of one run; name another folder with --out")
    for seed in seeds:
        run = RunFolder(Path(out) / f"seed-{seed}")
        if not run.config.is_file():
            continue
        usual = settings_of(recipe.reference, recipe.config())  # of a setting that an older version did not have
        before = usual | with_new_names(recipe.config, run.read_config())
        now = settings_of(recipe.reference, replace(config, seed=seed))
        differing = [name for name, value in now.items() if before[name] != value]
        changed = [f"{name}={before[name]!r}, not {now[name]!r}" for name in differing]
        if changed:
            raise RLError(
                f"{run.path} was trained with {'; '.join(changed)}; name another folder with --out, or delete this run"
            )


def _summary(
    recipe: Algorithm, config: RunConfig, seeds: Sequence[int], runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    spread: dict[str, Any] = {}
    for name in SPREAD_METRICS:
        values = [run[name] for run in runs]
        spread[name] = {"median": median(values), "min": min(values), "max": max(values), "values": values}
    return {"recipe": recipe.name, "env": config.env, "seeds": [*seeds], "frames": runs[0]["frames"], **spread}


def _count(seeds: Sequence[int]) -> str:
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


def run_cases(cases: Sequence[Case], out: Path, *, kept: Sequence[str] = (), display: DisplayMode = "auto") -> bool:
    """Train what is missing, case by case, and write ``results.json`` and ``results.md`` after each.

    Args:
        cases: Cases to train; each has a folder of its name, with those of its seeds.
        out: Folder of all.
        kept: Names of further cases, whose earlier results stay in both files.
        display: Mode of the display, as of `Algorithm.train`.

    Returns:
        Whether all cases are complete; False if a run was interrupted.

    Raises:
        RLError: If a run fails, or there is a run with other settings; checked for all cases before the first run.
    """
    for case in cases:
        check_seeds(case.recipe, case.config, case.seeds, out / case.name)
    results = _earlier_results(out, kept)
    for case in cases:
        folder = out / case.name
        found = train_seeds(case.recipe, case.config, case.seeds, out=folder, display=display, reference=case.reference)
        if found is None:
            return False
        results.append({"name": case.name, **found, "reference": case.reference, "source": case.source})
        text = json.dumps({"versions": package_versions(), "cases": results}, indent=2)
        write_atomic(out / "results.json", text + "\n")
        write_atomic(out / "results.md", table(results))
    make_display(display).note(f"{table(results)}\n{out / 'results.md'}")
    return True


#: CPU seconds of a published case that is short
SHORT = 60


def check_published(cases: Sequence[Case], *, named: bool, display: DisplayMode = "auto") -> int:
    """Train published runs again, and compare what their summaries say; equal to the last digit on equal processors.

    Args:
        cases: Cases to choose from.
        named: Whether to train a seed of each; otherwise of one that is short, drawn at random.
        display: Mode of the display, as of `Algorithm.train`.

    Returns:
        The exit status: 0, 1 if a run differs, 130 if one was interrupted.

    Raises:
        RLError: If none of the cases is published.
    """
    path = files("rl.trainers") / "presets/results.json"
    published = {case["name"]: case for case in json.loads(path.read_text(encoding="utf-8"))["cases"]}
    known = [case for case in cases if published.get(case.name, {}).get("runs")]
    if not named:
        known = [case for case in known if published[case.name]["time/cpu_seconds"]["median"] <= SHORT]
    if not known:
        what = ", ".join(case.name for case in cases) if named else f"of at most {SHORT} CPU seconds"
        raise RLError(f"there is no published case {what}: `rl presets` lists what is published")
    status = 0
    for case in known if named else [random.choice(known)]:
        before = random.choice(published[case.name]["runs"])
        with tempfile.TemporaryDirectory() as folder:
            config = replace(case.config, seed=before["seed"])
            if case.recipe.train(config, out=f"{folder}/run", display=display).interrupted:
                return 130
            now = RunFolder(f"{folder}/run").read_summary() or {}
        kept = [name for name in before if name not in ("history", "versions") and not name.startswith("time/")]
        differing = [
            f"{name} {now.get(name)}, published {before[name]}" for name in kept if now.get(name) != before[name]
        ]
        versions = before["versions"]
        changed = [
            f"{name} {now['versions'].get(name)}, then {versions[name]}"
            for name in versions
            if now["versions"].get(name) != versions[name]
        ]
        end = f"; versions: {', '.join(changed)}" if differing and changed else ""
        found = "; ".join(differing) or f"as published, {len(kept)} figures"
        sys.stdout.write(f"{case.name}, seed {before['seed']}: {found}{end}\n")
        status = status or int(bool(differing))
    return status


def _earlier_results(out: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    path = out / "results.json"
    found = json.loads(path.read_text(encoding="utf-8"))["cases"] if names and path.is_file() else []
    return [result for result in found if result["name"] in names]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row for each case: medians over the seeds, with the range in brackets."""
    lines = [
        "| case | frames | seeds | best policy | last policy | reference | CPU seconds | curve |",
        "|---|---:|---:|---:|---:|---|---:|---|",
    ]
    for result in results:
        best, last, cpu = (result[name] for name in ("best/return_mean", "last/return_mean", "time/cpu_seconds"))
        reference = "" if result["reference"] is None else f"{result['reference']:g}"
        source = f" ({result['source']})" if result["source"] else ""
        cells = [
            result["name"],
            f"{result['frames']:,}",
            str(len(result["seeds"])),
            _spread(best),
            _spread(last),
            f"{reference}{source}",
            f"{cpu['median']:.0f}",
            f"[curve]({result['name']}/learning_curve.png)",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(figure: Mapping[str, Any]) -> str:
    middle = f"{figure['median']:.1f}"
    return middle if len(figure["values"]) == 1 else f"{middle} [{figure['min']:.1f}, {figure['max']:.1f}]"
