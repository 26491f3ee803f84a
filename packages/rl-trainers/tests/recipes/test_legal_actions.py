"""Recipes of discrete actions where the environment says which actions are legal."""

from contextlib import contextmanager

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl.core import check_pipeline
from rl.core.errors import ContractError, SpecError
from rl.core.registry import load
from rl.replay import ReplayBuffer, TensorStorage
from rl.replay.datasets import load_dataset, register_dataset
from rl.trainers import SACConfig, make_env, train_sac
from rl.trainers.algorithms.bc import loss as bc_loss
from rl.trainers.algorithms.cql import loss as cql_loss
from rl.trainers.algorithms.dqn import c51_loss, dqn_loss, qrdqn_loss
from rl.trainers.algorithms.iql import loss as iql_loss
from rl.trainers.algorithms.sac import discrete_loss
from rl.trainers.cli import dataset

STEPS = 8


class Rooms(gymnasium.Env):
    """Two of four actions are legal, others at each step; none is at the end. An illegal action raises."""

    where = "observation"
    action_space = spaces.Discrete(4)
    seen = spaces.Box(0, 1, (4,), np.float32)

    def __init__(self):
        parts = {"observation": self.seen, "action_mask": spaces.MultiBinary(4)}
        self.observation_space = spaces.Dict(parts) if self.where == "observation" else self.seen

    def _look(self):
        first = self.np_random.integers(4)
        self.legal = np.roll(np.array([1, 1, 0, 0], np.int8), first) * (self.t < STEPS)
        seen = np.eye(4, dtype=np.float32)[first]
        if self.where == "info":
            return seen, {"action_mask": self.legal}
        return {"observation": seen, "action_mask": self.legal}, {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._look()

    def step(self, action):
        assert self.legal[action], f"{action} is illegal among {self.legal}"
        self.t += 1
        seen, info = self._look()
        return seen, float(action == 3), self.t == STEPS, False, info


class Reporting(Rooms):
    where = "info"


class Panel(Rooms):
    """A lever with two positions and one with three, of which one or two are legal, and none of the second at times."""

    action_space = spaces.MultiDiscrete([2, 3])
    seen = spaces.Box(0, 1, (5,), np.float32)

    def __init__(self):
        super().__init__()
        if self.where == "observation":
            self.observation_space = spaces.Dict({"observation": self.seen, "action_mask": spaces.MultiBinary(5)})

    def _look(self):
        one, two = self.np_random.integers(2), self.np_random.integers(4)
        first = np.eye(2, dtype=np.int8)[one]
        second = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0]], np.int8)[two]
        self.legal = np.concatenate([first, second]) * (self.t < STEPS)
        seen = self.legal.astype(np.float32)
        if self.where == "info":
            return seen, {"action_mask": self.legal}
        return {"observation": seen, "action_mask": self.legal}, {}

    def step(self, action):
        first, second = self.legal[:2], self.legal[2:]
        assert first[action[0]], f"{action} is illegal among {self.legal}"
        assert second[action[1]] or not second.any(), f"{action} is illegal among {self.legal}"
        self.t += 1
        seen, info = self._look()
        return seen, float(action[1] == 2), self.t == STEPS, False, info


class ReportingPanel(Panel):
    where = "info"


SMALL = {
    "num_envs": 2,
    "total_frames": 192,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "num_cells": (16,),
    "loggers": ("csv",),
}
ON_POLICY = {"frames_per_batch": 64}
PPO = {**ON_POLICY, "minibatch_size": 32, "epochs": 2}
REPLAY = {"frames_per_batch": 32, "learning_starts": 96, "batch_size": 16, "utd_ratio": 0.1}
CASES = {
    "ppo": PPO,
    "ppo-rnd": PPO,
    "ppo, gru": {**PPO, "policy": "gru", "recurrent_size": 8, "sequence_length": 16},
    "a2c": ON_POLICY,
    "reinforce": ON_POLICY,
    "impala": ON_POLICY,
    "dqn": REPLAY,
    "dqn, 3 steps": {**REPLAY, "n_steps": 3},
    "dqn, lstm": {**REPLAY, "policy": "lstm", "recurrent_size": 8, "sequence_length": 4, "burn_in": 2},
    "c51": REPLAY,
    "qrdqn": REPLAY,
    "rainbow": REPLAY,
    "discrete-sac": REPLAY,
}


def registered():
    """The id of `Rooms`: commands that read a run cannot import a test."""
    if "Rooms-v0" not in gymnasium.registry:
        gymnasium.register("Rooms-v0", Rooms)
    return "Rooms-v0"


def run_of(case, out, env=Rooms, **changes):
    recipe = load("recipe", case.partition(",")[0])
    return recipe.train(recipe.config(**{"env": env, **SMALL, **CASES[case], **changes}), out=out, display="none")


