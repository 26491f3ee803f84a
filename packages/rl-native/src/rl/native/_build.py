"""Build of the C library into ``_lib/``: ``python -m rl.native._build``.

Standard library only: the build hook runs this file by its path, before anything is installed.
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

_HERE = Path(__file__).resolve().parent
SOURCES = _HERE / "csrc"
LIBRARY = _HERE / "_lib" / "rl_native.so"
RECORD = _HERE / "_lib" / "build.json"
COMMAND = "python -m rl.native._build"

STAMP = "rl_native_stamp"
"""The symbol that holds the `stamp` of the sources that the library was compiled from."""

# No -march: wider instructions are selected at run time. No contraction: fused multiply-adds are written out.
FLAGS = ("-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")


def compiler() -> list[str] | None:
    """Return the command of the C compiler: ``$CC``, else cc, gcc or clang; None if there is none."""
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
    """Return the 16-digit hash of version, C sources and flags that a library must hold to be loaded.

    pip does not remove a library that was compiled after installation, and edited sources leave an outdated one.
    """
    digits = hashlib.sha256(" ".join(FLAGS).encode())
    sources = sorted(path for path in SOURCES.rglob("*") if path.suffix in {".c", ".h"})
    for path in (_HERE / "__about__.py", *sources):
        content = path.read_bytes()
        digits.update(f"\n{path.relative_to(_HERE).as_posix()} {len(content)}\n".encode() + content)
    return digits.hexdigest()[:16]


def build(mode: str | None = None, *, keep: bool = False) -> str:
    """Compile, and record the outcome next to the library.

    Args:
        mode: ``auto`` builds if possible, ``off`` does not build, ``require`` raises if there is no library; None for
            the value of ``RL_NATIVE``, else ``auto``.
        keep: Whether to keep an existing library if no new one is built.

    Returns:
        ``"ok"``, or why there is no library.

    Raises:
        RuntimeError: If `mode` is ``require`` and there is no library, or `mode` is none of these.
    """
    mode = mode or os.environ.get("RL_NATIVE", "").strip().lower() or "auto"  # noqa: TID251  as above
    if mode not in ("auto", "off", "require"):
        raise RuntimeError(f"RL_NATIVE is {mode!r}; it is one of auto, off, require")
    LIBRARY.parent.mkdir(exist_ok=True)
    command = compiler()
    if mode == "off":
        state = "the build was switched off with RL_NATIVE=off"
    elif command is None:
        tried = f"CC names {_named()!r}" if _named() else "cc, gcc, clang or $CC"
        state = f"the build found no C compiler: {tried}"
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
    """Compile into a new file and replace the old one, which processes that loaded it keep."""
    with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as folder:
        made = Path(folder, LIBRARY.name)
        stamped = Path(folder, "stamp.c")
        stamped.write_text(f'__attribute__((visibility("default"))) const char {STAMP}[] = "{stamp()}";\n')
        sources = [*sorted(map(str, SOURCES.rglob("*.c"))), str(stamped)]
        line = [*command, *FLAGS, "-shared", "-o", str(made), *sources, "-lm"]
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]} does not run: {error.strerror}"
        if done.returncode != 0:
            output = " ".join((done.stderr or done.stdout).split())
            return f"{command[0]} failed with status {done.returncode}" + (f": {output[-500:]}" if output else "")
        made.replace(LIBRARY)
    return "ok"


def record() -> dict[str, str | None]:
    """Return the record of the last build; empty if there was none."""
    try:
        found = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Build into the installed package; an existing library is kept if no new one is built."""
    try:
        state = build(keep=True)
    except RuntimeError as error:
        state = str(error)
    except OSError as error:
        state = (
            f"cannot write into {LIBRARY.parent} ({error.strerror}); run it as the user who installed rl-native, or"
            " install rl-native into a virtual environment of your own"
        )
    stays = f"; the existing {LIBRARY} is kept" if state != "ok" and LIBRARY.is_file() else ""
    sys.stdout.write(f"{LIBRARY}\n" if state == "ok" else f"not built: {state}{stays}\n")
    return 0 if state == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
