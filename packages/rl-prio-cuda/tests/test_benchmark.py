"""The benchmark script runs: every implementation, with the kernels compiled for the host in the place of a GPU."""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture
def tree_script():
    spec = importlib.util.spec_from_file_location("tree", Path(__file__).parents[1] / "benchmarks" / "tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_implementation_is_measured(tree_script, on_host):
    for _, times in tree_script.measure(1000, 32, torch.device("cpu"), rounds=1, repeats=1):
        assert {"cuda", "cumsum"} <= set(times)
        assert min(times.values()) > 0


def test_without_a_gpu_it_is_reported(tree_script, monkeypatch, capsys):
    monkeypatch.setattr(tree_script, "why_not", lambda: "no driver")
    assert tree_script.main([]) == 1
    assert capsys.readouterr().out == "no driver\n"
