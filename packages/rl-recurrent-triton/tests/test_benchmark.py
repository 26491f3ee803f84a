"""The benchmark runs in the interpreter, and reports what it cannot measure."""

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


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="it would take the GPU")
def test_it_runs_in_the_interpreter(tmp_path):
    pytest.importorskip("rl.modules", reason="two contenders are of rl-modules")
    said = run("--tiny", "--json", str(tmp_path / "found.json"), TRITON_INTERPRET="1")
    assert "without meaning" in said
    assert "resident" in said
    assert (tmp_path / "found.json").stat().st_size > 100


@pytest.fixture
def benchmark(monkeypatch):
    """The program as a module."""
    from importlib import import_module

    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    return import_module("recurrent")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_it_is_reported(benchmark, capsys):
    assert benchmark.main([]) == 0
    assert "torch sees none" in capsys.readouterr().out


def test_goals_are_told_with_what_was_missed(benchmark):
    place = benchmark.Place(torch.device("cpu"))
    table = benchmark.Table(place, torch.float32, 1, 0.0)
    of = {"triton": 0.5, "full": 0.6, "pad": 1.5, "cuDNN, no resets": 0.4}
    quiet = benchmark.Size("lstm", 256, 128, 256, 0)
    for size in (benchmark.TARGET, quiet):
        table.found[size] = {(name, passes): ms for name, ms in of.items() for passes in ("forward", "both")}
        table.found[size] |= {("triton", "memory"): 100.0, ("full", "memory"): 44.0}
    said = benchmark.goals(table)
    assert len(said) == 8
    first_words = " ".join(line.split()[0] for line in said)
    assert first_words == "reached reached MISSED MISSED reached reached MISSED reached"
    assert "3.00 at worst" in said[0]
    assert "0.80 at worst" in said[2]
    assert all("not measured" in line for line in benchmark.goals(benchmark.Table(place, torch.float32, 1, 0.0)))


def test_the_sizes_are_all_that_were_wanted_and_the_target_comes_first(benchmark):
    sizes = benchmark.grid(tiny=False)
    assert len(set(sizes)) == len(sizes)
    wanted = {
        (batch, time, hidden) for batch in (32, 256, 1024) for time in (32, 128, 512) for hidden in (64, 256, 512, 1024)
    }
    for episode in (20, 100, 0):
        for cell in ("lstm", "gru"):
            assert wanted <= {(s.batch, s.time, s.hidden) for s in sizes if (s.cell, s.episode) == (cell, episode)}
    assert sizes[0] == benchmark.TARGET


def test_a_size_that_fails_keeps_no_other_away_and_time_ends_a_part(benchmark, capsys):
    table = benchmark.Table(benchmark.Place(torch.device("cpu")), torch.float32, 1, 0.0)
    seen = []

    def add(size, names):
        seen.append(size)
        if len(seen) == 1:
            raise RuntimeError("out of something")

    table.add = add
    sizes = [(size, ["triton"]) for size in benchmark.grid(tiny=True)]
    benchmark.measure(table, sizes, benchmark.Clock(None), 1.0)
    assert len(seen) == len(sizes)
    assert "left out: lstm B=3" in capsys.readouterr().out
    benchmark.measure(table, sizes, benchmark.Clock(0.0), 1.0)
    assert len(seen) == len(sizes)
    assert "for lack of time: 2 sizes" in capsys.readouterr().out


def test_precisions_are_set_where_old_and_new_names_agree(benchmark):
    try:
        for precision, old in (("tf32", "high"), ("ieee", "highest")):
            benchmark.use_precision(precision)
            assert torch.get_float32_matmul_precision() == old
            assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is (precision == "tf32")
            assert (torch.backends.cudnn.rnn.fp32_precision == "tf32") is (precision == "tf32")
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
