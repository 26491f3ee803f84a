"""The command ``rl migrate``."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from rl.core.errors import ArgumentError, RLError
from rl.torchrl._migrate import MARK, migrate
from rl.torchrl._migrate_sources import Renamed, Source, TorchRL, absent_packages
from rl.torchrl._sb3 import StableBaselines3


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str]) -> int:
    """Run ``rl migrate ARGUMENTS`` and return the exit status."""
    parser = _Parser(
        "rl migrate",
        description="Rewrite imports, names and keyword arguments; what has no counterpart gets a comment.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="Python files, and folders that are searched for them")
    parser.add_argument(
        "--from", dest="source", metavar="SOURCE", default="torchrl", help="torchrl, sb3, or rl==0.2 (default: torchrl)"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--diff", action="store_true", help="print the changes, and write nothing (default)")
    mode.add_argument("--write", action="store_true", help="change the files")
    mode.add_argument("--check", action="store_true", help="list the files that would change; status 1 if any")
    options = parser.parse_args(arguments)
    source = find_source(options.source)
    files = list(find_files(options.paths))
    changed = notes = failed = 0
    for file in files:
        try:
            text = file.read_bytes().decode()
            result = migrate(text, source)
        except (RLError, UnicodeDecodeError) as error:
            sys.stderr.write(f"rl migrate: {file}: {error}; it was left as it is\n")
            failed += 1
            continue
        notes += len(result.notes)
        if result.text == text:
            continue
        changed += 1
        if options.write:
            file.write_bytes(result.text.encode())
        if options.write or options.check:
            sys.stdout.write(f"{file}\n")
        else:
            lines = (text.splitlines(keepends=True), result.text.splitlines(keepends=True))
            sys.stdout.writelines(difflib.unified_diff(*lines, str(file), str(file)))
    done = "changed" if options.write else "to change"
    sys.stderr.write(f"{len(files)} files, {changed} {done}; {notes} comments `{MARK.strip()}` to read\n")
    return int(failed > 0 or (options.check and changed > 0))


def find_source(name: str) -> Source:
    """Return the rules for the argument of ``--from``.

    Raises:
        ArgumentError: If there are none.
    """
    if name == "torchrl":
        if absent := " ".join(absent_packages()):
            raise RLError(f"rl migrate reads the names of our packages: pip install {absent}")
        return TorchRL()
    if name == "sb3":
        return StableBaselines3()
    package, equal, version = name.partition("==")
    if package == "rl" and equal:
        return Renamed(version)
    raise ArgumentError(f"rl migrate: --from must be torchrl, sb3, or a series such as rl==0.2, got {name!r}")


def find_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python files; hidden folders and virtual environments in a folder are left out.

    Raises:
        RLError: If a path does not exist.
    """
    for path in map(Path, paths):
        if path.is_dir():
            installed = {config.parent for config in path.rglob("pyvenv.cfg")} - {path}
            for file in sorted(path.rglob("*.py")):
                hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
                if not hidden and installed.isdisjoint(file.parents):
                    yield file
        elif path.is_file():
            yield path
        else:
            raise RLError(f"there is no file or folder {path}")
