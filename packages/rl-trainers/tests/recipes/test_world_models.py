"""Recipes with a world model: their sequences, rates of replay, resuming, and what they learn."""

import dataclasses

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Bounded, Categorical, Composite, OneHot
from rl.trainers import (
    DreamerConfig,
    DreamerV3Config,
    TDMPC2Config,
    load_checkpoint,
    load_run,
    make_env,
    train_dreamer,
    train_dreamer_v3,
    train_tdmpc2,
)
from rl.trainers.loggers import read_metrics
from rl.trainers.world_models import ModelInputs, UnitActions, arrivals, draw_imagination

SMALL = {
    "num_envs": 2,
    "total_frames": 192,
    "frames_per_batch": 16,
    "learning_starts": 64,
    "batch_size": 4,
    "batch_length": 6,
    "eval_every": 96,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "max_episode_steps": 20,
    "log_every": 16,
    "loggers": ("csv",),
}
V3 = DreamerV3Config(**SMALL, horizon=3, updates_per_step=0.1, learning_rate=1e-3, warmup=10)
PLANS = {"num_candidates": 16, "num_elites": 4, "num_policy_plans": 4, "optim_steps": 2}
TDMPC2 = TDMPC2Config(**{**SMALL, "batch_length": 3}, **PLANS, size="tiny", updates_per_step=0.1)
V1 = DreamerConfig(**SMALL, horizon=3, updates_per_step=0.1, num_cells=16, belief_dim=16, state_dim=4)
CASES = [
    pytest.param(train_dreamer_v3, dataclasses.replace(V3, env="CartPole-v1"), id="dreamer-v3-one-choice"),
    pytest.param(train_dreamer_v3, dataclasses.replace(V3, env="pendulum"), id="dreamer-v3-floats"),
    pytest.param(train_dreamer_v3, dataclasses.replace(V3, env="pixel-grid-world"), id="dreamer-v3-pixels"),
    pytest.param(train_dreamer, dataclasses.replace(V1, env="pendulum"), id="dreamer"),
    pytest.param(train_tdmpc2, dataclasses.replace(TDMPC2, env="pendulum"), id="tdmpc2"),
]


def timeless(path):
    columns = read_metrics(path / "metrics.csv")
    return {name: [repr(value) for value in column] for name, column in columns.items() if not name.startswith("time/")}


def leaves(node, where=""):
    """All values of a checkpoint by place, less what the clock says."""
    if isinstance(node, dict):
        clock = ("seconds", "cpu_seconds", "times")
        parts = [(f"{where}.{key}", part) for key, part in node.items() if key not in clock]
    elif isinstance(node, (list, tuple)):
        parts = [(f"{where}[{i}]", part) for i, part in enumerate(node)]
    else:
        return {where: node}
    return {key: value for place, part in parts for key, value in leaves(part, place).items()}


def same(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else repr(a) == repr(b)


@pytest.mark.parametrize(("train", "config"), CASES)
def test_a_resumed_run_continues_with_buffer_and_latent_state(train, config, tmp_path):
    whole = train(config, out=tmp_path / "whole", display="none")
    half = train(config, out=tmp_path / "half", display="none", should_stop=lambda frames: frames >= 100)
    assert half.interrupted
    torch.manual_seed(99)  # whatever happened in between
    resumed = train(config, resume=tmp_path / "half", display="none")
    assert timeless(tmp_path / "half") == timeless(tmp_path / "whole")
    ours, theirs = (
        leaves(load_checkpoint(tmp_path / name / "checkpoints/last.safetensors")) for name in ("half", "whole")
    )
    assert ours.keys() == theirs.keys()
    assert [key for key, value in ours.items() if not same(value, theirs[key])] == []
    assert resumed.eval_return_mean == whole.eval_return_mean
    assert any(key.startswith(".collector") and key.endswith(("belief", "plan")) for key in ours)
    assert load_run(tmp_path / "half").policy.in_keys  # the policy of the folder is that of training
    pictures = sorted(path.name for path in (tmp_path / "whole").glob("imagination/*.png"))
    assert pictures == (["192.png", "96.png"] if config.env == "pixel-grid-world" else [])


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ({}, (1.0, 1024.0)),
        ({"train_ratio": 32}, (1 / 32, 32.0)),  # the example of the official README
        ({"train_ratio": 1024}, (1.0, 1024.0)),
        ({"updates_per_step": 0.5}, (0.5, 512.0)),
        ({"updates_per_step": 0.5, "train_ratio": 512}, (0.5, 512.0)),
        ({"updates_per_step": 0.5, "batch_size": 8, "batch_length": 16}, (0.5, 64.0)),
    ],
)
def test_pitfall_1_updates_per_step_and_train_ratio_are_two_units_of_one_number(given, rates):
    assert DreamerV3Config(**given).replay_rates == pytest.approx(rates)


