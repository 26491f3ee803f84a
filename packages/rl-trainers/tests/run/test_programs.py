"""Training from Python: ``train``, its result, callbacks, early ends, kept checkpoints, policies that are called."""

import math
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.cli import main
from rl.core.errors import ArgumentError, RLError, ShapeError, UnknownArgumentError
from rl.trainers import (
    Callback,
    Evaluator,
    PPOConfig,
    StopAtReturn,
    evaluate,
    load_checkpoint,
    load_policy,
    load_run,
    train,
    train_ppo,
)
from rl.trainers.loggers import read_metrics

SMALL = {"total_frames": 256, "num_envs": 2, "num_cells": (8,), "eval_every": 64, "log_every": 64, "eval_episodes": 1,
         "final_eval_episodes": 2, "max_episode_steps": 30, "loggers": ("csv",)}  # fmt: skip
PPO = {"frames_per_batch": 64, "minibatch_size": 32, "epochs": 1, "preset": "none", "display": "none"}


def test_train_does_what_the_command_does():
    result = train("ppo", env="CartPole-v1", seed=3, out="python", **SMALL, **PPO)
    words = {**SMALL, "num_cells": "8", "loggers": "csv", **PPO}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in words.items()]
    assert main(["train", "ppo", "--env=CartPole-v1", "--seed=3", "--out=command", *options]) == 0
    mine, theirs = (read_metrics(Path(name) / "metrics.csv") for name in ("python", "command"))
    assert mine["train/loss_actor"] == theirs["train/loss_actor"]
    assert result.train_frames == 256


def test_the_result_has_policy_evaluation_and_plot():
    result = train("ppo", out="run", **SMALL, **PPO)
    assert result.evaluate(episodes=3, seed=5).tolist() == evaluate("run", episodes=3, seed=5).tolist()
    assert result.policy.predict(np.zeros(4)) in (0, 1)
    (axes,) = result.plot().axes
    evaluations = next(line for line in axes.lines if line.get_label() == "evaluation")
    assert evaluations.get_ydata().tolist() == read_metrics(Path("run/metrics.csv"))["eval/return_mean"]


def test_a_preset_applies_as_on_the_command_line():
    chosen = dict.fromkeys(("frames_per_batch", "minibatch_size", "epochs"))
    usual = {name: value for name, value in PPO.items() if name not in chosen and name != "preset"}
    result = train("ppo", env="CartPole-v1", out="run", **{**SMALL, "num_envs": 8, "total_frames": 1}, **usual)
    assert load_run(result.folder).config.learning_rate == 0.001
    plain = train("ppo", env="CartPole-v1", out="plain", **SMALL, **PPO)
    assert load_run(plain.folder).config.learning_rate == PPOConfig().learning_rate


def test_a_run_is_resumed_from_python():
    train("ppo", out="run", **SMALL, **PPO)
    result = train("ppo", resume="run", total_frames=384, display="none")
    assert (result.train_frames, result.folder) == (384, Path("run"))


@pytest.mark.parametrize(("call", "error", "said"), [
    (lambda: train("pppo"), RLError, "there is no recipe 'pppo'; did you mean 'ppo'"),
    (lambda: train("ppo", learningrate=1.0), UnknownArgumentError, "no setting of ppo learningrate; did you mean lear"),
    (lambda: train("ppo", gamma=2.0), ArgumentError, r"gamma must be in \[0, 1\], got 2.0"),
    (lambda: train("ppo", preset="Nothing-v0"), RLError, "no preset of ppo named Nothing-v0"),
    (lambda: train("ppo", stop_after=-1.0), ArgumentError, "stop_after must be 0 or more"),
])  # fmt: skip
def test_wrong_arguments_are_explained(call, error, said, tmp_path):
    with pytest.raises(error, match=said):
        call()
    assert not any(tmp_path.iterdir())


class Recorded(Callback):
    def __init__(self):
        self.calls, self.metrics = [], []

    def on_start(self, run):
        self.calls.append(("start", run.frames))

    def on_batch(self, run, batch):
        self.calls.append(("batch", tuple(batch.batch_size)))

    def on_update(self, run, metrics):
        self.metrics.append(dict(metrics))

    def on_evaluation(self, run, return_mean):
        self.calls.append(("evaluation", run.frames, return_mean))

    def on_end(self, run):
        self.calls.append(("end", run.frames))


