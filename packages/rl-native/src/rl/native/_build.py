"""Compile the C sources into ``_lib/``: ``python -m rl.native._build``.

Standard library only, and no import of ours: the build hook runs this file by its path, before anything is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["COMMAND", "FLAGS", "LIBRARY", "RECORD", "SOURCES", "build", "compiler", "record"]

_HERE = Path(__file__).resolve().parent
SOURCES = _HERE / "csrc"
LIBRARY = _HERE / "_lib" / "rl_native.so"
RECORD = _HERE / "_lib" / "build.json"
COMMAND = "python -m rl.native._build"

# No -march: wider instructions are chosen at run time. No contraction: every instruction set gives the same numbers.
FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")


def compiler() -> list[str] | None:
    """The command of the C compiler: ``$CC``, else cc, gcc or clang; None if there is none."""
    chosen = os.environ.get("CC")  # noqa: TID251  rl.core is not there while a wheel is built
    if chosen:
        words = shlex.split(chosen)
        return words if shutil.which(words[0]) else None
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else None


def build(mode: str | None = None) -> str:
    """Compile, and record beside the library what came of it.

    Args:
        mode: ``auto`` builds if it can, ``off`` does not, ``require`` fails if it cannot; if None, what
            ``RL_NATIVE`` says, else ``auto``.

    Returns:
        ``"ok"``, or why there is no library.

    Raises:
        RuntimeError: if `mode` is ``require`` and there is no library, or `mode` is none of these.
    """
    mode = mode or os.environ.get("RL_NATIVE", "").strip().lower() or "auto"  # noqa: TID251  as above
    if mode not in ("auto", "off", "require"):
        raise RuntimeError(f"RL_NATIVE is {mode!r}; it is one of auto, off, require")
    LIBRARY.parent.mkdir(exist_ok=True)
    command = compiler()
    if mode == "off":
        state = "it was built with RL_NATIVE=off"
    elif command is None:
        state = "no C compiler (cc, gcc, clang or $CC) was found when it was built"
    else:
        state = _compile(command)
    if state != "ok":
        LIBRARY.unlink(missing_ok=True)
    RECORD.write_text(json.dumps({"state": state, "compiler": command[0] if command else None}) + "\n")
    if state != "ok" and mode == "require":
        raise RuntimeError(f"RL_NATIVE=require, but the library of rl-native was not built: {state}")
    return state


def _compile(command: list[str]) -> str:
    """Into a new file that then takes the old one's place: a process that has the old one loaded keeps it."""
    with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as folder:
        made = Path(folder, LIBRARY.name)
        sources = sorted(map(str, SOURCES.glob("*.c")))
        line = [*command, *FLAGS, "-shared", "-o", str(made), *sources, "-lm"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())
            return f"{command[0]} failed with status {done.returncode}: {said[-500:]}"
        made.replace(LIBRARY)
    return "ok"


def record() -> dict[str, str | None]:
    """What the last build left behind; empty if there was none."""
    try:
        return json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return {}


def _main() -> int:
    state = build()
    sys.stdout.write(f"{LIBRARY if state == 'ok' else f'not built: {state}'}\n")
    return 0 if state == "ok" else 1


if __name__ == "__main__":
    sys.exit(_main())
