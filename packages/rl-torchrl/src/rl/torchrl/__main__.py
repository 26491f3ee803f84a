"""Run a script, or a module after ``-m``, that imports torchrl: ``python -m rl.torchrl SCRIPT ARGUMENTS``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from rl.core.errors import RLError
from rl.torchrl import install


def main() -> None:
    """Run what the command line names."""
    arguments = sys.argv[1:]
    by_name = arguments[:1] == ["-m"]
    words = arguments[by_name:]
    if not words or words[0].startswith("-"):
        sys.exit("usage: python -m rl.torchrl SCRIPT [ARGUMENTS], or python -m rl.torchrl -m MODULE [ARGUMENTS]")
    if not (by_name or Path(words[0]).exists()):
        sys.exit(f"rl.torchrl: there is no file {words[0]}")
    try:
        install()
    except RLError as error:
        sys.exit(f"rl.torchrl: {error}")
    sys.argv = words
    if by_name:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