def test_callbacks_see_batches_updates_and_evaluations():
    seen = Recorded()
    train("ppo", out="run", callbacks=[seen], **SMALL, **PPO)
    metrics = read_metrics(Path("run/metrics.csv"))
    evaluations = [one[1:] for one in seen.calls if one[0] == "evaluation"]
    assert evaluations == [*zip(metrics["frames"], metrics["eval/return_mean"], strict=True)]
    assert [one for one in seen.calls if one[0] == "batch"] == [("batch", (2, 32))] * 4
    assert (seen.calls[0], seen.calls[-1]) == (("start", 0), ("end", 256))
    assert [one["loss_actor"] for one in seen.metrics] == metrics["train/loss_actor"]


def test_callbacks_leave_the_numbers_as_they_are():
    train("ppo", out="with", callbacks=[Recorded()], **SMALL, **PPO)
    train("ppo", out="without", **SMALL, **PPO)
    first, second = (read_metrics(Path(name) / "metrics.csv") for name in ("with", "without"))
    assert first["train/loss_actor"] == second["train/loss_actor"]
    assert first["eval/return_mean"] == second["eval/return_mean"]


@pytest.mark.parametrize("options", [{"callbacks": [StopAtReturn(1)]}, {"stop_at_return": 1.0}, {"stop_after": 1e-9}])
def test_a_run_that_ends_early_is_complete(options):
    result = train("ppo", out="run", **options, **SMALL, **PPO)
    assert (result.train_frames, result.interrupted) == (64, False)
    assert math.isfinite(result.eval_return_mean)
    assert Path("run/summary.json").is_file()
    assert Path("run/learning_curve.png").is_file()
    assert main(["runs", "run", "--where", "status=done"]) == 0
    again = train("ppo", resume="run", display="none", stop_at_return=math.inf, stop_after=0.0)
    assert again.train_frames == 256


def test_the_newest_checkpoints_are_kept_and_can_be_loaded():
    train("ppo", out="run", keep_checkpoints=2, checkpoint_every=64, **SMALL, **PPO)
    kept = sorted(path.name for path in Path("run/checkpoints").iterdir())
    assert kept == ["best.safetensors", "frames-192.safetensors", "frames-256.safetensors", "last.safetensors"]
    older, newest = (load_checkpoint(f"run/checkpoints/frames-{frames}.safetensors") for frames in (192, 256))
    assert older["run"]["frames"] == 192
    assert not all((older["policy"][key] == newest["policy"][key]).all() for key in older["policy"])
    run = load_run("run", 192)
    assert (run.frames, run.checkpoint) == (192, 192)
    assert all((run.policy.state_dict()[key] == value).all() for key, value in older["policy"].items())
    with pytest.raises(RLError, match=r"frames-64\.safetensors"):
        load_run("run", 64)


def test_seeds_side_by_side_give_the_numbers_of_one_after_the_other(capfd):
    words = {**SMALL, "num_cells": "8", "loggers": "csv", **PPO, "display": "plain"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in words.items()]
    assert main(["train", "ppo", "--seeds", "0-2", "--jobs", "2", "--out", "together", *options]) == 0
    assert "(3 of 3): return" in capfd.readouterr().out
    for seed in range(3):
        train("ppo", out=f"alone-{seed}", seed=seed, **SMALL, **PPO)
        names = (f"together/seed-{seed}", f"alone-{seed}")
        first, second = (read_metrics(Path(name) / "metrics.csv") for name in names)
        assert first["train/loss_actor"] == second["train/loss_actor"]
    assert main(["train", "ppo", "--seeds", "0-2", "--jobs", "2", "--out", "together", *options]) == 0


@pytest.mark.parametrize(("words", "said"), [
    (["--seeds", "3-1"], "as in 0,1,2 or 0-4, got 3-1"),
    (["--seeds", "0,0-1"], "got 0,0-1"),
    (["--seeds", "0-99999999"], "got 0-99999999"),
    (["--jobs", "2"], "trains seeds side by side: name them, as in --seeds 0-4"),
    (["--seeds", "0-1", "--jobs", "0"], "1 or more, got 0"),
])  # fmt: skip
def test_wrong_seeds_are_explained(words, said, capsys):
    assert main(["train", "ppo", *words]) == 2
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------ predict


