"""Loggers of experiment trackers against the real libraries, offline; names of loggers and of metrics."""

import csv
import json
import math
import struct
import subprocess
import sys
import time
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml

from rl.core.cli import main
from rl.core.errors import ArgumentError, MissingExtraError, RLError, UnknownComponentError
from rl.testing import check_logger
from rl.trainers import (
    CSVLogger,
    Logger,
    PPOConfig,
    TensorBoardLogger,
    WandbLogger,
    generate_exp_name,
    get_logger,
    train_ppo,
)
from rl.trainers.loggers import METRIC_NAMES, LoggerSet

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries
NUMBERS = [0.0, 1.0, 1.0, 2.0, 4.0]
VIDEO = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
TINY = {"total_frames": 128, "num_envs": 2, "frames_per_batch": 64, "minibatch_size": 32, "epochs": 1, "log_every": 64,
        "num_cells": (8,), "eval_episodes": 1, "final_eval_episodes": 1}  # fmt: skip


class Wandb:
    """What the files of offline runs have: a leveldb log of protocol buffers."""

    FILES = "run/wandb/offline-run-*/*.wandb"

    def __init__(self, folder, monkeypatch):
        pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_MODE", "offline")
        self.folder = folder

    def records(self):
        until = time.monotonic() + 60
        while True:  # another process writes the files
            found = [one for file in sorted(self.folder.glob(self.FILES)) for one in self.records_of(file)]
            ends = [one for one in found if one.WhichOneof("record_type") == "exit"]
            if len(ends) == len([*self.folder.glob(self.FILES)]) or time.monotonic() > until:
                return found
            time.sleep(0.05)

    def records_of(self, file):
        from wandb.proto.wandb_internal_pb2 import Record

        data, at, whole = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            left = 2**15 - at % 2**15
            if left < 7:  # the rest of a block
                at += left
                continue
            _, size, kind = struct.unpack("<IHB", data[at : at + 7])
            whole += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4) and at <= len(data):  # a whole record, or the last part of one
                yield Record.FromString(whole)
                whole = b""

    def rows(self):
        for record in self.records():
            if record.WhichOneof("record_type") == "history":
                yield {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}

    def scalars(self):
        found = {}
        for row in self.rows():
            for name, value in row.items():
                found.setdefault(name, {})[row.get("frames")] = value
        return found

    def ids(self):
        return {one.run.run_id for one in self.records() if one.WhichOneof("record_type") == "run"}

    def settings(self):
        configs = [one.config for one in self.records() if one.WhichOneof("record_type") == "config"]
        return {item.key: json.loads(item.value_json) for config in configs for item in config.update}

    def histogram(self, name):
        row = next(row for row in self.rows() if f"{name}/values" in row)
        return row[f"{name}/values"], row[f"{name}/bins"]

    def text(self, name):
        (file,) = self.folder.glob(f"run/wandb/offline-run-*/files/media/table/{name}_*.table.json")
        return json.loads(file.read_text())["data"][0][0]

    def video(self, name):
        (file,) = self.folder.glob(f"run/wandb/offline-run-*/files/media/videos/{name}_*.mp4")
        return file.read_bytes()


class MLflow:
    def __init__(self, folder, monkeypatch):
        mlflow = pytest.importorskip("mlflow")
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        self.folder, self.client = folder, lambda: mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")

    def run(self):
        client = self.client()
        return client.search_runs([client.get_experiment_by_name("rl").experiment_id])[0]

    def scalars(self):
        client, run = self.client(), self.run()
        history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        return {name: {one.step: one.value for one in metrics} for name, metrics in history.items()}

    def ids(self):
        client = self.client()
        return {run.info.run_id for run in client.search_runs([client.get_experiment_by_name("rl").experiment_id])}

    def settings(self):
        return {name: yaml.safe_load(value) for name, value in self.run().data.params.items()}

    def artifact(self, path):
        return (self.folder / "mlartifacts" / self.run().info.run_id / "artifacts" / path).read_bytes()

    def histogram(self, name):
        found = json.loads(self.artifact(f"histograms/{name}-10.json"))
        return found["counts"], found["edges"]

    def text(self, name):
        return self.artifact(f"texts/{name}-10.txt").decode()

    def video(self, name):
        return self.artifact(f"videos/{name}-10.mp4")


