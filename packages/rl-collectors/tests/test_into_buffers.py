"""`replay_buffer=` and whole trajectories, in every collector."""

import sys
from functools import partial

import pytest
import torch

from rl.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector, MultiSyncCollector, RayCollector
from rl.core.errors import ArgumentError
from rl.testing import CountingEnv

EPISODE = 3  # steps of `CountingEnv`


class Rows:
    """A buffer that fixes keys and shapes of a row with the first batch, as storages do."""

    def __init__(self):
        self.rows = []

    def extend(self, batch):
        for row in batch.clone().unbind(0):
            layout = {key: leaf.shape for key, leaf in row.items(True, True)}
            assert not self.rows or layout == self.layout
            self.layout = layout
            self.rows.append(row)

    def __len__(self):
        return len(self.rows)


def ray_collector(makers, **settings):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=4, log_to_driver=False, include_dashboard=False, ignore_reinit_error=True)
    return RayCollector(makers, **settings)


@pytest.fixture(scope="module", autouse=True)
def _ended_ray():
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def one(makers, **settings):
    return Collector(makers[0], **settings)


def waiting(makers, **settings):
    pytest.importorskip("rl.envs")
    return AsyncBatchedCollector(makers, env_backend="threading", **settings)


ray = partial(pytest.param, marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore")])
KINDS = [
    pytest.param(one, id="Collector"),
    pytest.param(MultiSyncCollector, id="MultiSyncCollector"),
    pytest.param(MultiAsyncCollector, id="MultiAsyncCollector"),
    ray(partial(ray_collector, sync=True), id="RayCollector-sync"),
    ray(ray_collector, id="RayCollector"),
]


def check_trajectories(rows):
    """Every trajectory follows as a whole."""
    steps = torch.stack(rows)
    assert steps["observation"].flatten().tolist() == [*range(EPISODE)] * (len(rows) // EPISODE)
    ids = steps["collector", "traj_ids"].reshape(-1, EPISODE)
    assert (ids == ids[:, :1]).all()
    assert steps["next", "done"].reshape(-1, EPISODE).tolist() == [[False] * (EPISODE - 1) + [True]] * len(ids)
    assert ids[:, 0].unique().numel() == len(ids)


@pytest.mark.parametrize("collector", [*KINDS, pytest.param(waiting, id="AsyncBatchedCollector")])
def test_rows_of_a_buffer_are_single_steps_of_an_environment(collector):
    buffer = Rows()
    with collector([CountingEnv] * 2, frames_per_batch=12, total_frames=60, replay_buffer=buffer) as collecting:
        assert list(collecting) == [None] * 5
    assert len(buffer) == 60
    assert buffer.rows[0].shape == ()
    by_id = {}
    for row in buffer.rows:
        by_id.setdefault(int(row["collector", "traj_ids"]), []).append(int(row["observation"]))
    assert all(steps == [*range(len(steps))] for steps in by_id.values())


@pytest.mark.parametrize("collector", KINDS)
def test_rows_of_a_buffer_are_the_sequences_of_several_environments(collector):
    buffer, make = Rows(), partial(CountingEnv, batch_size=[2])
    with collector([make] * 2, frames_per_batch=24, total_frames=48, replay_buffer=buffer) as collecting:
        list(collecting)
    assert all(row.ndim == 1 for row in buffer.rows)
    assert sum(row.numel() for row in buffer.rows) == 48
    assert all(row["observation"].flatten()[0] in (0, 0.0) for row in buffer.rows[:2])


@pytest.mark.parametrize("extend_buffer", [True, False])
@pytest.mark.parametrize("form", ["padded", "cat"])
@pytest.mark.parametrize("collector", KINDS)
def test_whole_trajectories_go_to_a_buffer_without_padding(collector, form, extend_buffer):
    buffer = Rows()
    settings = {"trajs_per_batch": 2, "traj_format": form, "extend_buffer": extend_buffer}
    with collector([CountingEnv] * 2, frames_per_batch=8, total_frames=64, replay_buffer=buffer, **settings) as found:
        for _ in range(5):
            assert found.collect() is None
    assert len(buffer) == 5 * 2 * EPISODE
    check_trajectories(buffer.rows)


@pytest.mark.parametrize("form", ["padded", "cat"])
@pytest.mark.parametrize("collector", KINDS)
def test_batches_of_whole_trajectories_come_from_all_workers(collector, form):
    settings = {"frames_per_batch": 8, "total_frames": 64, "trajs_per_batch": 3, "traj_format": form}
    with collector([partial(CountingEnv, batch_size=[2])] * 2, **settings) as collecting:
        batches = list(collecting)
    for batch in batches[:-1]:
        rows = batch.reshape(-1)
        assert len(rows) == 3 * EPISODE
        check_trajectories([*rows.unbind(0)])
    assert collecting.collected_frames == 64


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
@pytest.mark.parametrize("interruption", ["reset", "state"])
def test_a_reset_or_a_state_leaves_no_trajectory_in_pieces(kind, interruption):
    settings = {"frames_per_batch": 4, "trajs_per_batch": 3, "traj_format": "cat"}
    with kind([CountingEnv] * 2, **settings) as one, kind([CountingEnv] * 2, **settings) as other:
        batches = [one.collect() for _ in range(2)]
        if interruption == "reset":
            one.reset()
            batches += [one.collect() for _ in range(3)]
        else:
            other.load_state_dict(one.state_dict())
            batches += [other.collect() for _ in range(3)]
    check_trajectories([row for batch in batches for row in batch.unbind(0)])


def test_settings_of_whole_trajectories_are_checked():
    for wrong, message in (
        ({"track_traj_ids": False}, "needs track_traj_ids=True"),
        ({"set_truncated": True}, "ends no trajectory"),
        ({"split_trajs": True}, "split already"),
        ({"traj_format": "list"}, "'padded' or 'cat'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            MultiSyncCollector([CountingEnv], frames_per_batch=4, trajs_per_batch=2, **wrong)
    settings = {"frames_per_batch": 4, "total_frames": 8, "trajs_per_batch": 1}
    with MultiSyncCollector([CountingEnv], **settings) as collector, pytest.raises(TypeError, match="no length"):
        len(collector)
