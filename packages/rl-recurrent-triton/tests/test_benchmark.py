"""The benchmark: that it says where it cannot measure, and that it runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "recurrent.py"


def run(*arguments, **environ):
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_it_says_so():
    assert "torch sees none" in run()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="it would take the GPU")
def test_it_runs_in_the_interpreter(tmp_path):
    pytest.importorskip("rl.modules", reason="two contenders are of rl-modules")
    said = run("--tiny", "--json", str(tmp_path / "found.json"), TRITON_INTERPRET="1")
    assert "without meaning" in said
    assert "resident" in said
    assert (tmp_path / "found.json").stat().st_size > 100
