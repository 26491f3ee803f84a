"""The files of docs/plugins.md, written, built and installed as the page says, and each component used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_env import ROOT, build_wheel

PAGE = ROOT / "docs" / "plugins.md"
FILE = re.compile(r"`([\w./-]+\.(?:py|toml))`:\n\n```\w+\n(.*?)```", re.DOTALL)
"""A file of the page: its name and a colon end the paragraph before the block."""

USE = """
import torch
from acme_rl.mse import ValueMSE
from rl.core import load
from rl.testing import check_env, check_loss
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

check_env(load("env", "acme/line"), time_limit=10)
assert load("loss", "acme-mse") is ValueMSE
critic = TensorDictModule(torch.nn.Linear(1, 1), ["observation"], ["state_value"])
batch = TensorDict(observation=torch.randn(8, 1), value_target=torch.randn(8, 1), batch_size=[8])
check_loss(ValueMSE(critic), batch)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder into which pip installed the wheel of the page's project."""
    home = tmp_path_factory.mktemp("page")
    project = home / "acme-rl"
    files = dict(FILE.findall(PAGE.read_text()))
    assert {"pyproject.toml", "src/acme_rl/plugin.py", "src/acme_rl/line.py", "src/acme_rl/mse.py"} < set(files)
    for name, text in {**files, "src/acme_rl/__init__.py": ""}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    build_wheel(project, home / "dist")
    (wheel,) = (home / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(home / "site"), "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return home / "site"


def run(site: Path, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python where the plugin is installed; a warning is an error."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-W", "error::UserWarning:rl", *args]
    done = subprocess.run(command, env=env, cwd=cwd or site, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_plugin_is_loaded_with_all_its_components(site):
    records = {record["name"]: record for record in json.loads(run(site, "-m", "rl.core", "plugins", "--json").stdout)}
    assert records["acme"]["state"] == "loaded"
    assert [one["name"] for one in records["acme"]["components"]] == ["acme/line", "acme-mse", "acme-lines"]


def test_its_environment_and_loss_pass_the_checks(site):
    run(site, "-c", USE)


def test_its_command_runs(site):
    assert run(site, "-m", "rl.core", "acme", "and", "more").stdout == "0.0 and more\n"


def test_doctor_checks_it_as_the_page_shows(site):
    shown = PAGE.read_text().partition("$ rl doctor --plugin acme-rl\n")[2].partition("```")[0]
    said = run(site, "-m", "rl.core", "doctor", "--plugin", "acme-rl").stdout
    assert re.sub(r"\d+ ms", "1 ms", " ".join(said.split())) == " ".join(shown.split())


def test_its_environment_trains_and_its_logger_resumes(site, tmp_path):
    options = ["--frames-per-batch", "64", "--minibatch-size", "32", "--epochs", "1", "--num-envs", "2"]
    options += ["--env", "acme/line", "--loggers", "csv,acme-lines", "--out", "run", "--display", "none"]
    options += ["--eval-episodes", "1", "--final-eval-episodes", "1", "--log-every", "64"]
    run(site, "-m", "rl.core", "train", "ppo", "--total-frames", "128", *options, cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert rows[-1]["step"] == 128
