"""Compare the public API of each package with that of its last release, kept in packages/NAME/api.json.

Public API is what can be imported, and what `api_promises` lists: members of protocols, hooks, contract versions,
bases, return types, values of constants, outputs of losses, names of components, commands, options, environment
variables, extras and scripts, and bounds of dependencies.
A breaking change is allowed only together with a new compatibility series: 0.1 -> 0.2, or 1.x -> 2.0. A snapshot older
than the last release, which is the newest version of CHANGELOG.md below the present one, is an error.
`--release NAME` (or `all`) writes the snapshot for the present version. `--root DIR` looks at another checkout.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import griffe
from api_promises import broken_promises, exports, promises, series
from packaging.version import Version

#: What changes without changing the API, or would tie the snapshot to a machine.
VOLATILE = {"docstring", "analysis"}
LINES = {"lineno", "endlineno"}


def version_of(package: Path) -> str:
    """The version that a package's version file states."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    text = (package / project["tool"]["hatch"]["version"]["path"]).read_text()
    found = re.search(r'__version__ = "(.+?)"', text)
    if found is None:
        raise SystemExit(f"{package.name}: no __version__ in its version file")
    return found[1]


def present_api(package: Path) -> griffe.Module:
    """The API as the sources have it, read without importing them."""
    loaded = griffe.load(
        f"rl.{short_name(package)}",
        search_paths=[package / "src"],
        allow_inspection=False,
        resolve_aliases=True,
        resolve_external=False,
    )
    if not isinstance(loaded, griffe.Module):
        raise SystemExit(f"{package.name}: rl.{short_name(package)} is not a module")
    return loaded


def short_name(package: Path) -> str:
    """`replay` for the folder `rl-replay`."""
    return package.name.removeprefix("rl-").replace("-", "_")


def stored_api(package: Path, api: dict[str, Any]) -> griffe.Module:
    """The API of a snapshot, placed in the namespace that it lived in so that its aliases resolve."""
    loader = griffe.GriffeLoader(allow_inspection=False)
    namespace = griffe.Module("rl", filepath=[package / "src" / "rl"])
    loader.modules_collection["rl"] = namespace
    module = griffe.Module.from_json(json.dumps(api))
    namespace.set_member(short_name(package), module)
    attach_bases(module)
    loader.resolve_aliases(implicit=False, external=False)
    return module


def attach_bases(scope: Any) -> None:
    """Give the bases of classes their scope, which a snapshot loses: inherited members are part of the API."""
    for member in scope.members.values():
        if member.is_alias or not (member.is_class or member.is_module):
            continue
        for base in getattr(member, "bases", ()):
            if isinstance(base, griffe.ExprName):
                base.parent = scope
        attach_bases(member)


def stripped(value: Any, package: Path) -> Any:
    """A snapshot without line numbers and paths."""
    if isinstance(value, dict):
        kept = {key: stripped(item, package) for key, item in value.items() if key not in VOLATILE | LINES}
        kept |= dict.fromkeys(LINES & value.keys(), 1)
        if "filepath" in kept:
            kept["filepath"] = "src/rl/" + str(kept["filepath"]).rpartition("/src/rl/")[2]
        return kept
    if isinstance(value, list):
        return [stripped(item, package) for item in value]
    return value


def snapshot(package: Path) -> dict[str, Any]:
    """What `--release` writes."""
    module = present_api(package)
    api = stripped(json.loads(module.as_json()), package)
    names = sorted(exports(module))
    return {"version": version_of(package), "exports": names, "api": api, "promises": promises(package, module)}


def is_break(change: griffe.Breakage) -> bool:
    """Whether a change of a name breaks callers: an implementation of a hook gets the arguments that it names."""
    added = isinstance(change, griffe.ParameterAddedRequiredBreakage | griffe.ParameterMovedBreakage)
    return not (added and change.obj.path.startswith("rl.core.hookspecs.rl_"))


def last_release(package: Path, now: str) -> str | None:
    """The newest version in the changelog below the present one; None before the first release."""
    path = package / "CHANGELOG.md"
    found = re.findall(r"^## (\S+)$", path.read_text(), re.MULTILINE) if path.is_file() else []
    return max((version for version in found if Version(version) < Version(now)), key=Version, default=None)


def check(package: Path) -> bool:
    """Print what broke since the snapshot; whether that is allowed."""
    path = package / "api.json"
    now = version_of(package)
    released = last_release(package, now)
    old = json.loads(path.read_text()) if path.is_file() else None
    if released is not None and (old is None or Version(old["version"]) < Version(released)):
        have = "there is none" if old is None else f"it is of {old['version']}"
        print(
            f"{package.name} {now}: the snapshot is older than the last release {released}, {have}. Check out that"
            f" release, run `./x api --release {package.name}` there, and keep its api.json"
        )
        return False
    if old is None:
        print(f"{package.name} {now}: no release yet")
        return True
    new = snapshot(package)
    # A name that leaves `__all__` but is still imported there is no change to griffe.
    breaks = [f"{name} left __all__" for name in old["exports"] if name not in new["exports"]]
    # Both sides go through the same serialization: what it loses must not look like a change.
    changes = griffe.find_breaking_changes(stored_api(package, old["api"]), stored_api(package, new["api"]))
    explained = [change.explain(griffe.ExplanationStyle.ONE_LINE) for change in changes if is_break(change)]
    breaks += [re.sub(r"\x1b\[\d*m", "", text) for text in explained]  # without colours
    breaks += broken_promises(old["promises"], new["promises"])
    allowed = not breaks or series(now) > series(old["version"])
    verdict = "" if allowed else ": needs a new version series (`hatch version minor` before 1.0, else `major`)"
    print(f"{package.name} {old['version']} -> {now}: {len(breaks)} breaking change(s){verdict}")
    for change in breaks:
        print("   ", change)
    return allowed


def main() -> int:
    """Check every package, after writing the requested snapshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="", metavar="NAME", help="write the snapshot of NAME, or of all")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    packages = sorted(path.parent for path in (options.root / "packages").glob("*/pyproject.toml"))
    for package in packages:
        if options.release in (package.name, "all"):
            text = json.dumps(snapshot(package), sort_keys=True, separators=(",", ":"))
            (package / "api.json").write_text(text + "\n")
    verdicts = [check(package) for package in packages]  # all of them, also after the first that fails
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
