#!/usr/bin/env python3
"""Run a hatch script of this repository: `./x train`, `./x test`, `./x lint:check`.

Sets up what is missing on first use, all of it under .hatch/ in this checkout. `./x hatch ...` passes a command
to hatch itself. Whoever has hatch can equally type `hatch run train`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
STATE = ROOT / ".hatch"
HATCH = "hatch==1.18.2"


def private_hatch() -> Path:
    """Path of hatch in a virtual environment of its own, made if it is not there."""
    home = STATE / "tool"
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    stamp = home / "stamp"
    wanted = f"{HATCH} {sys.version_info[0]}.{sys.version_info[1]} {home}"
    if not stamp.is_file() or stamp.read_text() != wanted:
        note(f"setting up {HATCH} in {STATE.name}/ (once)")
        venv.create(home, clear=True, with_pip=True)
        pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", HATCH]
        subprocess.run(pip, check=True)
        stamp.write_text(wanted)
    return programs / "hatch"


def member_digests() -> dict[str, str]:
    """What an editable install freezes, by package: metadata, version, build hook and native sources."""
    digests = {}
    for project in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        folder = project.parent
        files = [project, *sorted(folder.glob("src/rl/*/__about__.py")), *sorted(folder.glob("hatch_build.py"))]
        files += sorted(path for path in folder.glob("src/rl/*/csrc/**/*") if path.is_file())
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        digests[folder.name] = digest.hexdigest()
    return digests


def refresh_members(hatch: Path, env: dict[str, str]) -> None:
    """Reinstall members whose metadata changed: hatch does not notice by itself."""
    stamp = STATE / "members.json"
    now = member_digests()
    before = json.loads(stamp.read_text()) if stamp.is_file() else {}
    changed = [name for name in now if before and before.get(name) != now[name]]
    if changed:
        found = subprocess.run(
            [hatch, "env", "find", "default"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        if Path(found.stdout.strip()).is_dir():
            note("reinstalling " + " ".join(changed))
            editable = [word for name in changed for word in ("-e", f"packages/{name}")]
            pip = [hatch, "run", "python", "-m", "pip", "install", "-q", "--no-deps", *editable]
            subprocess.run(pip, cwd=ROOT, env=env, check=True)
    stamp.write_text(json.dumps(now))


def call(command: list[str | Path], env: dict[str, str]) -> int:
    """Run a command to its end and return its exit status.

    Ctrl-C reaches the command by itself, and it may have something to save: wait for it. `subprocess.call` would
    kill it after a quarter of a second.
    """
    interrupted = False
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        while True:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                interrupted = True
            else:
                return 130 if interrupted and status else status


def note(text: str) -> None:
    """Say something about `x` itself, apart from what the command prints."""
    print(f"x: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the script that was asked for; its exit status."""
    if sys.version_info < (3, 11):  # noqa: UP036  an older Python is exactly what this is about
        sys.exit("x: needs Python 3.11 or newer; run it as `python3.11 x ...`, for example")
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        print("Scripts: train, eval, test, types, imports, api, wheels, rl, lint:check, lint:fix, docs:build")
        return 0
    # A hatch that is already active would make ours run inside its environment.
    env = {key: value for key, value in os.environ.items() if key not in ("HATCH_ENV", "HATCH_ENV_ACTIVE")}
    env["HATCH_DATA_DIR"] = str(STATE / "data")
    try:
        hatch = private_hatch()
        command = sys.argv[1:]
        if command[0] == "hatch":
            return call([hatch, *command[1:]], env)
        refresh_members(hatch, env)
        return call([hatch, "run", *command], env)
    except subprocess.CalledProcessError as error:
        note(f"set-up failed ({error.returncode}); the lines above say why. Once mended, run the same command again")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