class Trackio:
    def __init__(self, folder, monkeypatch):
        monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
        for module in [one for one in sys.modules if one.partition(".")[0] == "trackio"]:
            monkeypatch.delitem(sys.modules, module)  # it reads the variable when it is imported
        self.folder, self.storage = folder, pytest.importorskip("trackio.sqlite_storage").SQLiteStorage

    def logs(self):
        (name,) = self.storage.get_runs("rl")
        return self.storage.get_logs("rl", name)

    def scalars(self):
        found = {}
        for row in self.logs():
            for name, value in row.items():
                found.setdefault(name, {})[row["step"]] = value
        return found

    def ids(self):
        return {one["id"] for one in self.storage.get_run_records("rl")}

    def settings(self):
        (name,) = self.storage.get_runs("rl")
        return {key: one for key, one in self.storage.get_run_config("rl", name).items() if key[0] != "_"}

    def histogram(self, name):
        found = self.scalars()[name][10]
        return found["values"], found["bins"]

    def text(self, name):
        return self.scalars()[name][10]["_value"]

    def video(self, name):
        (file,) = (one for one in self.folder.rglob("*.mp4") if "media" in one.parts)
        return file.read_bytes()


TRACKERS = {"wandb": Wandb, "mlflow": MLflow, "trackio": Trackio}


@pytest.fixture(params=TRACKERS)
def tracker(request, tmp_path, monkeypatch):
    return request.param, TRACKERS[request.param](tmp_path, monkeypatch)


def test_a_tracker_keeps_everything_and_resumes_the_same_run(tracker, tmp_path):
    name, read = tracker
    first = get_logger(name, tmp_path, "run")
    first.log_hparams({"lr": 0.1, "num_cells": (64, 64)})
    first.log_scalars({"eval/return_mean": 1.5, "train/loss": math.nan}, 10)
    first.log_metrics({"kl": torch.tensor(0.25)}, 10)
    first.log_str("note", "hello", 10)
    first.log_histogram("weights", torch.tensor(NUMBERS), step=10, bins=4)
    if pytest.importorskip("imageio_ffmpeg"):
        first.log_video("episode", VIDEO, 10, fps=10)
    first.close()
    ids = read.ids()
    again = get_logger(name, tmp_path, "run", resume_step=10)
    again.log_hparams({"lr": 0.1, "num_cells": (64, 64)})
    again.log_scalars({"eval/return_mean": 2.5}, 20)
    again.close()
    assert read.ids() == ids
    assert len(ids) == 1
    scalars = read.scalars()
    assert scalars["eval/return_mean"] == {10: 1.5, 20: 2.5}
    assert scalars["kl"] == {10: 0.25}
    assert "train/loss" not in scalars
    assert read.settings() == {"lr": 0.1, "num_cells": [64, 64]}
    counts, edges = np.histogram(NUMBERS, bins=4)
    assert [list(part) for part in read.histogram("weights")] == [counts.tolist(), edges.tolist()]
    assert read.text("note") == "hello"
    assert b"ftyp" in read.video("episode")[:16]


def test_a_tracker_conforms(tracker, tmp_path):
    name, read = tracker
    if name == "wandb":
        made = iter(["other", "run"])  # the kit compares one of the two runs
        check_logger(lambda: get_logger(name, tmp_path, next(made)), read=read.scalars)
    else:
        made = iter([None, 0, 0])
        check_logger(lambda: get_logger(name, tmp_path, "run", resume_step=next(made)), read=read.scalars)


def test_a_new_run_in_a_folder_has_a_new_id(tracker, tmp_path):
    name, _ = tracker
    for _ in range(2):
        get_logger(name, tmp_path, "run").close()
        ids = json.loads((tmp_path / "run" / "trackers.json").read_text())
    get_logger(name, tmp_path, "run", resume_step=0).close()
    assert json.loads((tmp_path / "run" / "trackers.json").read_text()) == ids


def test_a_training_run_is_tracked_with_its_settings(tracker, tmp_path):
    name, read = tracker
    train_ppo(PPOConfig(loggers=("csv", name), metric_names="sb3", **TINY), out=tmp_path / "run", display="none")
    assert read.settings()["learning_rate"] == PPOConfig().learning_rate
    with (tmp_path / "run" / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert read.scalars()["eval/mean_reward"][128] == float(last["eval/return_mean"])


def offline(*args, **kwargs):
    raise ConnectionError("no network")


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("wandb", "{mode: nonsense}", "WANDB_MODE=offline needs no account"),
        ("mlflow", "{tracking_uri: 'nonsense://x'}", "or name another one"),
        ("trackio", "{project: other}", "ConnectionError: no network"),
    ],
)
def test_a_library_that_begins_no_run_is_reported_in_a_line_and_leaves_nothing(name, how, said, tmp_path, monkeypatch):
    TRACKERS[name](tmp_path, monkeypatch)
    if name == "trackio":
        monkeypatch.setattr("trackio.init", offline)
    with pytest.raises(RLError, match=f"^{name} begins no run: .*{said}") as raised:
        train_ppo(PPOConfig(loggers=("csv", f"{name}:{how}"), **TINY), out=tmp_path / "run", display="none")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_loggers_that_are_open_are_closed_when_a_later_one_fails(tmp_path):
    Kept.made.clear()
    kept = f"{module.__name__}:Kept"
    with pytest.raises(ArgumentError, match="'colour'"):
        train_ppo(PPOConfig(loggers=(kept, f"{kept}:{{colour: red}}"), **TINY), out=tmp_path / "run", display="none")
    assert [one.closed for one in Kept.made] == [1]


