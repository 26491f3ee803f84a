"""Build of the CUDA library into ``_lib/``: ``python -m rl.prio_cuda._build``.

Standard library only, and no import of ours: the build hook runs this file by its path, before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast

_HERE = Path(__file__).resolve().parent
SOURCES = _HERE / "csrc"
LIBRARY = _HERE / "_lib" / "rl_prio_cuda.so"
RECORD = _HERE / "_lib" / "build.json"
COMMAND = "python -m rl.prio_cuda._build"

ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
"""Compute capabilities, ten times over: Turing and newer. The driver compiles the PTX of the last for what is newer."""

STAMP = "rl_prio_stamp"
"""The symbol that holds what `stamp` was when the library was compiled."""

# No contraction: sums and products are rounded one by one, so that every processor computes the same numbers.
FLAGS = ("-O3", "-std=c++17", "-fmad=false", "-cudart", "static", "-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall")
HOST_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-pthread")

# What the library brings along of the C++ runtime stays inside of it.
_LINK = ("-Xcompiler", "-static-libstdc++,-static-libgcc", "-Xlinker", "--exclude-libs=ALL")


class Record(TypedDict, total=False):
    """What the last build left behind."""

    state: str
    compiler: str | None
    architectures: list[str]


def compiler() -> str | None:
    """Return the path of nvcc: ``$NVCC``, else that of ``$CUDA_HOME``, else that on the PATH; None if there is none."""
    named = _environment("NVCC")
    if named:
        return shutil.which(named)
    home = _environment("CUDA_HOME")
    return (home and shutil.which("nvcc", path=str(Path(home, "bin")))) or shutil.which("nvcc")


def host_compiler() -> list[str] | None:
    """Return the command of the C++ compiler: ``$CXX``, else g++ or clang++; None if there is none."""
    named = _environment("CXX")
    if named:
        try:
            words = shlex.split(named)
        except ValueError:  # a quote that is not closed
            return None
        return words if shutil.which(words[0]) else None
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    return [found] if found else None


def _environment(name: str) -> str:
    return os.environ.get(name, "").strip()  # noqa: TID251  rl.core is not there while a wheel is built


def stamp() -> str:
    """Return the 16-digit hash of version, sources and flags that a library must hold to be called.

    A library that was compiled after the installation is none of pip's files and stays when pip installs another
    version. One next to edited sources must not be used for them either.
    """
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in {".cpp", ".cu", ".h"})
    made = hashlib.sha256(repr((FLAGS, _LINK)).encode())
    for path in (_HERE / "__about__.py", *sources):
        made.update(f"{path.name}\0".encode() + path.read_bytes())
    return made.hexdigest()[:16]


def architectures(nvcc: str) -> list[str]:
    """Those to compile for: of ``$RL_CUDA_ARCHS`` (as in ``"80 90"``), else of `ARCHITECTURES`, what this nvcc knows.

    Raises:
        RuntimeError: If one was asked for that it does not know, if it knows none, or fails.
        OSError: If it does not run.
    """
    done = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{nvcc} --list-gpu-code failed with status {done.returncode}")
    known = re.findall(r"^sm_(\d+)$", done.stdout, re.MULTILINE)
    asked = _environment("RL_CUDA_ARCHS").replace(",", " ").split()
    found = [each for each in asked or ARCHITECTURES if each in known]
    if not found or (asked and found != asked):
        wanted, says = " ".join(asked or ARCHITECTURES), " ".join(known) or "none"
        raise RuntimeError(f"{nvcc} is to compile for the architectures {wanted}; it knows {says}")
    return sorted(found, key=int)


def command_line(nvcc: str, wanted: Sequence[str], made: Path) -> list[str]:
    """Return the words that compile the library `made` for the architectures `wanted`, and PTX of the last of them.

    Files in between stay in the folder of `made`: nvcc would give them names of the process, which the library holds,
    so that no two builds were equal.
    """
    code = [word for each in wanted for word in ("-gencode", f"arch=compute_{each},code=sm_{each}")]
    code += ["-gencode", f"arch=compute_{wanted[-1]},code=compute_{wanted[-1]}"]
    code += ["--threads", "0", f"-DRL_PRIO_STAMP={stamp()}", "--keep", "--keep-dir", str(made.parent)]
    return [nvcc, *FLAGS, *_LINK, *code, "-shared", "-o", str(made), str(SOURCES / "prio.cu")]


def build(mode: str | None = None, *, keep: bool = False) -> str:
    """Compile, and record beside the library what came of it.

    Args:
        mode: ``auto`` builds if it can, ``off`` does not, ``require`` fails if it cannot; if None, what
            ``RL_NATIVE`` says, else ``auto``.
        keep: Whether to leave an existing library if no new one is built.

    Returns:
        ``"ok"``, or why there is no library.

    Raises:
        RuntimeError: If `mode` is ``require`` and there is no library, or `mode` is none of these.
    """
    mode = mode or _environment("RL_NATIVE").lower() or "auto"
    if mode not in ("auto", "off", "require"):
        raise RuntimeError(f"RL_NATIVE is {mode!r}; it is one of auto, off, require")
    LIBRARY.parent.mkdir(exist_ok=True)
    nvcc = compiler()
    built: list[str] = []
    if mode == "off":
        state = "the build was told RL_NATIVE=off"
    elif nvcc is None:
        named = _environment("NVCC")
        said = f"NVCC names {named!r}" if named else "$NVCC, $CUDA_HOME/bin/nvcc or nvcc on the PATH"
        state = f"the build found no nvcc: {said}"
    else:
        state, built = _compile(nvcc)
    if state == "ok" or not (keep and LIBRARY.is_file()):
        if state != "ok":
            LIBRARY.unlink(missing_ok=True)
        RECORD.write_text(json.dumps(Record(state=state, compiler=nvcc, architectures=built)) + "\n")
    if state != "ok" and mode == "require":
        raise RuntimeError(f"RL_NATIVE=require, but the library of rl-prio-cuda was not built: {state}")
    return state


def _compile(nvcc: str) -> tuple[str, list[str]]:
    """Into a new file that then takes the old one's place: a process that has the old one loaded keeps it."""
    try:
        wanted = architectures(nvcc)
    except OSError as error:
        return f"{nvcc} does not run: {error.strerror}", []
    except RuntimeError as error:
        return str(error), []
    with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as folder:
        made = Path(folder, LIBRARY.name)
        state = _run(command_line(nvcc, wanted, made))
        if state == "ok":
            made.replace(LIBRARY)
    return state, wanted if state == "ok" else []