def test_pitfall_1_rates_that_contradict_each_other_are_refused():
    with pytest.raises(ArgumentError, match="train_ratio must be updates_per_step \\* batch_size \\* batch_length"):
        DreamerV3Config(updates_per_step=1.0, train_ratio=32)


def test_pitfall_1_both_rates_are_shown_at_the_start_and_hold(tmp_path, capsys):
    config = dataclasses.replace(V3, env="pendulum", updates_per_step=0.0, train_ratio=6.0)
    train_dreamer_v3(config, out=tmp_path / "run", display="plain")
    assert "updates_per_step 0.25: a train_ratio of 6 replayed steps for each step" in capsys.readouterr().out
    state = load_checkpoint(tmp_path / "run/checkpoints/last.safetensors")
    assert state["learner"]["count"] == (192 - 48) * 0.25  # from the batch on with which 64 frames are there


def test_pitfall_5_a_resumed_run_does_not_make_up_for_frames(tmp_path):
    """Neither frames before the first update nor those of the run before cause more updates than those after them."""
    config = dataclasses.replace(V3, env="pendulum", updates_per_step=0.5)
    counts = []
    for where, stop in (({"out": tmp_path / "run"}, 96), ({"resume": tmp_path / "run"}, 128)):
        train_dreamer_v3(config, **where, display="none", should_stop=lambda frames, stop=stop: frames >= stop)
        counts.append(load_checkpoint(tmp_path / "run/checkpoints/last.safetensors")["learner"]["count"])
    # 48 frames came before the first update
    assert counts == [48 * 0.5, (48 + 32) * 0.5]


def test_pitfall_6_each_observation_is_stored_once(tmp_path):
    """A stored step has one image and its latent state."""
    sizes = {"total_frames": 64, "learning_starts": 1000, "eval_every": 64, "buffer_size": 64}
    config = dataclasses.replace(V3, env="pixel-grid-world", **sizes)
    train_dreamer_v3(config, out=tmp_path / "run", display="none")
    state = load_checkpoint(tmp_path / "run/checkpoints/last.safetensors")
    stored = leaves(state["buffer"])
    size = sum(one.numel() * one.element_size() for one in stored.values() if isinstance(one, torch.Tensor))
    image, latent = 3 * 16 * 16, 2 * (128 + 128)
    assert size / 64 < 1.3 * (image + latent)


