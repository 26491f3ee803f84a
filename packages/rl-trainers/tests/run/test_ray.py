"""Runs on a cluster of four nodes of Ray, simulated on this machine: actors that collect, and learners."""

import pytest

from rl.core.errors import WorkerError
from rl.trainers import Callback, PPOConfig, train_ppo
from rl.trainers.loggers import read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]

SETTINGS = {
    "env": "seen_nodes:cart_pole", "num_envs": 4, "total_frames": 640, "frames_per_batch": 64, "minibatch_size": 32,
    "num_cells": (8,), "eval_every": 320, "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",),
}  # fmt: skip

ENV = """
import os, pathlib, gymnasium, ray

def cart_pole():
    if ray.is_initialized():  # each writes down its node
        pathlib.Path({folder!r}, str(os.getpid())).write_text(ray.get_runtime_context().get_node_id())
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    (tmp_path / "nodes").mkdir()
    (tmp_path / "seen_nodes.py").write_text(ENV.format(folder=str(tmp_path / "nodes")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # other programs of this machine would delay what they import
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.others = [made.add_node(num_cpus=1) for _ in range(3)]
    yield made
    ray.shutdown()
    made.shutdown()


class RemoveNode(Callback):
    """Removes a node on which an environment is, after two updates."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder, self.count = cluster, folder, 0

    def on_update(self, run, metrics):
        self.count += 1
        if self.count == 2:
            used = {path.read_text() for path in self.folder.iterdir()}
            node = next(one for one in self.cluster.others if one.node_id in used)
            self.cluster.remove_node(node)


def test_a_run_goes_on_without_a_node_that_collected(cluster, tmp_path):
    config = PPOConfig(workers=2, ray=cluster.address, **SETTINGS)
    with pytest.warns(UserWarning, match="RayCollector: actor . has ended"):
        result = train_ppo(
            config, out=tmp_path / "run", display="none", callbacks=[RemoveNode(cluster, tmp_path / "nodes")]
        )
    assert result.train_frames == 640
    assert not result.interrupted
    assert read_metrics(tmp_path / "run" / "metrics.csv")["frames"][-1] == 640


def test_learners_on_nodes_train_one_policy(cluster, tmp_path):
    config = PPOConfig(learners=2, ray=cluster.address, **SETTINGS)
    stopped = train_ppo(config, out=tmp_path / "run", display="none", should_stop=lambda frames: frames >= 320)
    assert stopped.interrupted
    used = {path.read_text() for path in (tmp_path / "nodes").iterdir()}
    assert used & {one.node_id for one in cluster.others}  # the first learner is this process
    assert train_ppo(config, resume=tmp_path / "run", display="none").train_frames == 640
    assert read_metrics(tmp_path / "run" / "metrics.csv")["frames"][-1] == 640


def test_a_node_with_a_learner_ends_the_run_with_one_message(cluster, tmp_path, capfd):
    config = PPOConfig(learners=2, ray=cluster.address, checkpoint_every=64, **SETTINGS)
    with pytest.raises(WorkerError, match=r"^learner 1 has ended"):
        train_ppo(config, out=tmp_path / "run", display="plain", callbacks=[RemoveNode(cluster, tmp_path / "nodes")])
    assert "64 frames are saved; to continue: rl train ppo --resume" in capfd.readouterr().out


def test_learners_have_actors_that_collect(cluster, tmp_path):
    config = PPOConfig(learners=2, workers=2, ray=cluster.address, **SETTINGS)
    assert train_ppo(config, out=tmp_path / "run", display="none").train_frames == 640