class Watched(gymnasium.Wrapper):
    """Keeps what the agent sees and does, as the simulator has it."""

    log = None  # of the test

    def reset(self, **options):
        seen, info = self.env.reset(**options)
        if Watched.log is not None:
            Watched.log.append([seen, None, True])
        return seen, info

    def step(self, action):
        outcome = self.env.step(action)
        if Watched.log is not None:
            Watched.log[-1][1] = action
            Watched.log.append([outcome[0], None, False])
        return outcome


module = ModuleType("rl_trainers_test_watched")
module.Watched = Watched
sys.modules[module.__name__] = module
SETTINGS = {
    "plain": {"env": "CartPole-v1"},
    "continuous": {"env": "Pendulum-v1", "normalize_observation": True, "clip_actions": True},
    "stacked": {"env": "Pendulum-v1", "frame_stack": 3, "normalize_observation": True},
    "recurrent": {"env": "CartPole-v1", "policy": "lstm", "observation_indices": (0, 2), "recurrent_size": 8,
                  "minibatch_size": 64},
    "gru": {"env": "CartPole-v1", "policy": "gru", "frame_stack": 2, "recurrent_size": 8, "minibatch_size": 64},
    "dict": {"env": "Dict-v0"},
    "discrete": {"env": "SeenDiscrete-v0"},
    "choices": {"env": "Choices-v0"},
    "bits": {"env": "Bits-v0"},
    "doubles": {"env": "Doubles-v0"},
    "image": {"env": "SeenImage-v0"},
}  # fmt: skip


def watched(name):
    """Return a trained run, and what one evaluation of it saw and did."""
    given = {**SMALL, **PPO, "wrapper": ("rl_trainers_test_watched:Watched",), "out": name, **SETTINGS[name]}
    train("ppo", **given)
    run = load_run(name, trust=["rl_trainers_test_watched"])
    Watched.log = log = []
    env = run.make_env(1, seed=4)
    evaluator = Evaluator(lambda count, seed: env, run.policy)
    evaluator.run(1, seed=4)
    evaluator.close()
    Watched.log = None
    return run, [one for one in log if one[1] is not None]


@pytest.mark.parametrize("name", SETTINGS)
def test_predict_acts_as_the_policy_does_in_its_environment(name):
    run, steps = watched(name)
    assert len(steps) > 8
    for seen, action, begins in steps:
        found = run.policy.predict(seen, is_init=begins)
        np.testing.assert_allclose(found, action, rtol=1e-5, atol=1e-6)
        assert np.asarray(found).dtype == np.asarray(action).dtype or np.ndim(action) == 0


@pytest.mark.parametrize("name", ["continuous", "gru", "dict", "discrete"])
def test_a_batch_is_predicted_row_by_row(name):
    run, steps = watched(name)
    rows = [one[0] for one in steps[:5]]
    batch = (
        {key: np.stack([row[key] for row in rows]) for key in rows[0]} if isinstance(rows[0], dict) else np.stack(rows)
    )
    together = run.predict(batch, is_init=True)
    run.predictor.reset()
    alone = [run.predict(row, is_init=True) for row in rows]
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-5, atol=1e-6)


def test_predict_samples_as_in_training_if_asked():
    run, steps = watched("continuous")
    torch.manual_seed(0)
    actions = {float(run.predict(steps[0][0], deterministic=False)[0]) for _ in range(5)}
    assert len(actions) == 5


def test_a_loaded_policy_still_reads_and_writes_tensordicts():
    train_ppo(PPOConfig(**SMALL, frames_per_batch=64, minibatch_size=32), out="run", display="none")
    policy = load_policy("run")
    out = policy(TensorDict({"observation": torch.zeros(2, 4)}, [2]))
    assert out["action"].shape == (2,)


def test_wrong_observations_are_explained():
    run, _ = watched("plain")
    with pytest.raises(ShapeError, match=r"observation has the shape \(3,\); expected \(4,\)"):
        run.predict(np.zeros(3))
    run, _ = watched("dict")
    with pytest.raises(ShapeError, match="has no entry"):
        run.predict({"vector": np.zeros(2)})
    run, _ = watched("gru")
    run.predict(np.zeros((2, 4)))
    with pytest.raises(ShapeError, match=r"had 2 observations, got 3: call reset\(\) first"):
        run.predict(np.zeros((3, 4)))
