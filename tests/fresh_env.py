"""Fresh environments for the tests that install our wheels as a user would.

torch and its like are large, so an environment is not filled from the network: the distributions that a package
may depend on are linked from the environment that runs the tests, and pip installs our wheels *with* their
dependencies from a folder and nothing else. A package with an undeclared dependency fails to install.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CORE_NEEDS = ("torch", "tensordict", "pluggy")


def build_wheel(source: Path, into: Path) -> None:
    """Build the wheel of one project with the hatchling of this environment."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@dataclass(frozen=True)
class FreshEnv:
    """A virtual environment."""

    home: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "bin" / "python"

    def install(self, wheels: Path, *names: str) -> None:
        """Install by name from a folder of wheels, dependencies included, nothing from an index."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-q", "--no-index"]
        # Folders that the runner's own pip knows must not help out: what is missing has to fail. Through the links
        # pip would otherwise write another torch into the environment that runs the tests.
        env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
        command = [*pip, "--disable-pip-version-check", "--find-links", str(wheels), *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr

    def run(self, *args: str, cwd: Path | None = None, **extra_env: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter; the output is captured."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RL_", "COV_"))}
        env |= {"OMP_NUM_THREADS": "1", **extra_env}
        return subprocess.run(
            [str(self.python), *args], capture_output=True, text=True, check=False, cwd=cwd or self.home, env=env
        )

    def script(self, code: str) -> str:
        """Run Python code that must succeed; what it printed."""
        done = self.run("-W", "error::UserWarning", "-c", code)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rl(self, *args: str, **extra_env: str) -> subprocess.CompletedProcess[str]:
        """Run its `rl` command."""
        return self.run("-m", "rl.core", *args, **extra_env)


def fresh_env(home: Path, shared: Iterable[str] = CORE_NEEDS) -> FreshEnv:
    """Make an environment that holds the distributions `shared`, and what they need, as links."""
    venv.create(home, with_pip=False, symlinks=True)
    env = FreshEnv(home)
    site = Path(env.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for dist in closure(shared):
        link(dist, site)
    return env


def closure(names: Iterable[str]) -> list[Distribution]:
    """Installed distributions with these names and their requirements."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()  # with each requested extra, such as cublas of cuda-toolkit
    todo = [(name, "") for name in names]
    while todo:
        name, extra = todo.pop()
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform
        key = re.sub(r"[-_.]+", "-", dist.name).lower()
        if (key, extra) in done:
            continue
        done.add((key, extra))
        found[key] = dist
        for need in map(Requirement, dist.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                todo += [(need.name, wanted) for wanted in ("", *need.extras)]
    return list(found.values())


def link(dist: Distribution, site: Path) -> None:
    """Link what a distribution brought to `site-packages`."""
    tops = {Path(str(file)).parts[0] for file in dist.files or () if ".." not in str(file)}
    for top in tops:
        source = Path(str(dist.locate_file(top)))
        target = site / top
        if source.exists() and not target.exists():
            target.symlink_to(source)
