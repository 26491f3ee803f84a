"""Groups of several concurrent programs that exchange states, in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

# a launch with groups of programs is given, which the plan chooses on large GPUs only
from rl.recurrent_triton._launch import is_interpreted
from rl.recurrent_triton._plan import Launch

# The interpreter computes with numpy, which warns of masked places.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _load(name):
    spec = spec_from_file_location(f"rl_recurrent_triton_tests_{name}", Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


naive, kernels = _load("naive"), _load("test_kernels")


@pytest.mark.skipif(is_interpreted(), reason="this is the process that interprets")
@pytest.mark.parametrize("which", ["not gpu", pytest.param("slow and not gpu", marks=pytest.mark.slow)])
def test_in_the_interpreter(which):
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", which, __file__]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


in_the_interpreter = pytest.mark.skipif(not is_interpreted(), reason="test_in_the_interpreter starts such a process")
each_cell = pytest.mark.parametrize("cell", ["lstm", "gru"])
CPU = torch.device("cpu")


@in_the_interpreter
@each_cell
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_several_programs(monkeypatch, cell, seed, ahead):
    """Weights are read again in each step if nothing is read ahead, and kept otherwise."""
    case = naive.make(cell, 19, 3, 33)
    launch = Launch("group", rows=16, columns=16, depth=16, ahead=ahead)
    side = _load("side_by_side")
    with side.side_by_side(monkeypatch, seed) as grids:
        runner = kernels.Runner(case, CPU, torch.float64, launch, (1,))
        runner.forward(keep=True)
        runner.backward(activated=True)
    assert set(grids) == {(2, 3, 1)}


@in_the_interpreter
@each_cell
def test_what_does_not_fit_at_once_goes_in_several_launches(monkeypatch, cell):
    case = naive.make(cell, 33, 2, 17)
    side = _load("side_by_side")
    with side.side_by_side(monkeypatch) as grids:
        runner = kernels.Runner(case, CPU, torch.float64, Launch("group", columns=16, depth=16, ahead=0, wave=2))
        runner.forward(keep=False)
        runner.backward(activated=False, in_place=True)
    assert grids == [(2, 2, 1), (1, 2, 1)] * 2


@in_the_interpreter
@each_cell
def test_a_program_that_does_not_run_is_found(monkeypatch, cell):
    """A test of these tests: programs that count on one more than there are wait for ever."""
    case = naive.make(cell, 3, 2, 17)
    side = _load("side_by_side")
    launch = Launch("group", columns=16, depth=16)
    monkeypatch.setattr(type(side.builder), "create_get_num_programs", _one_more(side.builder))
    with side.side_by_side(monkeypatch), pytest.raises(side.Stuck):
        kernels.Runner(case, CPU, torch.float64, launch).forward(keep=False)


def _one_more(builder):
    count = type(builder).create_get_num_programs

    def counted(self, axis):
        found = count(self, axis)
        found.data += 1
        return found

    return counted