def test_stored_states_are_refreshed_by_an_update():
    from rl.trainers.algorithms.dreamer import DREAMER_V3, dreamer_v3_loss
    from rl.trainers.loops.world_model import WorldModelUpdater, sequences_buffer, stored_keys

    env = make_env("pendulum", 1, seed=0)
    policy = DREAMER_V3.make_policy(V3, env)
    losses = dreamer_v3_loss(V3, env, policy)
    buffer = sequences_buffer(V3, losses)
    rows = env.rollout(16, break_when_any_done=False)
    flag = torch.zeros_like(rows["next", "done"])
    rows["state"], rows["belief"], rows["is_init"] = torch.zeros(1, 16, 128), torch.zeros(1, 16, 128), flag
    rows = rows.select(*stored_keys(env, policy, losses))
    for key in losses.latents:
        rows[key] = rows[key].to(torch.bfloat16)
    buffer.extend(rows.set(("next", "break"), flag))
    update = WorldModelUpdater(V3, losses, buffer)
    update(64, 10)
    before, states = (losses.newest[key] for key in ("before", "belief"))
    expected = {}
    observations = update.newest["observation"]
    for sequence, place in before.nonzero().tolist():
        step = observations[sequence, before[sequence, place]]
        expected.setdefault(tuple(step.tolist()), []).append(states[sequence, place].to(torch.bfloat16))
    found = {tuple(row["observation"].tolist()): row["belief"] for row in buffer[:]}
    assert len(expected) > 5
    for step, beliefs in expected.items():
        assert any(torch.equal(found[step], belief) for belief in beliefs)
    assert not buffer[:]["belief"][0].any()  # nothing leads to the first step


def test_dreamer_v3_samples_each_new_sequence_once_before_others_and_tdmpc2_does_not():
    """The "online queue": of 60 steps, those of the eight whole sequences of 7 steps come first, in their order."""
    from rl.trainers.algorithms import dreamer, tdmpc2
    from rl.trainers.loops.world_model import sequences_buffer

    env = make_env("pendulum", 1, seed=0)
    firsts = {}
    for config, policy, loss in (
        (V3, dreamer.dreamer_v3_policy, dreamer.dreamer_v3_loss),
        (TDMPC2, tdmpc2.policy, tdmpc2.loss),
    ):
        buffer = sequences_buffer(config, loss(config, env, policy(config, env)))
        rows = collected([False] * 60).select("observation", "next")
        rows["next", "break"] = torch.zeros_like(rows["next", "done"])
        buffer.extend(rows)  # observations count the steps
        firsts[config.recipe] = torch.cat([buffer.sample()["observation"][:, 0, 0] for _ in range(3)]).tolist()
    assert firsts["dreamer-v3"][:8] == [0, 7, 14, 21, 28, 35, 42, 49]
    assert firsts["dreamer-v3"][8:] != [56, 63, 70, 77]
    assert any(first % 3 for first in firsts["tdmpc2"])


class Env:
    """Specs of an environment with one observation and one action."""

    batch_size = torch.Size([])

    def __init__(self, action, observation=None):
        self.observation_spec = Composite(observation=observation or Bounded(-9, 9, (2,)))
        self.full_action_spec = Composite(action=action)


def collected(ends):
    """One environment, whose observation counts steps, as a collector returns it: ``[1, T]``."""
    rows, step, start = [], 0, True
    for t, end in enumerate(ends):
        flag = torch.tensor([end])
        after = {"observation": torch.full((2,), step + 1.0), "reward": torch.tensor([step + 0.5]), "done": flag}
        after["terminated"] = flag.clone()
        rows.append(
            TensorDict(
                observation=torch.full((2,), float(step)),
                action=torch.tensor([t / 10]),
                is_init=torch.tensor([start]),
                state=torch.full((3,), float(t)),
                belief=torch.full((4,), float(t)),
                next=TensorDict(after),
            )
        )
        start, step = end, 100 * (t + 1) if end else step + 1
    return torch.stack(rows).unsqueeze(0)


