"""The commands ``rl runs``, ``rl compare`` and ``rl plot``."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.core.errors import CheckpointError, RLError
from rl.trainers._arguments import OneLineParser
from rl.trainers._runs import (
    Record,
    as_json,
    check_name,
    choose,
    differences,
    find_records,
    group_of,
    read_record,
    runs_of,
    size_of,
    sort,
)
from rl.trainers._storage import RunFolder

#: runs that the question before a deletion names
NAMES = 10

COMMANDS = ("list", "show", "diff", "best", "rm")

_COLUMNS = ("run", "status", "recipe", "env", "seed", "frames", "best", "time", "started", "last", "rollout")

#: columns of figures
_RIGHT = frozenset({"seed", "frames", "best", "last", "rollout", "time", "trial", "return"})


def run_runs(argv: Sequence[str]) -> int:
    """Run ``rl runs ARGUMENTS``.

    Raises:
        UsageError: If the arguments cannot be understood.
        RLError: If there is no such run.
    """
    words = list(argv)
    if not words or (words[0] not in COMMANDS and words[0] not in ("-h", "--help")):
        words = ["list", *words]
    options = _parser().parse_args(words)
    {"list": _list, "show": _show, "diff": _diff, "best": _best, "rm": _remove}[options.command](options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser("rl runs", description="List, describe, compare and delete run folders.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=OneLineParser)
    described = {"list": "the runs of a folder (the default)", "best": "the best run of each environment"}
    for name, text in described.items():
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("folder", nargs="?", default="runs", metavar="FOLDER", help="where they are (default: runs)")
        one.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="CONDITION",
            help="a column or setting and its value, as env=CartPole-v1, 'gamma!=0.99' or 'best>400'; may be repeated",
        )
        one.add_argument("--json", action="store_true", help="print JSON, with all settings")
    commands.choices["list"].add_argument("--sort", metavar="NAME", help="a column or setting (default: started)")
    commands.choices["list"].add_argument("--reverse", action="store_true", help="in the opposite order")
    commands.choices["best"].add_argument(
        "--metric", default="best/return_mean", metavar="NAME", help="entry of summary.json (default: best/return_mean)"
    )
    show = commands.add_parser("show", help="settings, result, starts and versions of a run")
    show.add_argument("run", metavar="RUN")
    show.add_argument("--json", action="store_true", help="print JSON")
    diff = commands.add_parser("diff", help="the settings in which two runs differ")
    diff.add_argument("first", metavar="RUN")
    diff.add_argument("second", metavar="RUN")
    diff.add_argument("--json", action="store_true", help="print JSON")
    remove = commands.add_parser("rm", help="delete runs")
    about = "a run, the folder of --seeds, or a pattern in quotes; with --where, a folder of runs"
    remove.add_argument("run", nargs="+", metavar="RUN", help=about)
    remove.add_argument("--where", action="append", default=[], metavar="CONDITION", help="as of `rl runs list`")
    remove.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _list(options: argparse.Namespace) -> None:
    records = sort(_found(options), options.sort or "started")
    records = records[::-1] if options.reverse else records
    if options.json:
        _write(as_json([{**record.facts, "settings": record.settings} for record in records]))
    elif records:
        print_table([_shown(record.facts) for record in records], fit=True)
    else:
        _write(f"there is no run {'like that ' if options.where else ''}in {options.folder}\n")


def _found(options: argparse.Namespace) -> list[Record]:
    records, errors = find_records(options.folder)
    for error in errors:
        sys.stderr.write(f"note: {error}\n")
    return choose(records, options.where)


def _shown(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as texts of a table."""
    cells = {name: "" if value is None else str(value) for name, value in facts.items() if name != "seconds"}
    for name in ("best", "last", "rollout"):
        cells[name] = "" if facts[name] is None else f"{facts[name]:.1f}"
    cells["frames"] = f"{facts['frames']:,}"
    seconds = facts["seconds"]
    cells["time"] = "" if seconds is None else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"
    cells["started"] = cells["started"][:16].replace("T", " ")
    return {name: cells[name] for name in _COLUMNS}


