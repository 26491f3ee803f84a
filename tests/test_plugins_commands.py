"""The command blocks of docs/plugins.md, run line by line in a fresh environment, with our wheels as the only index."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_env import ROOT, FreshEnv, fresh_env
from test_plugins import TRAINER_NEEDS
from test_plugins_page import FILE, PAGE

BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
NEEDS = (*TRAINER_NEEDS, "hatchling", "pytest")
FEW = "--display none --total-frames 128 --eval-episodes 1 --final-eval-episodes 1 --num-envs 2 --out run-{number}"
PER_RECIPE = {"ppo": "--frames-per-batch 64 --minibatch-size 32 --epochs 1", "dqn": "--learning-starts 32"}


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with the output that the page shows."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def words(text: str) -> list[str]:
    """Words without the rules of tables and without times."""
    return [word for word in re.sub(r"\d+ ms", "1 ms", text).split() if not re.fullmatch(r"-+", word)]


def is_part(shown: list[str], said: list[str]) -> bool:
    """Whether the words are there in this order; a page may leave lines out."""
    rest = iter(said)
    return all(word in rest for word in shown)


class Shell:
    """A shell whose `pip`, `python`, `pytest` and `rl` are those of a fresh environment without an index."""

    def __init__(self, env: FreshEnv, folder: Path, wheels: Path) -> None:
        self.folder, self.lines = folder, 0
        pip = env.home / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pip --python {env.python} "$@"\n')
        pip.chmod(0o755)
        pytest_ = env.home / "bin" / "pytest"
        pytest_.write_text(f'#!/bin/sh\nexec {env.python} -m pytest -p no:cacheprovider "$@"\n')
        pytest_.chmod(0o755)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON", "RL_"))}
        self.env = {
            **kept,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{env.home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_FIND_LINKS": str(wheels),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the opposite: without isolation
            "PIP_NO_INDEX": "1",
        }

    def run(self, command: str) -> str:
        """Run a command that must succeed; `rl train` with few frames. Its output."""
        self.lines += 1
        command = command.replace('install -e "', 'install "./')  # an editable one needs `editables` of an index
        if found := re.search(r"\brl train (\w+)", command):
            few = FEW.format(number=self.lines)
            command = command.replace("   #", f" {few} {PER_RECIPE[found[1]]} #") if "#" in command else command
            command += "" if "#" in command else f" {few} {PER_RECIPE[found[1]]}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def shell(wheels: Path, tmp_path_factory) -> Shell:
    home = tmp_path_factory.mktemp("page")
    (home / "work").mkdir()
    return Shell(fresh_env(home / "env", NEEDS), home / "work", wheels)


def test_a_plugin_is_written_installed_and_tested_as_the_page_says(shell):
    ((install, _), (new, shown)) = commands(BLOCKS[0])
    shell.run(install)
    assert shell.run(new) == shown
    for line in shown.splitlines()[1:]:
        shell.run(line.strip())


def test_the_plugin_of_the_page_is_used_as_the_page_says(shell):
    shell.run("rm -r acme-rl && pip uninstall -y acme-rl")
    for name, text in {**dict(FILE.findall(PAGE.read_text())), "src/acme_rl/__init__.py": ""}.items():
        path = shell.folder / "acme-rl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shell.run("pip install rl-trainers rl-native")  # section 6 trains
    _, doctor, use, names, broken = BLOCKS
    for block in (use, doctor, names, broken):
        for command, shown in commands(block):
            said = shell.run(command)
            assert is_part(words(shown), words(said)), f"$ {command}\n{said}\nis not what the page shows:\n{shown}"


def test_words_are_looked_for_in_order():
    assert is_part(words("a 3 ms\n---\nb"), words("x a 12 ms y b"))
    assert not is_part(["b", "a"], ["a", "b"])
    assert (ROOT / "docs" / "plugins.md") == PAGE
