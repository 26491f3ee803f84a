import math
from pathlib import PurePosixPath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.core.errors import CheckpointError, RLError
from rl.trainers import CSVLogger, Logger, TensorBoardLogger

# statistics of given episodes, and a plot of given metrics, without a training
from rl.trainers._progress import EpisodeStats, Every
from rl.trainers._report import plot_learning_curve
from rl.trainers.loggers import read_metrics


def naive(reward, done):
    """Episodes by a plain loop over time, then environments."""
    envs, steps = reward.shape[:2]
    total, length, found = [0.0] * envs, [0] * envs, []
    for t in range(steps):
        for e in range(envs):
            total[e] += float(reward[e, t, 0])
            length[e] += 1
            if done[e, t, 0]:
                found.append((total[e], length[e]))
                total[e], length[e] = 0.0, 0
    return found


@given(st.integers(1, 3), st.integers(1, 12), st.integers(0, 1000), st.integers(1, 11))
def test_episodes_are_those_of_a_plain_loop_however_time_is_cut(envs, steps, seed, cut):
    g = torch.Generator().manual_seed(seed)
    reward = torch.randint(-3, 4, (envs, steps, 1), generator=g).float()
    done = torch.rand(envs, steps, 1, generator=g) < 0.3
    stats = EpisodeStats(envs)
    for piece in torch.arange(steps).split(cut):
        stats.update(reward[:, piece], done[:, piece])
    expected = naive(reward, done)
    assert stats.episodes == len(expected)
    if expected:
        assert stats.return_mean == pytest.approx(sum(r for r, _ in expected) / len(expected))
        assert stats.length_mean == pytest.approx(sum(n for _, n in expected) / len(expected))
    else:
        assert math.isnan(stats.return_mean)


def test_the_window_holds_the_latest_episodes_and_its_state_continues():
    stats = EpisodeStats(2, window=2)
    stats.update(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[..., None], torch.tensor([[1, 0], [0, 0]])[..., None].bool())
    other = EpisodeStats(2, window=2)
    other.load_state_dict(stats.state_dict())
    other.update(torch.tensor([[5.0], [6.0]])[..., None], torch.ones(2, 1, 1, dtype=torch.bool))
    assert (other.episodes, other.return_mean) == (3, (7.0 + 13.0) / 2)


def test_every_is_due_once_per_interval_and_at_the_end():
    every = Every(10)
    assert [every.due(n) for n in (5, 10, 15, 35, 39, 40)] == [False, True, False, True, False, True]
    assert every.due(41, last=True)


def test_csv_has_one_line_a_row_and_empty_cells(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_scalars({"a": 1.0, "b": math.nan}, 10)
    logger.log_scalars({"b": 0.125}, 20)
    logger.close()
    logger.close()
    assert (tmp_path / "metrics.csv").read_text() == "frames,a,b\n10,1,\n20,,0.125\n"
    with pytest.raises(CheckpointError, match=r"no column for \['c'\]"):
        CSVLogger(tmp_path, resume_step=20).log_scalars({"c": 1.0}, 30)


def test_csv_drops_what_was_written_after_the_checkpoint(tmp_path):
    (tmp_path / "metrics.csv").write_text("frames,a\n10,1\n20,2\n30,3\n4")
    logger = CSVLogger(tmp_path, resume_step=20)
    logger.log_scalars({"a": 7.0}, 25)
    logger.close()
    assert read_metrics(tmp_path / "metrics.csv") == {"frames": [10, 20, 25], "a": [1, 2, 7]}
    for step, value in ((10, 0.5), (20, 0.25), (30, 0.125), (None, 4.0)):
        logger.log_scalar("train/loss", value, step)
    with (tmp_path / "scalars" / "train" / "loss.csv").open("a") as file:
        file.write("4")
    CSVLogger(tmp_path, resume_step=20).log_scalar("train/loss", 2.0, 25)
    assert (tmp_path / "scalars" / "train" / "loss.csv").read_text() == "10,0.5\n20,0.25\n,4\n25,2\n"
    (tmp_path / "scalars" / "train" / "loss.csv").write_text("ten,0.5\n")
    with pytest.raises(CheckpointError, match=r"loss\.csv is damaged.*delete the file"):
        CSVLogger(tmp_path, resume_step=20)


def test_tensorboard_events_can_be_read_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    logger.log_scalars({"loss": 0.5, "nothing": math.nan}, 10)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(10, 0.5)]


def test_the_learning_curve_is_a_png(tmp_path):
    (tmp_path / "metrics.csv").write_text("frames,rollout/return_mean,eval/return_mean\n10,,\n20,1.5,2\n")
    plot_learning_curve(tmp_path / "metrics.csv", tmp_path / "curve.png", "title")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_logger_of_ones_own_records_numbers_and_names_what_it_cannot_record(tmp_path):
    class Kept(Logger):
        rows = ()

        def log_scalar(self, name, value, step=None):
            self.rows = (*self.rows, (step, name, value))

    logger = Kept(tmp_path, resume_step=5)
    assert (logger.folder, logger.resume_step) == (tmp_path, 5)
    logger.log_scalars({"a": 1.0, "b": math.nan}, 10)
    metrics = TensorDict({"train": {"loss": torch.tensor(0.5)}, "kl": torch.tensor([0.25])})
    assert logger.log_metrics(metrics, 20) == {"train/loss": 0.5, "kl": 0.25}
    assert logger.rows == ((10, "a", 1.0), (20, "train/loss", 0.5), (20, "kl", 0.25))
    for record in (lambda: logger.log_str("a", "b"), lambda: logger.log_hparams({}), lambda: logger.log_video("v", 0)):
        with pytest.raises(RLError, match=r"Kept records no .*: override log_"):
            record()
    logger.close()


def test_csv_keeps_single_numbers_texts_settings_and_videos_in_files(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_scalar("train/loss", 0.5, step=10)
    logger.log_scalar("train/loss", 0.25, step=20)
    logger.log_str("note", "hello", step=3)
    logger.log_hparams({"lr": 0.1, "num_cells": [64, 64], "out": PurePosixPath("a/b")})
    assert (tmp_path / "scalars" / "train" / "loss.csv").read_text() == "10,0.5\n20,0.25\n"
    assert (tmp_path / "texts" / "note-3.txt").read_text() == "hello"
    assert (tmp_path / "hparams.yaml").read_text() == "lr: 0.1\nnum_cells:\n- 64\n- 64\nout: a/b\n"
    pytest.importorskip("imageio_ffmpeg")
    for _ in range(2):  # the second one replaces the first
        logger.log_video("run", torch.zeros(2, 5, 3, 16, 32, dtype=torch.uint8), step=7, fps=10)
    assert b"ftyp" in (tmp_path / "videos" / "run-7.mp4").read_bytes()[:16]