@pytest.mark.parametrize("case", CASES)
def test_no_illegal_action_is_taken_in_training_and_evaluation(case, tmp_path):
    assert run_of(case, tmp_path / "run").train_frames == SMALL["total_frames"]


@pytest.mark.parametrize("case", ["ppo", "ppo, gru", "a2c", "reinforce", "impala"])
def test_no_illegal_action_of_several_choices_is_taken(case, tmp_path):
    assert run_of(case, tmp_path / "run", Panel).train_frames == SMALL["total_frames"]


@pytest.mark.parametrize("changes", [{"env": ReportingPanel}, {"env": Panel, "workers": 2}], ids=["info", "workers"])
def test_masks_of_several_choices_in_info_and_of_workers_count_too(changes, tmp_path):
    assert run_of("ppo", tmp_path / "run", **changes).train_frames == SMALL["total_frames"]


def test_a_mask_of_several_choices_has_an_entry_for_each_class(tmp_path):
    class Short(Panel):
        def __init__(self):
            self.observation_space = spaces.Dict({"observation": self.seen, "action_mask": spaces.MultiBinary(3)})

    with pytest.raises(SpecError, match=r"the n classes of a choice, or of several choices in all, .*action_mask"):
        run_of("ppo", tmp_path / "run", Short)


def test_a_recipe_of_one_choice_refuses_several(tmp_path):
    with pytest.raises(SpecError, match=r"dqn trains one choice"):
        run_of("dqn", tmp_path / "run", Panel)


@pytest.mark.parametrize("case", ["ppo", "dqn", "discrete-sac"])
@pytest.mark.parametrize("changes", [{"env": Reporting}, {"workers": 2}], ids=["info", "workers"])
def test_masks_in_info_and_of_workers_count_too(case, changes, tmp_path):
    found = run_of(case, tmp_path / "run", **changes)
    assert found.train_frames == SMALL["total_frames"]


@pytest.mark.parametrize("case", ["ppo", "dqn", "discrete-sac"])
def test_it_learns_the_best_of_the_legal_actions(case, tmp_path):
    found = run_of(case, tmp_path / "run", total_frames=3072, learning_rate=1e-2, gamma=0.5)
    assert found.eval_return_mean > 2.0  # action 3 is legal in half of the steps: 4 at best, 2 at random


def test_a_run_resumes_exactly_among_random_actions(tmp_path):
    changes = {"learning_starts": 160, "frames_per_batch": 32}
    run_of("discrete-sac", tmp_path / "whole", **changes)
    recipe = load("recipe", "discrete-sac")
    config = recipe.config(**{"env": Rooms, **SMALL, **CASES["discrete-sac"], **changes})
    train = recipe.train
    train(config, out=tmp_path / "cut", display="none", should_stop=lambda frames: frames >= 96)
    train(config, resume=tmp_path / "cut", display="none")
    rows = [(tmp_path / name / "episodes.csv").read_text().splitlines() for name in ("whole", "cut")]
    assert [row.split(",")[:3] for row in rows[0]] == [row.split(",")[:3] for row in rows[1]]


