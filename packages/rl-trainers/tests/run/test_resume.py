"""Stopping and going on gives the same numbers as never having stopped."""

import dataclasses

import pytest
import torch

from rl.core.errors import CheckpointError
from rl.trainers import DQNConfig, PPOConfig, TD3Config, load_checkpoint, train_dqn, train_ppo, train_td3
from rl.trainers.loggers import read_metrics

SMALL = {
    "env": "test/guess",
    "num_envs": 4,
    "total_frames": 1024,
    "eval_every": 300,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "log_every": 100,
    "loggers": ("csv",),
}
PPO = PPOConfig(**SMALL, frames_per_batch=128, minibatch_size=32, epochs=2, num_cells=(16,))
DQN = DQNConfig(**SMALL, frames_per_batch=64, learning_starts=128, utd_ratio=0.0625, buffer_size=300, batch_size=16)
TD3 = TD3Config(
    **{**SMALL, "env": "pendulum", "max_episode_steps": 20},
    frames_per_batch=64, learning_starts=128, utd_ratio=0.0625, buffer_size=300, batch_size=16, num_cells=(8,),
    anneal_lr="linear", anneal_exploration_noise="cosine", warmup_frames=300,
)  # fmt: skip
GYM = {"env": "CartPole-v1", "num_envs": 2}
PREPROCESSED = {**GYM, "normalize_observation": True, "normalize_reward": True, "frame_stack": 2, "frame_skip": 2}
CASES = [
    pytest.param(train_ppo, PPO, id="ppo"),
    pytest.param(train_ppo, dataclasses.replace(PPO, **GYM), id="ppo-gymnasium"),
    pytest.param(train_ppo, dataclasses.replace(PPO, env="test/one-guess"), id="ppo-side-by-side"),
    pytest.param(train_ppo, dataclasses.replace(PPO, **PREPROCESSED), id="ppo-preprocessed"),
    pytest.param(train_dqn, dataclasses.replace(DQN, **PREPROCESSED), id="dqn-preprocessed"),
    pytest.param(
        train_ppo,
        dataclasses.replace(PPO, **{**PREPROCESSED, "env": "pendulum", "max_episode_steps": 30, "eval_every": 100}),
        id="ppo-preprocessed-native",
    ),
    pytest.param(train_dqn, DQN, id="dqn-soft"),
    pytest.param(train_dqn, dataclasses.replace(DQN, tau=0.0, target_every=200), id="dqn-hard"),
    pytest.param(train_dqn, dataclasses.replace(DQN, **GYM), id="dqn-gymnasium"),
    pytest.param(
        train_dqn, dataclasses.replace(DQN, n_steps=3, sampler="prioritized:{alpha: 0.6, beta: 0.4}"), id="dqn-n-step"
    ),
    pytest.param(train_ppo, dataclasses.replace(PPO, anneal_clip_epsilon=True, clip_value=0.2), id="ppo-clip"),
    pytest.param(
        train_ppo,
        dataclasses.replace(PPO, anneal_lr="cosine", anneal_clip_epsilon="cosine", warmup_frames=256),
        id="ppo-schedules",
    ),
    pytest.param(
        train_dqn,
        dataclasses.replace(DQN, anneal_lr="cosine", anneal_eps="cosine", warmup_frames=100, annealing_num_steps=600),
        id="dqn-schedules",
    ),
    pytest.param(train_td3, TD3, id="td3-schedules"),
    pytest.param(train_td3, dataclasses.replace(TD3, noise="ou"), id="td3-schedules-ou"),
]


def timeless(path):
    """The metrics less what the clock says."""
    columns = read_metrics(path / "metrics.csv")
    return {name: [repr(value) for value in column] for name, column in columns.items() if not name.startswith("time/")}


def assert_equal(a, b, where=""):
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{i}]")
    else:
        assert a == b or a != a, where


def last_state(path):
    state = load_checkpoint(path / "checkpoints" / "last.safetensors")
    del state["run"]["seconds"], state["run"]["cpu_seconds"], state["run"]["times"]
    return state


@pytest.mark.parametrize(("train", "config"), CASES)
def test_n_plus_n_frames_equal_2n_frames(train, config, tmp_path):
    whole = train(config, out=tmp_path / "whole", display="none")
    half = train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 500)
    assert half.interrupted
    assert half.train_frames < 600
    torch.manual_seed(99)  # whatever happened in between
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert timeless(tmp_path / "half") == timeless(tmp_path / "whole")
    assert_equal(last_state(tmp_path / "half"), last_state(tmp_path / "whole"))
    assert resumed.eval_return_mean == whole.eval_return_mean
    assert resumed.train_frames == whole.train_frames == 1024


def test_rows_after_the_checkpoint_are_written_again(tmp_path):
    """As after a crash: the metrics are ahead of the checkpoint."""
    config = dataclasses.replace(PPO, total_frames=512, checkpoint_every=256)
    train_ppo(config, out=tmp_path / "whole", display="none")
    saved = []

    def crash(frames):
        if frames == 384:
            raise OSError("the machine went away")
        saved.append(frames)
        return False

    with pytest.raises(OSError, match="went away"):
        train_ppo(config, out=tmp_path / "crash", display="none", should_stop=crash)
    assert read_metrics(tmp_path / "crash" / "metrics.csv")["frames"][-1] == 384
    assert last_state(tmp_path / "crash")["run"]["frames"] == 256
    train_ppo(config, resume=tmp_path / "crash", display="none")
    assert timeless(tmp_path / "crash") == timeless(tmp_path / "whole")


def test_a_finished_run_can_be_given_more_frames(tmp_path):
    config = dataclasses.replace(PPO, total_frames=256)
    train_ppo(config, out=tmp_path / "run", display="none")
    with pytest.raises(CheckpointError, match=r"has done all its 256 frames; ask for more: .*--total-frames 512"):
        train_ppo(config, resume=tmp_path / "run", display="none")
    more = train_ppo(dataclasses.replace(config, total_frames=384), resume=tmp_path / "run", display="none")
    assert more.train_frames == 384
    assert "total_frames: 384" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_run_resumes_with_its_own_recipe_only(tmp_path):
    stop = {"display": "none", "should_stop": lambda frames: True}
    train_ppo(PPO, out=tmp_path / "run", **stop)
    with pytest.raises(CheckpointError, match=r"begun with gamma=0\.99, not 0\.5"):
        train_ppo(dataclasses.replace(PPO, gamma=0.5), resume=tmp_path / "run", display="none")
    with pytest.raises(CheckpointError, match="is a run of 'ppo', not of 'dqn'"):
        train_dqn(DQN, resume=tmp_path / "run", display="none")
    with pytest.raises(CheckpointError, match="is not a run folder"):
        train_ppo(PPO, resume=tmp_path, display="none")
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:100])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"last\.safetensors is damaged"):
        train_ppo(PPO, resume=tmp_path / "run", display="none")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
