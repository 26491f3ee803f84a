"""Runs of a benchmark, and their table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl.trainers._command.cases import Case
from rl.trainers._report.display import DisplayMode, make_display
from rl.trainers._run.seeds import check_seeds, train_seeds
from rl.trainers._storage.files import write_atomic
from rl.trainers._storage.installed_versions import package_versions

__all__ = ["run_cases", "table"]


def run_cases(cases: Sequence[Case], out: Path, *, display: DisplayMode = "auto") -> bool:
    """Train what is missing, case by case, and write ``results.json`` and ``results.md`` after each.

    Args:
        cases: what to train; each has a folder of its name, with those of its seeds.
        out: folder of all.
        display: how progress is shown.

    Returns:
        Whether all cases are complete; False if a run was interrupted.

    Raises:
        RLError: if a run fails, or there is a run with other settings; checked for all cases before the first run.
    """
    for case in cases:
        check_seeds(case.recipe, case.config, case.seeds, out / case.name)
    results: list[dict[str, Any]] = []
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


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table with a row for each case: medians over the seeds, with the range of several in brackets."""
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
