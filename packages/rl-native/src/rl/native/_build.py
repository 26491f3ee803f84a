"""Compile the C sources into ``_lib/``: ``python -m rl.native._build``.

Standard library only, and no import of ours: the build hook runs this file by its path, before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["COMMAND", "FLAGS", "LIBRARY", "RECORD", "SOURCES", "STAMP", "build", "compiler", "main", "record", "stamp"]

_HERE = Path(__file__).resolve().parent
SOURCES = _HERE / "csrc"
LIBRARY = _HERE / "_lib" / "rl_native.so"
RECORD = _HERE / "_lib" / "build.json"
COMMAND = "python -m rl.native._build"

STAMP = "rl_native_stamp"
"""The symbol that holds what `stamp` was when the library was compiled."""

# No -march: wider instructions are chosen at run time. No contraction: what is rounded once is written so.
FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")


def compiler() -> list[str] | None:
    """The command of the C compiler: ``$CC``, else cc, gcc or clang; None if there is none."""
    chosen = _named()
    if chosen:
        try:
            words = shlex.split(chosen)
        except ValueError:  # a quote that is not closed
            return None
        return words if shutil.which(words[0]) else None
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else None


def _named() -> str:
    return os.environ.get("CC", "").strip()  # noqa: TID251  rl.core is not there while a wheel is built


def stamp() -> str:
    """What a library has to hold to be called: 16 digits made of the version, all C sources, and the flags.

    A library that was compiled late stays behind when pip installs another version: it is not one of pip's files. And
    beside sources that are being changed lies one of what they were before.
    """
    digits = hashlib.sha256(" ".join(FLAGS).encode())
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in {".c", ".h"})
    for path in (_HERE / "__about__.py", *sources):
        content = path.read_bytes()
        digits.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return digits.hexdigest()[:16]


def build(mode: str | None = None, *, keep: bool = False) -> str:
    """Compile, and record beside the library what came of it.

    Args:
        mode: ``auto`` builds if it can, ``off`` does not, ``require`` fails if it cannot; if None, what
            ``RL_NATIVE`` says, else ``auto``.
        keep: leave a library that is there as it is if there will be no new one.

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
        state = "the build was told RL_NATIVE=off"
    elif command is None:
        said = f"CC names {_named()!r}" if _named() else "cc, gcc, clang or $CC"
        state = f"the build found no C compiler: {said}"
    else:
        state = _compile(command)
    if state == "ok" or not (keep and LIBRARY.is_file()):
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
        stamped = Path(folder, "stamp.c")
        stamped.write_text(f'__attribute__((visibility("default"))) const char {STAMP}[] = "{stamp()}";\n')
        sources = [*sorted(map(str, SOURCES.glob("*.c"))), str(stamped)]
        line = [*command, *FLAGS, "-shared", "-o", str(made), *sources, "-lm"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]} does not run: {error.strerror}"
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())
            return f"{command[0]} failed with status {done.returncode}" + (f": {said[-500:]}" if said else "")
        made.replace(LIBRARY)
    return "ok"


def record() -> dict[str, str | None]:
    """What the last build left behind; empty if there was none."""
    try:
        found = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Build late: into the installed package, where a library that is there stays if there will be no new one."""
    try:
        state = build(keep=True)
    except RuntimeError as error:
        state = str(error)
    except OSError as error:
        state = (
            f"cannot write into {LIBRARY.parent} ({error.strerror}); run it as the user who installed rl-native, or"
            " install rl-native into a virtual environment of your own"
        )
    stays = f"; {LIBRARY}, which was there, stays" if state != "ok" and LIBRARY.is_file() else ""
    sys.stdout.write(f"{LIBRARY}\n" if state == "ok" else f"not built: {state}{stays}\n")
    return 0 if state == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