@pytest.mark.parametrize("ends", ["00000000", "00100000", "01010000", "00000001", "11111111", "10000010"])
def test_pitfall_2_rows_are_arrivals_with_the_action_before_and_each_end_has_a_row(ends):
    ends = [end == "1" for end in ends]
    env = Env(Bounded(-1, 1, (1,)))
    rows = collected(ends)
    found = arrivals(rows, ModelInputs(env), UnitActions(env, "test"))[0]
    expected = []  # by hand: observation, action before, first, reward, done
    for t in range(1, len(ends)):
        step, before = rows[0, t], rows[0, t - 1]
        first = step["is_init"].item()
        reward = 0.0 if first else before["next", "reward"].item()
        expected.append((step["observation"][0].item(), None if first else (t - 1) / 10, first, reward, False))
        if ends[t]:
            expected.append((step["next", "observation"][0].item(), t / 10, False, step["next", "reward"].item(), True))
    assert found.batch_size == (len(ends) - 1,)
    for row, (observation, action, first, reward, done) in zip(found, expected, strict=False):
        assert row["next", "vector"][0].item() == observation
        assert row["is_init"].item() == first
        if not first:
            assert row["action"].item() == pytest.approx(action)
        assert row["next", "reward"].item() == reward
        assert row["next", "done"].item() == row["next", "terminated"].item() == done
    for t, row in enumerate(found):  # the step that begins in the state of a row is the next one of its episode
        step = row["before"].item()
        if step:
            assert rows[0, step]["observation"][0].item() == row["next", "vector"][0].item() + 1
            assert not rows[0, step]["is_init"]
        else:
            assert row["next", "done"] or t == len(found) - 1 or found[t + 1]["next", "done"]
    assert found["state"][0].eq(1).all()
    assert found["belief"][0].eq(1).all()


