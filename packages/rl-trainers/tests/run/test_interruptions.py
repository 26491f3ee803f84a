"""Ctrl-C at an awkward moment changes nothing about the result."""

import dataclasses
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from rl_trainers_test_envs import GuessEnv

from rl.core.errors import CheckpointError
from rl.trainers import Evaluator, PPOConfig, load_checkpoint, train_ppo

# the final evaluation is recognized by its seed
from rl.trainers._device import seeds_of
from rl.trainers.loggers import read_metrics

CONFIG = PPOConfig(
    env="test/guess", num_envs=4, total_frames=1024, frames_per_batch=128, minibatch_size=32, epochs=2, num_cells=(16,),
    eval_every=500, eval_episodes=2, final_eval_episodes=2, log_every=300, loggers=("csv",),
)  # fmt: skip


def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def at_step(monkeypatch):
    """Calls a function once, after a number of steps of the training environments."""
    step = GuessEnv.step

    def when(steps, action):
        taken = 0

        def counted(self, tensordict):
            nonlocal taken
            if len(self.batch_size) and self.batch_size[0] == CONFIG.num_envs:
                taken += 1
                if taken == steps:
                    action()
            return step(self, tensordict)

        monkeypatch.setattr(GuessEnv, "step", counted)

    return when


def result(folder):
    best = load_checkpoint(folder / "checkpoints" / "best.safetensors")
    rows = read_metrics(folder / "metrics.csv")
    summary = json.loads((folder / "summary.json").read_text())
    kept = ("frames", "eval/return_mean", "rollout/return_mean", "train/loss_critic")
    return (
        best["frames"],
        best["eval_return_mean"],
        {name: [repr(value) for value in rows[name]] for name in kept},
        {name: value for name, value in summary.items() if not name.startswith("time/")},
    )


@pytest.mark.parametrize("steps", [1, 40, 70, 140, 255])
def test_an_interrupted_run_has_the_same_result_in_the_end(steps, at_step, tmp_path):
    train_ppo(CONFIG, out=tmp_path / "whole", display="none")
    at_step(steps, interrupt)
    stopped = train_ppo(CONFIG, out=tmp_path / "parts", display="none")
    assert stopped.interrupted == (steps < 224)  # in the last iteration there is nothing left to stop
    if stopped.interrupted:
        train_ppo(CONFIG, resume=tmp_path / "parts", display="none")
    assert result(tmp_path / "parts") == result(tmp_path / "whole")


def test_a_final_evaluation_that_was_interrupted_is_made_on_resume(monkeypatch, tmp_path, capsys):
    train_ppo(CONFIG, out=tmp_path / "whole", display="none")
    run = Evaluator.run

    def impatient(self, episodes, *, seed):
        if seed == seeds_of(CONFIG.seed).final_evaluation:
            interrupt()
            interrupt()
        return run(self, episodes, seed=seed)

    monkeypatch.setattr(Evaluator, "run", impatient)
    with pytest.raises(KeyboardInterrupt):
        train_ppo(CONFIG, out=tmp_path / "parts", display="plain")
    monkeypatch.setattr(Evaluator, "run", run)
    assert "1024 frames are saved; to continue: rl train ppo --resume" in capsys.readouterr().out
    assert not (tmp_path / "parts" / "summary.json").exists()
    train_ppo(CONFIG, resume=tmp_path / "parts", display="none")
    assert result(tmp_path / "parts") == result(tmp_path / "whole")
    with pytest.raises(CheckpointError, match="has done all its 1024 frames"):
        train_ppo(dataclasses.replace(CONFIG, total_frames=100), resume=tmp_path / "parts", display="none")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_is_saved(number, at_step, tmp_path):
    at_step(40, lambda: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run below nohup
    try:
        stopped = train_ppo(CONFIG, out=tmp_path / "run", display="none")
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert stopped.interrupted
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")["run"]["frames"] == 256


def test_a_hangup_that_is_ignored_stays_ignored(at_step, tmp_path):
    at_step(40, lambda: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as below nohup
    try:
        assert not train_ppo(CONFIG, out=tmp_path / "run", display="none").interrupted
    finally:
        signal.signal(signal.SIGHUP, before)


RUN_IN_A_TERMINAL = """
import fcntl, signal, sys, termios
from rl.core.cli import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run below nohup
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
words = "train ppo --env cartpole --num-envs 2 --workers 2 --total-frames 10000000 --eval-every 1000000 --display rich"
sys.exit(main(f"{words} --out run".split()))
"""


def test_a_run_whose_terminal_is_closed_is_saved(tmp_path):
    parent, child = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", RUN_IN_A_TERMINAL],
        stdin=child, stdout=child, stderr=child, cwd=tmp_path, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    metrics = tmp_path / "run" / "metrics.csv"
    waited = time.monotonic() + 60
    while not metrics.is_file() and time.monotonic() < waited:
        select.select([parent], [], [], 0.1)
        os.read(parent, 65536)
    os.close(parent)
    assert run.wait(60) == 130
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")["run"]["frames"] > 0
