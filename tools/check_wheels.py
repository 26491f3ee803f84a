"""The wheels in a folder must merge into one namespace: each brings rl/NAME/ and rl/plugins/NAME.py, nothing else."""

from __future__ import annotations

import sys
import zipfile
from collections import Counter
from pathlib import Path


def problems_of(wheel: Path) -> tuple[list[str], list[str]]:
    """Return what is wrong with one wheel, and the files under rl/ that it brings."""
    name, version, *_ = wheel.name.split("-")
    short = name.removeprefix("rl_")
    allowed = (f"rl/{short}/", f"rl/plugins/{short}.py", f"{name}-{version}.dist-info/")
    files = zipfile.ZipFile(wheel).namelist()
    problems = [f"{wheel.name}: must not hold {file}" for file in files if not file.startswith(allowed)]
    needed = [f"rl/{short}/__init__.py", f"rl/{short}/py.typed"]
    problems += [f"{wheel.name}: lacks {file}" for file in needed if file not in files]
    if not any(file.endswith("licenses/LICENSE") for file in files):
        problems.append(f"{wheel.name}: lacks its LICENSE")
    return problems, [file for file in files if file.startswith("rl/")]


def main(folder: Path) -> int:
    """Print sizes and problems; 1 if there are any."""
    wheels = sorted(folder.glob("rl_*.whl"))
    owners: Counter[str] = Counter()
    problems: list[str] = [] if wheels else [f"no wheels in {folder}: run `./x hatch build --all -t wheel` first"]
    for wheel in wheels:
        found, files = problems_of(wheel)
        problems += found
        owners.update(files)
        print(f"{wheel.stat().st_size:9,} {wheel.name}")
    problems += [f"in two wheels: {file}" for file, count in owners.items() if count > 1]
    for problem in problems:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