def test_looking_for_a_mask_is_seeded(tmp_path):
    """The first copy is reset once more than the others: with the seed, so that a run is the same each time."""
    seeds = []

    class Seen(Reporting):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    make_env(Seen, 2, seed=7).reset()
    assert seeds[0] == 7
    assert None not in seeds


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("replay", [[], ["--replay"]])
def test_masks_are_recorded_and_learned_from(replay, tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("RL_DATASETS", str(tmp_path / "rows"))
    run_of("dqn", tmp_path / "run", registered())
    words = ["record", str(tmp_path / "run"), "test/rooms-v0", "--frames", "64", "--random", "0.5"]
    assert dataset([*words, *replay]) == 0
    rows = load_dataset("minari:test/rooms-v0").data
    for after in ((), ("next",)):  # the mask is that of the place which the observation shows, and none at the end
        place = rows[(*after, "observation")].argmax(-1)
        expected = torch.stack([torch.tensor([1, 1, 0, 0]).roll(int(one)) for one in place])
        ended = rows["next", "done"].expand(-1, 4) if after else torch.zeros_like(expected, dtype=torch.bool)
        assert torch.equal(rows[(*after, "action_mask")].long(), torch.where(ended, 1, expected))
    assert rows["action_mask"].gather(-1, rows["action"].unsqueeze(-1)).all()
    config = load("recipe", "bc").config(
        env=Rooms,
        dataset="minari:test/rooms-v0",
        total_frames=50,
        **{k: v for k, v in SMALL.items() if "frames" not in k},
    )
    load("recipe", "bc").train(config, out=tmp_path / "bc", display="none")


OFFLINE = {"bc": bc_loss, "iql": iql_loss, "cql": cql_loss}
LOSSES = {
    "dqn": dqn_loss,
    "c51": c51_loss,
    "qrdqn": qrdqn_loss,
    "discrete-sac": discrete_loss,
    **OFFLINE,
}


def steps(env, count=64):
    """Random legal steps ``[n]``."""
    rows = env.rollout(count, break_when_any_done=False).reshape(-1)
    rows["next", "reward"] = torch.rand_like(rows["next", "reward"])
    return rows


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_outputs_for_illegal_actions_change_no_loss(name, double, one_hot):
    recipe = load("recipe", name)
    kwargs = {"env_kwargs": {"categorical_action_encoding": False}} if one_hot else {}
    q = name in ("dqn", "c51", "qrdqn")
    config = recipe.config(env=registered(), num_cells=(8,), **({"double_dqn": double} if q else {}), **kwargs)
    env = make_env("Rooms-v0", 2, seed=0, **kwargs)
    policy = recipe.make_policy(config, env)
    loss = LOSSES[name](config, env, policy)
    check_pipeline(env, policy, loss)
    batch = steps(env)
    legal = batch["action_mask"] | batch["next", "action_mask"]
    rows = batch[~legal.all(-1)][:8]
    assert len(rows) == 8
    for row in rows.unsqueeze(1):
        taken = row["action"].argmax(-1) if one_hot else row["action"]
        never = int((row["action_mask"] | row["next", "action_mask"]).long().argmin(-1))
        before = losses_of(loss, row)
        with shifted(loss, never, name):
            assert losses_of(loss, row) == pytest.approx(before, abs=1e-5)
        with shifted(loss, int(taken), name):
            assert losses_of(loss, row) != pytest.approx(before, abs=1e-5)


@torch.no_grad()
def losses_of(loss, row):
    torch.manual_seed(0)
    return {key: float(value) for key, value in loss(row.clone()).items()}


@contextmanager
def shifted(loss, action, name):
    """Networks that put out other numbers for an action: values, logits, or logits of atoms."""
    last = [one for one in loss.modules() if isinstance(one, nn.Linear) and one.out_features not in (1, 8)]
    saved = [one.bias.data.clone() for one in last]
    for one in last:
        shape = {"c51": (-1, 4), "qrdqn": (4, -1)}.get(name, (4,))
        numbers = one.bias.data.view(shape)
        part = numbers[action] if name == "qrdqn" else numbers[..., action]
        part += torch.linspace(3, 5, part.numel()).view_as(part)
    yield
    for one, old in zip(last, saved, strict=True):
        one.bias.data.copy_(old)


def test_a_mask_that_fits_no_choice_is_rejected_by_name(tmp_path):
    class Two(Rooms):
        action_space = spaces.MultiDiscrete([2, 3])

    class Short(Rooms):
        action_space = spaces.Discrete(3)

    class Floats(Rooms):
        action_space = spaces.Box(-1, 1, (2,), np.float32)

    for env in (Two, Short):
        with pytest.raises(SpecError, match=r"ppo masks the n classes of a choice.*excluded_keys: .action_mask"):
            run_of("ppo", tmp_path / "run", env=env)
    with pytest.raises(SpecError, match="sac masks the n classes of a choice"):
        train_sac(SACConfig(env=Floats), out=tmp_path / "run", display="none")
    assert not (tmp_path / "run").exists()


def masked_rows(name, batch_size, env=Rooms):
    rows = steps(make_env(env, 1, seed=0), 128)
    for key in ("action_mask", ("next", "action_mask")):
        rows[key] = rows[key].to(torch.int8)  # as data sets store MultiBinary
    if name == "bare":
        rows = rows.exclude("action_mask", ("next", "action_mask"))
    return ReplayBuffer(storage=TensorStorage(rows), batch_size=batch_size)


def test_several_choices_of_a_data_set_are_masked_too(tmp_path):
    register_dataset("panel", lambda name, batch_size: masked_rows(name, batch_size, Panel), replace=True)
    recipe = load("recipe", "bc")
    small = {**SMALL, "env": Panel, "total_frames": 20, "batch_size": 16}
    small.pop("num_envs")
    recipe.train(recipe.config(**small, dataset="panel:all"), out=tmp_path / "run", display="none")


@pytest.mark.parametrize("name", OFFLINE)
def test_recipes_for_data_sets_read_its_masks_or_say_that_it_has_none(name, tmp_path):
    register_dataset("rooms", masked_rows, replace=True)
    recipe = load("recipe", name)
    small = {**SMALL, "env": Rooms, "total_frames": 20, "batch_size": 16}
    small.pop("num_envs")
    recipe.train(recipe.config(**small, dataset="rooms:all"), out=tmp_path / "run", display="none")
    with pytest.raises(ContractError, match=r"action_mask.*lacks"):
        recipe.train(recipe.config(**small, dataset="rooms:bare"), out=tmp_path / "other", display="none")