def print_table(rows: Sequence[Mapping[str, str]], *, fit: bool = False) -> None:
    """Print rows of texts in columns.

    Args:
        rows: Cells by column.
        fit: Whether columns at the right are left out where the terminal is too narrow.
    """
    lines = [dict(zip(rows[0], rows[0], strict=True)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in rows[0]}
    names = list(widths)
    limit = shutil.get_terminal_size().columns if fit and sys.stdout.isatty() else None
    while limit is not None and len(names) > 1 and sum(widths[name] + 2 for name in names) - 2 > limit:
        names.pop()
    for line in lines:
        cells = [f"{line[name]:{'>' if name in _RIGHT else '<'}{widths[name]}}" for name in names]
        _write("  ".join(cells).rstrip() + "\n")
    if len(names) < len(widths):
        _write(f"a wider terminal also shows {', '.join(list(widths)[len(names) :])}; --json has all\n")


def _show(options: argparse.Namespace) -> None:
    records = group_of(options.run)
    if options.json:
        _write(as_json([_all_of(record) for record in records] if len(records) > 1 else _all_of(records[0])))
        return
    if len(records) > 1:
        print_table([_shown(record.facts) for record in records], fit=True)
        return
    record = records[0]
    facts = _shown(record.facts)
    facts["size"] = f"{size_of(record.folder.path) / 1e6:.1f} MB"
    _print_pairs({name: value for name, value in facts.items() if value})
    changed = _changed(record)
    if changed:
        _write("\nsettings other than the defaults\n")
        _print_pairs({name: str(value) for name, value in changed.items()})
    for number, start in enumerate(record.history, start=1):
        _write(f"\nstart {number}\n")
        versions = start.get("versions") or record.summary.get("versions") or {}
        plain = {name: str(value) for name, value in start.items() if not isinstance(value, Mapping)}
        machine = ", ".join(str(one) for one in (start.get("machine") or {}).values())
        _print_pairs(
            {**plain, "machine": machine, "versions": ", ".join(f"{name} {one}" for name, one in versions.items())}
        )


def _all_of(record: Record) -> dict[str, Any]:
    return {**record.facts, "summary": record.summary, "settings": record.settings, "history": record.history}


def _changed(record: Record) -> dict[str, Any]:
    """Return the settings that are not the defaults of the recipe; all of a recipe that is not installed."""
    from rl.core.registry import components, load
    from rl.trainers._storage import settings_of

    name = str(record.settings["recipe"])
    usual: Mapping[str, Any] = {}
    if name in {component.name for component in components("recipe")}:
        usual = settings_of(name, load("recipe", name).config())
    return {key: value for key, value in record.settings.items() if key != "recipe" and usual.get(key, ...) != value}


def _print_pairs(pairs: Mapping[str, str]) -> None:
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        if value:
            _write(f"{name:<{width}}  {value}\n")


def _diff(options: argparse.Namespace) -> None:
    first, second = (read_record(path) for path in (options.first, options.second))
    settings = differences(first.settings, second.settings)
    others = differences(_versions(first), _versions(second))
    if options.json:
        _write(as_json({"settings": settings, "versions": others}))
        return
    if not settings and not others:
        _write("the runs have the same settings and versions\n")
        return
    rows = {**settings, **others}.items()
    print_table(
        [{"setting": name, options.first: _text(one), f"{options.second} ": _text(two)} for name, (one, two) in rows]
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _versions(record: Record) -> dict[str, Any]:
    last = record.history[-1] if record.history else {}
    found = dict(last.get("versions") or record.summary.get("versions") or {})
    return {**found, "git_commit": last.get("git_commit")}


def _best(options: argparse.Namespace) -> None:
    best: dict[str, Record] = {}
    records = _found(options)
    check_name([record for record in records if record.summary], options.metric)
    for record in records:
        value = record.value(options.metric)
        env = str(record.settings.get("env"))
        if isinstance(value, int | float) and (env not in best or value > best[env].value(options.metric)):
            best[env] = record
    if options.json:
        _write(as_json([{**record.facts, "settings": record.settings} for record in best.values()]))
    elif best:
        print_table([_shown(record.facts) for record in best.values()], fit=True)
    else:
        raise CheckpointError(
            f"no run in {options.folder} has {options.metric} yet; it is there when a run is complete"
        )


def _remove(options: argparse.Namespace) -> None:
    found = _named_runs(options)
    link = next((path for path in (*map(Path, options.run), *(run.path for run in found)) if path.is_symlink()), None)
    if link is not None and not options.where:
        raise RLError(f"{link} is a link, which is not followed: name the folder that it leads to, {link.resolve()}")
    running = [str(run.path) for run in found if run.is_locked()]
    if running:
        raise RLError(f"a process trains in {', '.join(running)}: stop it before you delete the run")
    if not found:
        _write(f"there is no run like that in {', '.join(options.run)}\n")
        return
    runs = "1 run" if len(found) == 1 else f"{len(found)} runs"
    runs += f" ({sum(size_of(run.path) for run in found) / 1e6:.1f} MB)"
    names = [str(run.path) for run in found[:NAMES]] + ["..."] * (len(found) > NAMES)
    if not options.yes:
        if not sys.stdin.isatty():
            raise RLError(f"{runs} would be deleted: there is no terminal to ask on, so add --yes")
        if not _agreed(f"delete {runs}: {', '.join(names)}? [y/N] "):
            _write("nothing was deleted\n")
            return
    for run in found:
        try:
            shutil.rmtree(run.path.resolve())  # that of . as well
        except OSError as error:
            raise RLError(f"{run.path} cannot be deleted: {error}; change its permissions, and repeat this") from error
    for folder in {run.path.parent for run in found if run.path.name.startswith("seed-")}:
        _remove_empty(folder)
    _write(f"deleted {runs}\n")


def _named_runs(options: argparse.Namespace) -> list[RunFolder]:
    """Return the runs that are named, each once: with conditions, those in the named folders that fulfil them."""
    if options.where:
        records = [record for name in options.run for record in find_records(name)[0]]
        runs = [record.folder for record in choose(records, options.where)]
    else:
        runs = [record for name in options.run for record in runs_of(name)]
    return [*{run.path.absolute(): run for run in runs}.values()]


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        _write("\n")
        return False


def _remove_empty(folder: Path) -> None:
    """Delete the folder of ``--seeds`` whose last run was deleted, unless it has files that are not of ``rl train``."""
    if {path.name for path in folder.iterdir()} <= {"learning_curve.png", "summary.json"}:
        shutil.rmtree(folder)


def run_compare(argv: Sequence[str]) -> int:
    """Run ``rl compare ARGUMENTS``.

    Raises:
        UsageError: If the arguments cannot be understood.
        RLError: If there are no such runs, or they cannot be compared.
    """
    parser = OneLineParser("rl compare", description="Compare the results of two groups of runs.")
    about = "a run, the folder of --seeds, or a pattern in quotes, as 'runs/ppo-CartPole-v1-*'"
    parser.add_argument("first", metavar="A", help=about)
    parser.add_argument("second", metavar="B", help="the other ones")
    parser.add_argument(
        "--metric", default="best/return_mean", metavar="NAME", help="entry of summary.json (default: best/return_mean)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(list(argv))

    from rl.trainers._comparison import compare

    names = (options.first, options.second)
    found = compare(names, [group_of(name) for name in names], options.metric)
    if options.json:
        _write(as_json(found))
        return 0
    rows: list[dict[str, str]] = []
    for letter, side in (("A", found["first"]), ("B", found["second"])):
        low, high = side["interval"]
        left = f" ({side['incomplete']} more not complete)" if side["incomplete"] else ""
        rows.append(
            {
                "": letter,
                "runs of": f"{side['name']}{left}",
                "recipe": str(side["recipe"]),
                "runs": str(len(side["runs"])),
                "interquartile mean": f"{side['iqm']:.4g}",
                "95 % interval": f"{low:.4g} to {high:.4g}",
            }
        )
    _write(f"{found['metric']} on {found['env']}\n\n")
    print_table(rows)
    low, high = found["probability_interval"]
    _write(f"\nprobability that a run of A is above one of B: {found['probability']:.2f} ({low:.2f} to {high:.2f})\n")
    if found["settings"]:
        _write("\n")
        print_table([{"setting": name, "A": str(one), "B": str(two)} for name, (one, two) in found["settings"].items()])
    return 0


def run_plot(argv: Sequence[str]) -> int:
    """Run ``rl plot ARGUMENTS``.

    Raises:
        UsageError: If the arguments cannot be understood.
        RLError: If there is no such run, its metrics cannot be read, or the plot cannot be written.
    """
    parser = OneLineParser(
        "rl plot",
        description="Draw the learning curves of runs: of one into its folder, of several into one picture, with the"
        " interquartile mean and its bootstrap interval over runs that differ in their seed alone.",
    )
    about = "a run, the folder of --seeds, or a pattern in quotes"
    parser.add_argument("run", nargs="+", metavar="RUN", help=about)
    parser.add_argument("--out", metavar="FILE", help="a .png, .svg or .html (default: curves.png)")
    parser.add_argument("--x", choices=("frames", "time"), default="frames", help="horizontal axis (default: frames)")
    parser.add_argument(
        "--metric", default="eval/return_mean", metavar="NAME", help="column of metrics.csv (default: eval/return_mean)"
    )
    parser.add_argument("--json", action="store_true", help="print the curves as JSON instead of drawing them")
    options = parser.parse_args(list(argv))
    records = [record for name in options.run for record in group_of(name)]
    asked = options.json or options.out or options.x != "frames" or options.metric != "eval/return_mean"
    if len(options.run) == 1 and not asked and Path(options.run[0]).exists():
        _note_incomplete(records)
        _plot_again(Path(options.run[0]), records)
        return 0

    from rl.trainers._comparison import as_values, check_ending, curve_of, draw, group_by_settings

    out = Path(options.out or "curves.png")
    check_ending(out)
    groups = group_by_settings(records)
    curves = [curve_of(group, options.metric, options.x) for group in groups]
    for group in groups:
        _note_incomplete(group.records)
    if options.json:
        _write(as_json([as_values(curve, options.x) for curve in curves]))
        return 0
    draw(curves, out, options.metric, options.x)
    _write(f"{out}\n")
    return 0


def _note_incomplete(records: Sequence[Record]) -> None:
    """Report which of several runs that are drawn as one curve cut it off."""
    for record in records if len(records) > 1 else ():
        if not record.summary:
            path = record.folder.path
            sys.stderr.write(f"note: {path} is not complete, and the curve of its {len(records)} runs ends with it\n")


def _plot_again(path: Path, records: Sequence[Record]) -> None:
    """Draw ``learning_curve.png`` of each run, and of the seeds, again."""
    from rl.trainers._report import plot_learning_curve, plot_seeds

    title = f"{records[0].settings['recipe']} on {records[0].settings.get('env')}"
    for record in records:
        run = record.folder
        plot_learning_curve(run.metrics, run.curve, f"{title}, seed {record.settings.get('seed')}")
        _write(f"{run.curve}\n")
    if len(records) > 1:
        curve = RunFolder(path).curve
        plot_seeds([record.folder.metrics for record in records], curve, f"{title}, {len(records)} seeds")
        _write(f"{curve}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
