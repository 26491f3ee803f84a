"""The scripts of `examples/` run with few frames, and stay on one page."""

import importlib.util
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.filterwarnings("ignore:total_frames=")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs_and_reports_returns(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert math.isfinite(module.main(total_frames=2048, seed=0))
    assert "frames" in capsys.readouterr().out


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_uses_public_names_on_at_most_250_lines(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 250
    assert re.search(r"\brl(\.\w+)*\._", text) is None
    assert re.search(r"from rl\S* import .*\b_\w", text) is None


def test_a_loop_of_ones_own_continues_exactly_after_a_kill(tmp_path):
    command = [sys.executable, str(SCRIPTS[0].with_name("own_loop.py")), "--total-frames", "6144", "--out"]
    subprocess.run([*command, "whole"], cwd=tmp_path, check=True, capture_output=True)
    kept = tmp_path / "killed" / "checkpoints" / "frames-2048.safetensors"
    with subprocess.Popen([*command, "killed"], cwd=tmp_path, stdout=subprocess.DEVNULL) as killed:
        while not kept.exists():
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
    assert not (kept.parent / "frames-6144.safetensors").exists()
    again = subprocess.run([*command, "killed"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "6144 frames" in again.stdout
    whole, continued = (tmp_path / name / "metrics.csv" for name in ("whole", "killed"))
    assert continued.read_text() == whole.read_text()
