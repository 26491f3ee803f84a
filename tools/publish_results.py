"""Publish runs of `rl benchmark`: copy what presets, tables and curves need into the repository.

    python tools/publish_results.py runs/results docs/results

`results.json` among the presets of rl-trainers gets settings, commands, versions and returns of each case,
`CASE.csv.gz` in the folder of the documentation the metrics of all its seeds.
Cases that were not run again stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import yaml

RETURNS = Path(__file__).resolve().parents[1] / "packages/rl-trainers/src/rl/trainers/presets/results.json"


def publish(runs: Path, docs: Path, published: Path = RETURNS) -> list[str]:
    """Write the cases of `runs/results.json` into `published` and their metrics into `docs`; return their names."""
    cases = {case["name"]: case for case in _read(published)["cases"]} if published.is_file() else {}
    new = {case["name"]: _case(runs / case["name"], case) for case in _read(runs / "results.json")["cases"]}
    docs.mkdir(parents=True, exist_ok=True)
    for name, case in new.items():
        _write_table(
            docs / f"{name}.csv.gz", {seed: runs / name / f"seed-{seed}/metrics.csv" for seed in case["seeds"]}
        )
    published.write_text(json.dumps({"cases": [*(cases | new).values()]}, indent=1) + "\n", encoding="utf-8")
    return [*new]


def _case(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return a case of the benchmark with its settings, and with what differs between its runs."""
    paths = [folder / f"seed-{seed}" for seed in result["seeds"]]
    settings = [yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) for path in paths]
    for one in settings:
        del one["seed"]
    if any(one != settings[0] for one in settings):
        sys.exit(f"the runs of {folder} have different settings: train them again")
    runs = [_read(path / "summary.json") | {"history": _history(path / "history.json")} for path in paths]
    for run in runs:
        for name in ("recipe", "env", "frames"):  # those of the case
            del run[name]
    return result | {"settings": settings[0], "runs": runs}


def _history(path: Path) -> list[dict[str, Any]]:
    """Return what repeats each part of a run; without host and folders."""
    kept = ("frames", "started", "command", "git_commit")
    return [{name: part[name] for name in kept if name in part} for part in _read(path)]


def _write_table(path: Path, metrics: dict[int, Path]) -> None:
    """Write the tables of several seeds as one; the same bytes for the same values."""
    tables = {
        seed: list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))) for seed, file in metrics.items()
    }
    columns = list(dict.fromkeys(name for rows in tables.values() for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["seed", *columns], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"seed": seed, **row} for seed, rows in tables.items() for row in rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder that `rl benchmark --out` wrote")
    parser.add_argument("docs", type=Path, help="folder of the published metrics")
    arguments = parser.parse_args()
    print("\n".join(publish(arguments.runs, arguments.docs)))
