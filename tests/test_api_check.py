"""A breaking change without a new version series is found, shown on a doctored copy of the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_env import ROOT

PACKAGES = ("rl-core", "rl-envs", "rl-objectives", "rl-replay")


def check(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "api_check.py"), "--root", str(root), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """A checkout that holds four packages, released as they are."""
    root = tmp_path_factory.mktemp("released")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "tests", "benchmarks", "api.txt")
        shutil.copytree(ROOT / "packages" / name, root / "packages" / name, ignore=ignored)
    done = check(root, "--release", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 breaking change(s)") == len(PACKAGES)
    return root


def doctored(released: Path, root: Path, changes: list[tuple[str, str, str]]) -> subprocess.CompletedProcess[str]:
    """The check of a copy in which the first `old` of each file is replaced."""
    shutil.copytree(released / "packages", root / "packages")
    for file, old, new in changes:
        path = root / "packages" / file
        text = path.read_text()
        assert old in text, (file, old)
        path.write_text(text.replace(old, new, 1))
    return check(root)


CORE, ENVS, REPLAY = "rl-core/src/rl/core/", "rl-envs/", "rl-replay/"
PPO = "rl-objectives/src/rl/objectives/losses/policy_gradient/_ppo.py"
BREAKS = {
    "argument": (CORE + "contract.py", "def rename(self, names", "def rename(self, more, names", "(more)"),
    "method": (CORE + "contract.py", "def refuse(", "def reject(", "Contract.refuse"),
    "kind-of-a-method": (CORE + "mdp.py", "@classmethod", "@staticmethod", "StepMDP.from_env"),
    "name-of-a-module": (CORE + "arguments.py", '"same_shape"', '"one_shape"', "same_shape"),
    "name-of-the-root": (CORE + "__init__.py", '    "explain",\n', "", "explain left __all__"),
    "return-type": (
        CORE + "settings.py",
        "(name: str) -> str:",
        "(name: str) -> bytes:",
        "normalized: returns str became bytes",
    ),
    "return-type-wider": (CORE + "contract.py", ") -> Contract:", ") -> Contract | None:", "Contract | None"),
    "base-of-an-error": (
        CORE + "errors.py",
        "ShapeError(RLError, ValueError)",
        "ShapeError(RLError)",
        "ShapeError: bases",
    ),
    "other-base": (
        CORE + "errors.py",
        "BackendError(RLError, RuntimeError)",
        "BackendError(RLError, OSError)",
        "BackendError: bases",
    ),
    "constant": (CORE + "keys.py", 'REWARD = "reward"', 'REWARD = "rewards"', "keys:REWARD: values 'reward' became"),
    "group-of-entry-points": (CORE + "registry.py", '"rl.plugins"', '"rl.plugin"', "registry:GROUP: values"),
    "default-key": (
        PPO.replace("_ppo", "_base"),
        '"advantage": "advantage"',
        '"advantage": "a"',
        "default_keys: values",
    ),
    "output-of-a-loss": (PPO, 'scalar("loss_entropy"', 'scalar("entropy_loss"', "PPOLoss: outputs"),
    "variable": (CORE + "settings.py", '"RL_DATASETS"', '"RL_DATA"', "environment variable RL_DATASETS was removed"),
    "option": (CORE + "doctor.py", '"--quick"', '"--fast"', "argument --quick of rl doctor was removed"),
    "own-command": (CORE + "cli.py", '"rl plugins", desc', '"rl list", desc', "subcommand rl plugins was removed"),
    "command": (
        ENVS + "src/rl/plugins/envs.py",
        '"suggest-workers"',
        '"workers"',
        "command suggest-workers was removed",
    ),
    "member-of-a-protocol": (
        CORE + "interfaces.py",
        "    def close(",
        "    def render(self): ...\n\n    def close(",
        "new member render",
    ),
    "return-of-a-protocol": (CORE + "interfaces.py", "seed: int) -> int", "seed: int) -> str", "Env.set_seed"),
    "option-of-a-protocol": (
        CORE + "interfaces.py",
        "step: int",
        "step: int, *, deep: bool = False",
        "deep: bool",
    ),
    "answer-of-a-hook": (
        CORE + "hookspecs.py",
        ") -> RowGather | None:",
        ") -> list[RowGather]:",
        "rl_row_gather: hooks",
    ),
    "argument-of-a-hook": (CORE + "hookspecs.py", "    cell: Literal", "    kind: Literal", "(cell)"),
    "first-result": (
        CORE + "hookspecs.py",
        "@hookspec(firstresult=True)\ndef rl_priority_tree",
        "@hookspec\ndef rl_priority_tree",
        "rl_priority_tree: hooks",
    ),
    "kind": (CORE + "component.py", '    "logger": (1, 1),\n', "", "kind logger was removed"),
    "contract": (CORE + "component.py", '"recipe": (1, 1)', '"recipe": (2, 2)', "recipe/1 to recipe/1 became"),
    "component": (ENVS + "src/rl/plugins/envs.py", '"pendulum"', '"swing-up"', "component env pendulum was removed"),
    "lower-bound": ("rl-core/pyproject.toml", "torch>=2.11", "torch>=2.13", "torch>=2.11 became torch>=2.13"),
    "upper-bound": ("rl-core/pyproject.toml", "pluggy>=1.5,<2", "pluggy>=1.5,<1.9", "pluggy<2,>=1.5 became"),
    "excluded-version": (
        "rl-core/pyproject.toml",
        "tensordict>=0.14",
        "tensordict>=0.14,!=0.15",
        "tensordict>=0.14 became",
    ),
    "python": ("rl-core/pyproject.toml", ">=3.11", ">=3.12", "python>=3.11 became python>=3.12"),
    "new-dependency": (
        REPLAY + "pyproject.toml",
        '  "rl-core>=',
        '  "scipy>=1",\n  "rl-core>=',
        "dependency scipy>=1 is new",
    ),
    "new-in-an-extra": (
        REPLAY + "pyproject.toml",
        'd4rl = ["h5py',
        'd4rl = ["scipy", "h5py',
        "dependency d4rl: scipy is new",
    ),
    "extra": (ENVS + "pyproject.toml", "vmas = [", "vmas2 = [", "extra vmas was removed"),
    "script": ("rl-core/pyproject.toml", 'rl = "rl.core', 'rlx = "rl.core', "script rl was removed"),
    "entry-point": (
        ENVS + "pyproject.toml",
        'envs = "rl.p',
        'env = "rl.p',
        "entry point envs of group rl.plugins was removed",
    ),
}
"""Name of a break: file, text, other text, and what the report names."""


@pytest.fixture(scope="module")
def broken(released, tmp_path_factory) -> subprocess.CompletedProcess[str]:
    """The report of a copy with all breaks at once, which do not hide each other."""
    return doctored(released, tmp_path_factory.mktemp("broken"), [change[:3] for change in BREAKS.values()])


@pytest.mark.parametrize("named", [change[3] for change in BREAKS.values()], ids=BREAKS)
def test_each_break_is_named(broken, named):
    assert named in broken.stdout, broken.stdout + broken.stderr


def test_a_break_without_a_new_series_fails(broken):
    assert broken.returncode == 1
    assert broken.stdout.count("needs a new version series") == len(PACKAGES)


def test_a_break_with_a_new_series_passes(released, tmp_path):
    change = (CORE + "contract.py", "def refuse(", "def reject(")
    done = doctored(released, tmp_path, [change, (CORE + "__about__.py", '"0.', '"9.')])
    assert done.returncode == 0, done.stdout
    assert "1 breaking change(s)" in done.stdout


def test_additions_pass(released, tmp_path):
    additions = [
        (CORE + "arguments.py", "def same", "def another() -> None:\n    ...\n\n\ndef same"),
        (CORE + "hookspecs.py", "(tensors: ", "(size: int, tensors: "),
        (CORE + "component.py", '"env": (1, 1)', '"env": (1, 2)'),
        (CORE + "errors.py", "ShapeError(RLError, ValueError)", "ShapeError(RLError, ValueError, ArithmeticError)"),
        (CORE + "cli.py", '"--all"', '"--every"); parser.add_argument("--all"'),
        (PPO, 'scalar("loss_entropy"', 'scalar("loss_more", "more"), scalar("loss_entropy"'),
        (PPO.replace("_ppo", "_base"), '"advantage": "advantage"', '"advantage": "advantage", "more": "more"'),
        ("rl-core/pyproject.toml", "pluggy>=1.5,<2", "pluggy>=1.4"),
        (ENVS + "pyproject.toml", '"rl-core>=0.3', '"rl-core>=0.3.9'),
        (ENVS + "pyproject.toml", "vmas = [", 'more = ["more>=1"]\nvmas = ['),
        (ENVS + "src/rl/plugins/envs.py", "    yield", '    yield Component("env", "n", "m:A")\n    yield'),
    ]
    done = doctored(released, tmp_path, additions)
    assert done.returncode == 0, done.stdout + done.stderr


def small_package(root: Path, version: str, code: str = "") -> Path:
    """The folder of an rl-core that is one module."""
    package = root / "packages" / "rl-core"
    module = package / "src" / "rl" / "core"
    module.mkdir(parents=True, exist_ok=True)
    (module / "__init__.py").write_text(f'"""Nothing."""\n{code}')
    (module / "__about__.py").write_text(f'__version__ = "{version}"\n')
    (package / "pyproject.toml").write_text(
        '[project]\nrequires-python = ">=3.11"\ndependencies = []\n'
        '[tool.hatch.version]\npath = "src/rl/core/__about__.py"\n'
    )
    return package


SETTINGS = """
from dataclasses import dataclass