def build_host(folder: Path, *flags: str) -> Path:
    """Compile the library that runs the same kernels on this computer, one thread after another, for tests.

    Args:
        folder: Folder of the result.
        flags: Further words for the compiler; if none, ``-O2``.

    Raises:
        RuntimeError: If there is no C++ compiler, or it fails.
    """
    command, made = host_compiler(), Path(folder, "rl_prio_host.so")
    if command is None:
        raise RuntimeError("no C++ compiler (g++, clang++ or $CXX) was found")
    state = _run([*command, *HOST_FLAGS, *(flags or ("-O2",)), "-shared", "-o", str(made), str(SOURCES / "host.cpp")])
    if state != "ok":
        raise RuntimeError(state)
    return made


def _run(line: Sequence[str]) -> str:
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{line[0]} does not run: {error.strerror}"
    if done.returncode == 0:
        return "ok"
    said = " ".join((done.stderr or done.stdout).split())
    return f"{line[0]} failed with status {done.returncode}" + (f": {said[-500:]}" if said else "")


def record() -> Record:
    """Return the record of the last build; empty if there was none."""
    try:
        found = json.loads(RECORD.read_text())
    except (OSError, ValueError):
        return Record()
    return cast("Record", found) if isinstance(found, dict) else Record()


def main() -> int:
    """Build late: into the installed package, where a library that is there stays if there will be no new one."""
    try:
        state = build(keep=True)
    except RuntimeError as error:
        state = str(error)
    except OSError as error:
        state = (
            f"cannot write into {LIBRARY.parent} ({error.strerror}); run it as the user who installed rl-prio-cuda, or"
            " install rl-prio-cuda into a virtual environment of your own"
        )
    stays = f"; {LIBRARY}, which was there, stays" if state != "ok" and LIBRARY.is_file() else ""
    sys.stdout.write(f"{LIBRARY}\n" if state == "ok" else f"not built: {state}{stays}\n")
    return 0 if state == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
