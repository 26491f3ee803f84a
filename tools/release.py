"""Release a package: version, changelog, API text, ranges of dependants, sdist and wheel, commit and tag.

    ./x release rl-replay                # the present version
    ./x release rl-replay --bump minor   # the next one
    ./x release rl-replay --dry-run      # says what would be done

Nothing is uploaded: pushing the tag starts `.github/workflows/release.yml`, which builds again, attests and publishes.
Packages and templates whose ranges refuse the new version get a range of its series; they are to be released next.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import api_check
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("major", "minor", "patch")


def bumped(version: str, part: str) -> str:
    """Return the next version.

    Example:
        >>> bumped("0.3.1", "minor"), bumped("0.3.1", "patch")
        ('0.4.0', '0.3.2')
    """
    numbers = [*Version(version).release, 0, 0][:3]
    at = PARTS.index(part)
    return ".".join(map(str, [*numbers[:at], numbers[at] + 1, *[0] * (2 - at)]))


def range_of(version: str) -> str:
    """Return the range of the compatible series, which begins with a version.

    Example:
        >>> range_of("0.3.1"), range_of("1.4.0")
        ('>=0.3,<0.4', '>=1.4,<2')
    """
    major, minor, *_ = Version(version).release
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def widened(text: str, name: str, version: str) -> str:
    """Return metadata whose requirements on a package accept a version; those that do already stay."""

    def replaced(match: re.Match[str]) -> str:
        need = Requirement(match[1] + match[2])
        return match[0] if Version(version) in need.specifier else f'"{match[1]}{range_of(version)}{match[3]}"'

    pattern = rf'"({re.escape(name)}(?:\[[\w,-]+\])?)([<>=~!][^";]*)((?:;[^"]*)?)"'
    return re.sub(pattern, replaced, text)


def dependants(root: Path, name: str, version: str) -> dict[Path, str]:
    """Return the files whose ranges refuse the version, with their new text."""
    files = [*root.glob("packages/*/pyproject.toml"), *root.glob("template/*/pyproject.toml")]
    files += root.glob("packages/rl-core/src/rl/core/_plugin_template/files/pyproject.toml.jinja")
    found = {}
    for file in sorted(files):
        text = file.read_text(encoding="utf-8")
        new = widened(text, name, version)
        if new != text:
            found[file] = new
    return found


def git(root: Path, *words: str) -> str:
    """Run git and return what it prints."""
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def problem(root: Path, package: Path, version: str) -> str:
    """Return why the package cannot be released; an empty string if it can."""
    if not (package / "pyproject.toml").is_file():
        names = ", ".join(sorted(path.parent.name for path in root.glob("packages/*/pyproject.toml")))
        return f"there is no package {package.name}; packages: {names}"
    if git(root, "status", "--porcelain"):
        return "there are changes that are not committed: commit them first"
    if git(root, "tag", "--list", f"{package.name}-v{version}"):
        return f"{package.name} {version} was released: its tag exists; use --bump"
    return ""


def release(root: Path, name: str, part: str | None, *, dry_run: bool) -> int:
    """Release a package and return the exit status."""
    package = root / "packages" / name
    present = api_check.version_of(package) if (package / "pyproject.toml").is_file() else "0"
    version = bumped(present, part) if part else present
    if reason := problem(root, package, version):
        print(f"release: {reason}", file=sys.stderr)
        return 2
    others = dependants(root, name, version)
    print(f"{name} {version}" + (f" (was {present})" if part else ""))
    for file in others:
        print(f"range of {name} in {file.relative_to(root)}: {range_of(version)}")
    if dry_run:
        return 0
    (about,) = (package / "src" / "rl").glob("*/__about__.py")
    about.write_text(about.read_text(encoding="utf-8").replace(f'"{present}"', f'"{version}"'), encoding="utf-8")
    if not api_check.check(package, release=False) or not api_check.check(package, release=True):
        git(root, "checkout", "--", ".")
        print("release: the API breaks what the last release promised: use --bump minor or major", file=sys.stderr)
        return 1
    for file, text in others.items():
        file.write_text(text, encoding="utf-8")
    dist = root / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(dist)]
    subprocess.run(build, cwd=package, check=True, stdout=subprocess.DEVNULL)
    git(root, "add", "-A")  # nothing else was changed
    git(root, "commit", "-m", f"Release {name} {version}", "--allow-empty")
    git(root, "tag", "-a", f"{name}-v{version}", "-m", f"{name} {version}")
    made = sorted(path.name for path in dist.glob(f"{name.replace('-', '_')}-{version}*"))
    print(f"built {', '.join(made)}; to publish: git push origin HEAD {name}-v{version}")
    return 0


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="name of the distribution, as in rl-replay")
    parser.add_argument("--bump", choices=PARTS, help="raise this part of the version first")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args()
    return release(options.root, options.package, options.bump, dry_run=options.dry_run)


if __name__ == "__main__":
    sys.exit(main())
