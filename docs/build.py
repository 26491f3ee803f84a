"""Build the site: `./x docs:build`, or `./x docs:build --version 0.3` for a folder of the site of all versions.

The pages are in docs/_build/html. With a version they are copied to docs/_build/site/VERSION, next to those of other
versions, and `versions.json` lists them, newest first: `_static/versions.js` shows the list on every page.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
BUILD = DOCS / "_build"


def add_version(html: Path, site: Path, version: str) -> None:
    """Copy built pages into the site of all versions, and list them; the root leads to the newest.

    Args:
        html: Folder of the built pages.
        site: Folder of the site, which is created if it is not there.
        version: Name of the version: numbers with dots, or another word such as `latest`, which is listed below them.
    """
    if not re.fullmatch(r"\w[\w.]*", version):
        sys.exit(f"docs:build: --version must be a word such as 0.3, got {version!r}")
    folder = site / version
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(html, folder)
    names = sorted(
        (path.name for path in site.iterdir() if path.is_dir()), key=rank, reverse=True
    )
    (site / "versions.json").write_text(json.dumps(names) + "\n")
    (site / "index.html").write_text(
        f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n'
    )


def rank(version: str) -> tuple[int, ...]:
    """Order of a version; words come before numbers."""
    numbered = re.fullmatch(r"\d+(\.\d+)*", version)
    return tuple(map(int, version.split("."))) if numbered else ()


def main(arguments: Sequence[str]) -> int:
    """Write the generated pages, build, and copy; further arguments are those of sphinx-build."""
    parser = argparse.ArgumentParser("docs:build", description=__doc__)
    parser.add_argument("--version")
    parser.add_argument(
        "--html",
        type=Path,
        help="folder of pages that were built already, such as those of an older tag",
    )
    options, more = parser.parse_known_args(arguments)
    if options.html is None:
        steps = ["reference", "options", "diagrams", "results"]
        commands = [[sys.executable, str(DOCS / f"make_{step}.py")] for step in steps]
        html = str(BUILD / "html")
        sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
        sphinx += ["-j", "auto", "-d", str(BUILD / "doctrees"), "-b", "html"]
        commands.append([*sphinx, str(DOCS), html, *more])
        commands.append([sys.executable, str(DOCS / "check_links.py"), html])
        for command in commands:
            if status := subprocess.call(command, cwd=DOCS.parent):
                return status
    if options.version:
        add_version(options.html or BUILD / "html", BUILD / "site", options.version)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
