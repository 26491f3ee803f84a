"""Each package at its last released version against the newest of all others, as metadata says and as it runs.

Wheels of the last releases are in one folder, those of the present sources in another:

    ./x hatch build --all -t wheel
    python tools/compatibility.py --newest dist --released released

A row is one wheel of `--released`, which may be a plugin of someone else too. It is installed with the newest wheels
that its ranges accept, and `rl doctor --plugin` runs the conformance checks on all its components. `excluded` is a row
whose ranges refuse a newest wheel, which an installer refuses too; that is right for another series only.
`--metadata` compares ranges and runs nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Wheel:
    """What the metadata of a wheel says."""

    path: Path
    name: str
    version: Version
    needs: tuple[Requirement, ...]

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Read the metadata of a file."""
        with zipfile.ZipFile(path) as files:
            (member,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
            fields = Parser().parsestr(files.read(member).decode())
        needs = tuple(map(Requirement, fields.get_all("Requires-Dist", [])))
        return cls(path, fields["Name"], Version(fields["Version"]), needs)

    @property
    def ours(self) -> dict[str, Requirement]:
        """Requirements on packages of the toolkit, those of extras included."""
        return {f"{one.name}{one.marker or ''}": one for one in self.needs if one.name.startswith("rl-")}


@dataclass(frozen=True)
class Row:
    """One cell of the matrix."""

    name: str
    version: str
    against: str
    state: str
    reason: str = ""


def wheels_in(folder: Path) -> dict[str, Wheel]:
    """Return the newest wheel of each distribution in a folder."""
    found: dict[str, Wheel] = {}
    for path in sorted(folder.glob("*.whl")):
        wheel = Wheel.read(path)
        if wheel.name not in found or found[wheel.name].version < wheel.version:
            found[wheel.name] = wheel
    return found


def refused(wheel: Wheel, others: dict[str, Wheel], *, extras: bool) -> list[str]:
    """Return which of the other wheels a wheel's ranges refuse."""
    return [
        f"{need.name}{need.specifier} refuses {others[need.name].version}"
        for need in wheel.ours.values()
        if need.name in others and (extras or need.marker is None) and others[need.name].version not in need.specifier
    ]


def closure(wheel: Wheel, others: dict[str, Wheel]) -> list[Wheel]:
    """Return a wheel and the other wheels that it needs, without extras."""
    found, waiting = {wheel.name: wheel}, [wheel]
    while waiting:
        for need in waiting.pop().needs:
            if need.marker is None and need.name in others and need.name not in found:
                found[need.name] = others[need.name]
                waiting.append(others[need.name])
    return list(found.values())


def try_out(wheel: Wheel, newest: dict[str, Wheel], folder: Path) -> str:
    """Install a released wheel with the newest others, and return what fails; an empty string if nothing does."""
    sys.path.insert(0, str(ROOT / "tests"))
    from fresh_env import fresh_env  # an environment with the third-party libraries of this one

    needs = closure(wheel, newest)
    kit = [newest[name] for name in ("rl-core", "rl-testing") if name in newest]
    chosen = {one.name: one for one in [*kit, *needs]}
    third = {need.name for one in chosen.values() for need in one.needs if not need.name.startswith("rl-")}
    env = fresh_env(folder / wheel.name, sorted(third))
    pip = [sys.executable, "-m", "pip", "--python", str(env.python), "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, *(str(one.path) for one in chosen.values())], check=True, capture_output=True)
    short = wheel.name.removeprefix("rl-").replace("-", "_")
    if wheel.name in newest:  # one of ours: every public name
        code = f"import rl.{short} as m; [getattr(m, name) for name in m.__all__]"
        done = env.run("-c", code)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
    if wheel.name in ("rl-core", "rl-testing"):  # no plugins: they serve the others
        return ""
    done = env.rl("doctor", "--plugin", wheel.name)
    problems = [line.strip() for line in done.stdout.splitlines() if line.lstrip().startswith("PROBLEM")]
    return (
        "" if done.returncode == 0 else (problems or (done.stdout + done.stderr).strip().splitlines() or ["fails"])[0]
    )


def rows(newest: dict[str, Wheel], released: dict[str, Wheel], *, run: bool) -> Iterator[Row]:
    """Yield the matrix: the newest with each other by their ranges, then each released one with the newest others."""
    for wheel in newest.values():
        wrong = refused(wheel, newest, extras=True)
        yield Row(wheel.name, str(wheel.version), "newest", "FAILED" if wrong else "accepts", "; ".join(wrong))
    with tempfile.TemporaryDirectory() as folder:
        for wheel in released.values():
            others = {name: one for name, one in newest.items() if name != wheel.name}
            wrong = refused(wheel, others, extras=False)
            users = [one.name for one in others.values() if refused(one, {wheel.name: wheel}, extras=False)]
            if wrong or (wheel.name in ("rl-core", "rl-testing") and users):
                reason = "; ".join(wrong) or f"{', '.join(users)} need a newer one"
                yield Row(wheel.name, str(wheel.version), "newest others", "excluded", reason)
            elif run:
                present = {**newest, wheel.name: wheel} if wheel.name in newest else newest
                reason = try_out(wheel, present, Path(folder))
                yield Row(wheel.name, str(wheel.version), "newest others", "FAILED" if reason else "runs", reason)
            else:
                yield Row(wheel.name, str(wheel.version), "newest others", "accepts")


def main(arguments: list[str] | None = None) -> int:
    """Print the matrix; 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", type=Path, default=ROOT / "dist", metavar="DIR", help="of present sources")
    parser.add_argument("--released", type=Path, default=ROOT / "released", metavar="DIR", help="of the last releases")
    parser.add_argument("--metadata", action="store_true", help="compare ranges, and run nothing")
    options = parser.parse_args(arguments)
    newest, released = wheels_in(options.newest), wheels_in(options.released)
    if not newest:
        print(f"no wheels in {options.newest}: run `./x hatch build --all -t wheel` first")
        return 1
    failed = False
    for row in rows(newest, released, run=not options.metadata):
        print(f"{row.name:22} {row.version:8} {row.against:14} {row.state:9} {row.reason}".rstrip(), flush=True)
        failed |= row.state == "FAILED"
    if not released:
        print(f"no wheels of releases in {options.released}: nothing was run")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