def test_trackio_says_once_that_a_run_has_ended(tmp_path, monkeypatch):
    Trackio(tmp_path, monkeypatch)
    code = "from rl.trainers import get_logger; get_logger('trackio', '.', 'run').close()"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.count("Run finished") == 1


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_is_named_before_anything_is_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rl.trainers.tracking.find_spec", lambda library: None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'rl-trainers\[{name}\]'"):
        get_logger(name, tmp_path, "run")
    assert main(["train", "ppo", "--loggers", f"csv,{name}", "--out", "run", "--total-frames", "64"]) == 1
    assert f"{name}, which is not installed" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_loggers_are_found_by_name(tmp_path):
    assert isinstance(get_logger("csv", tmp_path, "a"), CSVLogger)
    board = get_logger("tensorboard", str(tmp_path), "a", resume_step=5)
    board.close()
    assert isinstance(board, TensorBoardLogger)
    assert board.folder == tmp_path / "a"
    assert isinstance(get_logger("rl.trainers:CSVLogger", tmp_path), CSVLogger)
    assert get_logger("", tmp_path) is None
    with pytest.raises(UnknownComponentError, match="wandbb"):
        get_logger("wandbb", tmp_path)
    assert issubclass(WandbLogger, Logger)


def test_generated_names_differ():
    first, second = (generate_exp_name("ppo", "maze") for _ in range(2))
    assert first != second
    assert first.startswith("ppo_maze_")


def test_histograms_of_local_loggers_can_be_read_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for name in ("csv", "tensorboard"):
        logger = get_logger(name, tmp_path)
        logger.log_histogram("weights", torch.tensor(NUMBERS), step=10, bins=4)
        logger.close()
    with (tmp_path / "histograms" / "weights-10.csv").open() as file:
        assert [int(row["count"]) for row in csv.DictReader(file)] == np.histogram(NUMBERS, bins=4)[0].tolist()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Histograms("weights")
    assert (event.step, event.histogram_value.num, event.histogram_value.max) == (10, 5, 4.0)


class Kept(Logger):
    """Keeps rows, and what it was made with."""

    made: ClassVar[list] = []

    def __init__(self, folder, *, resume_step=None, label=""):
        super().__init__(folder, resume_step=resume_step)
        self.label, self.rows, self.closed = label, [], 0
        type(self).made.append(self)

    def close(self):
        self.closed += 1

    def log_scalar(self, name, value, step=None):
        self.rows.append((name, value, step))


module = ModuleType("rl_trainers_test_loggers")
module.Kept = Kept
sys.modules[module.__name__] = module


@pytest.mark.parametrize(("names", "name"), [("rl", "eval/return_mean"), ("sb3", "eval/mean_reward"),
                                             ("cleanrl", "eval/episodic_return")])  # fmt: skip
def test_metrics_are_renamed_for_all_but_the_csv_file(names, name, tmp_path):
    Kept.made.clear()
    loggers = LoggerSet(["csv", "rl_trainers_test_loggers:Kept:{label: x}"], names)
    loggers.open(tmp_path)
    loggers.log_scalars({"eval/return_mean": 1.0, "time/other": 2.0}, 10)
    loggers.close()
    assert Kept.made[0].label == "x"
    assert Kept.made[0].rows == [(name, 1.0, 10), ("time/other", 2.0, 10)]
    assert (tmp_path / "metrics.csv").read_text().startswith("frames,eval/return_mean,time/other")


def test_no_two_metrics_get_the_same_name():
    for table in METRIC_NAMES.values():
        assert len({*table.values()}) == len(table)


def test_wrong_arguments_of_a_logger_are_named(tmp_path):
    loggers = LoggerSet(["rl_trainers_test_loggers:Kept:{colour: red}"])
    with pytest.raises(ArgumentError, match=r"the logger Kept .*'colour'"):
        loggers.open(tmp_path)
