"""The command ``rl suggest-workers``."""

from __future__ import annotations

import pytest

from rl.core.cli import main
from rl.envs.cli import _report


def test_it_measures_this_process_and_worker_processes(capsys):
    assert main(["suggest-workers", "cartpole", "--num-envs", "2", "--max-processes", "2", "--frames", "120"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cartpole: ")
    assert [line.split()[0] for line in lines[4:7]] == ["0", "1", "2"]
    assert lines[4].endswith("1.00")


@pytest.mark.parametrize(
    ("speeds", "advice"),
    [
        ([100.0, 80.0, 105.0], "do not pay"),
        ([100.0, 90.0, 180.0, 190.0], r"ParallelEnv(8, make, processes=2): 1.8 times"),
    ],
)
def test_the_advice_is_the_fewest_processes_that_are_nearly_the_fastest(speeds, advice):
    assert advice in list(_report("env", 8, speeds))[-1]


def test_mistakes_are_named(capsys):
    assert main(["suggest-workers", "x.y:z"]) == 1
    assert "there is no environment 'x.y:z'" in capsys.readouterr().err
    assert main(["suggest-workers", "cartpole", "--frames", "0"]) == 2