def test_actions_are_scaled_to_units_and_back():
    floats = UnitActions(Env(Bounded(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0]))), "test")
    torch.testing.assert_close(floats.to_env(torch.tensor([[0.5, 3.0]])), torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(floats.to_unit(torch.tensor([[1.0, 0.25]])), torch.tensor([[0.5, -0.5]]))
    for spec, action in ((Categorical(3), torch.tensor([2, 0])), (OneHot(3), torch.eye(3).bool()[[2, 0]])):
        choice = UnitActions(Env(spec), "test")
        unit = choice.to_unit(action)
        assert unit.tolist() == [[0, 0, 1], [1, 0, 0]]
        assert torch.equal(choice.to_env(unit), action)
    with pytest.raises(SpecError, match="test trains a vector of bounded floats; 'action' of Env is a Categorical"):
        UnitActions(Env(Categorical(3)), "test", discrete=False)


def test_vectors_indices_and_an_image_are_read():
    env = Env(Categorical(2), Bounded(0, 255, (16, 32, 3), dtype=torch.uint8))
    pixels = ModelInputs(env)
    assert pixels.image_shape == (3, 16, 32)
    assert pixels(torch.zeros(5, 16, 32, 3, dtype=torch.uint8))[0].shape == (5, 3, 16, 32)
    index = ModelInputs(Env(Categorical(2), Categorical(4)))
    assert index(torch.tensor([3]))[0].tolist() == [[0, 0, 0, 1]]


def test_the_picture_has_real_images_above_imagined_ones_and_their_difference(tmp_path):
    from matplotlib.image import imread

    real = torch.rand(2, 7, 3, 16, 16)
    imagined = real.flip(-1)
    draw_imagination(tmp_path / "a" / "1.png", real, imagined, seen=5)
    found = torch.from_numpy(imread(tmp_path / "a" / "1.png"))[..., :3]
    assert found.shape == (2 * 3 * 32, 7 * 32 + 2, 3)
    assert found[:, 5 * 32 : 5 * 32 + 2].eq(1).all()
    last = found[96:, -32:][::2, ::2].movedim(-1, 0)  # the last step of the second sequence
    for place, expected in enumerate((real[1, 6], imagined[1, 6], (real[1, 6] - imagined[1, 6]).abs())):
        torch.testing.assert_close(last[:, 16 * place : 16 * (place + 1)], expected, atol=3e-3, rtol=0)


@pytest.mark.parametrize("kind", ["dreamer", "dreamer-v3"])
def test_images_are_imagined_without_those_that_follow(kind):
    from rl.trainers.algorithms.dreamer import DREAMER, DREAMER_V3, dreamer_loss, dreamer_v3_loss

    env = Env(Bounded(-1, 1, (1,)), Bounded(0, 255, (3, 64, 64), dtype=torch.uint8))
    config, algorithm, loss = (V1, DREAMER, dreamer_loss) if kind == "dreamer" else (V3, DREAMER_V3, dreamer_v3_loss)
    policy = algorithm.make_policy(config, env)
    losses = loss(config, env, policy)
    rows = collected([False] * 8)
    image = torch.randint(256, (1, 8, 3, 64, 64), dtype=torch.uint8)
    rows["observation"] = image
    rows["next", "observation"] = image.roll(-1, 1)
    for name, width in (("state", policy.state_dim), ("belief", policy.belief_dim)):
        rows[name] = torch.zeros(1, 8, width)
    out = losses(rows)
    assert all(value.isfinite().all() for value in out.values())

    def imagined(rows):
        torch.manual_seed(0)
        return losses.imagined_images(rows, 3)

    real, first = imagined(rows)
    torch.testing.assert_close(real, image[:, 1:] / 255)
    later, sooner = rows.clone(), rows.clone()
    later["observation"][:, 4:] = 0
    sooner["observation"][:, 3:] = 0
    assert torch.equal(imagined(later)[1], first)
    assert not torch.equal(imagined(sooner)[1], first)


def test_the_size_of_a_model_is_named():
    env = make_env("pendulum", 1, seed=0)
    from rl.trainers.algorithms.dreamer import DREAMER_V3

    small, large = (DREAMER_V3.make_policy(DreamerV3Config(size=size), env) for size in ("tiny", "1M"))
    assert (small.belief_dim, large.belief_dim) == (128, 512)
    with pytest.raises(ArgumentError, match="size must be one of tiny, 1M"):
        DreamerV3Config(size="2M")


def test_updates_follow_the_random_frames_of_td_mpc2_once(tmp_path):
    config = dataclasses.replace(TDMPC2, env="pendulum", total_frames=96, updates_per_step=0.25)
    train_tdmpc2(config, out=tmp_path / "run", display="none")
    assert load_checkpoint(tmp_path / "run/checkpoints/last.safetensors")["learner"]["count"] == 96 * 0.25


@pytest.mark.parametrize(
    ("env", "message"),
    [("CartPole-v1", "tdmpc2 trains a vector of bounded floats"), ("test/pixels", "tdmpc2 reads vectors")],
)
def test_td_mpc2_refuses_choices_and_images(env, message, tmp_path):
    from rl.trainers.algorithms.tdmpc2 import policy

    images = Env(Bounded(-1, 1, (1,)), Bounded(0, 255, (3, 16, 32), dtype=torch.uint8))
    made = images if env == "test/pixels" else make_env(env, 1, seed=0)
    with pytest.raises(SpecError, match=message):
        policy(TDMPC2, made)


def test_pitfall_7_an_end_inside_of_a_sequence_ends_the_target_there(tmp_path):
    """Sequences of the buffer are of one episode, and each step has its own termination."""
    from rl.trainers.algorithms.tdmpc2 import loss, policy
    from rl.trainers.loops.world_model import sequences_buffer

    env = make_env("pendulum", 1, seed=0)
    losses = loss(TDMPC2, env, policy(TDMPC2, env))
    buffer = sequences_buffer(TDMPC2, losses)
    rows = collected([end == "1" for end in "0001010000"]).exclude("state", "belief", "is_init")
    rows["next", "break"] = torch.zeros_like(rows["next", "done"])
    buffer.extend(rows)
    seen = set()
    for _ in range(30):
        for row in buffer.sample():
            mask = row["collector", "mask"]
            steps = row["observation"][mask, 0].tolist()
            assert [step - steps[0] for step in steps] == list(range(len(steps)))
            assert row["next", "terminated"][mask][:-1].logical_not().all()
            seen.add((len(steps), row["next", "terminated"][mask][-1].item()))
    assert {(3, True), (3, False), (2, True)} <= seen