@dataclass(kw_only=True)
class Config:
    gamma: float = 0.99

@dataclass(kw_only=True)
class PPOConfig(Config):
    epochs: int = 4
"""


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("0.99", "0.9", "Config.gamma: default 0.99 became 0.9"),
        ("epochs: int = 4", "epochs: int", "PPOConfig.epochs: default 4 became none"),
        ("    epochs", "    lr: float\n    epochs", "PPOConfig: new field lr without a default"),
        ("epochs: int = 4", "pass", "PPOConfig.epochs: the attribute was removed"),
        ("    epochs", "    lr: float = 1.0\n    epochs", ""),
        ("    epochs: int = 4", "    gamma: float = 0.9\n    epochs: int = 4", ""),
    ],
)
def test_fields_of_settings_are_compared_one_by_one(tmp_path, old, new, named):
    small_package(tmp_path, "0.1.0", SETTINGS)
    assert check(tmp_path, "--release", "all").returncode == 0
    small_package(tmp_path, "0.1.1", SETTINGS.replace(old, new))
    done = check(tmp_path)
    assert named in done.stdout, done.stdout + done.stderr
    assert done.returncode == bool(named)


def test_the_text_has_one_sorted_line_for_each_signature(tmp_path):
    package = small_package(
        tmp_path, "0.1.0", '__all__ = ["double"]\n\ndef double(x: int, *, y: int = 2) -> int: ...\n'
    )
    check(tmp_path, "--release", "rl-core")
    assert (package / "api.txt").read_text().splitlines() == [
        "# rl-core 0.1.0",
        "dependency python>=3.11",
        "rl.core module",
        "rl.core:double def(x: int, *, y: int = 2) -> int",
    ]


@pytest.mark.parametrize(("snapshot", "fails"), [("0.1.0", True), ("0.1.9", False), ("0.2.0", False), (None, True)])
def test_a_snapshot_older_than_the_last_release_fails(tmp_path, snapshot, fails):
    package = small_package(tmp_path, snapshot or "0.2.0")
    if snapshot is not None:
        assert check(tmp_path, "--release", "all").returncode == 0
    small_package(tmp_path, "0.2.0")
    (package / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0\n\n## 0.1.9\n\n## 0.1.0\n")
    done = check(tmp_path)
    assert done.returncode == int(fails), done.stdout + done.stderr
    assert ("older than the last release 0.1.9" in done.stdout) is fails
