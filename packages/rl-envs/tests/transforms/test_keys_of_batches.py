"""Every spelling of keys on a batch and in a buffer, and batches against the environment that makes them."""

from __future__ import annotations

import inspect

import pytest
import torch
from tensordict import TensorDict
from torch import nn

import rl.envs
from rl.core.errors import ContractError, RLError, SpecError
from rl.core.keys import as_tuple
from rl.envs import (
    BinarizeReward,
    CatFrames,
    CatTensors,
    CenterCrop,
    ClipTransform,
    Compose,
    Crop,
    DoubleToFloat,
    DTypeCastTransform,
    ExcludeTransform,
    FlattenObservation,
    GrayScale,
    Hash,
    LineariseRewards,
    ObservationIndices,
    ObservationNorm,
    ObservationTransform,
    PendulumEnv,
    PermuteTransform,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardNorm,
    RewardScaling,
    RewardSum,
    RNDTransform,
    SelectTransform,
    SignTransform,
    SqueezeTransform,
    Stack,
    StepCounter,
    TargetReturn,
    TimeMaxPool,
    ToTensorImage,
    TransformedEnv,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
)

F32, F64 = torch.float32, torch.float64

MAKE = {
    "BinarizeReward": ("reward", BinarizeReward),
    "CatFrames": ("observation", lambda keys: CatFrames(3, -1, keys)),
    "CatTensors": ("observation", lambda keys: CatTensors(keys, (*as_tuple(keys[0])[:-1], "joined"), del_keys=False)),
    "CenterCrop": ("image", lambda keys: CenterCrop(2, in_keys=keys)),
    "ClipTransform": ("observation", lambda keys: ClipTransform(keys, low=-0.1, high=0.1)),
    "Crop": ("image", lambda keys: Crop(2, in_keys=keys)),
    "DTypeCastTransform": ("observation", lambda keys: DTypeCastTransform(F32, F64, keys)),
    "DoubleToFloat": ("double", DoubleToFloat),
    "FlattenObservation": ("image", lambda keys: FlattenObservation(-2, -1, keys)),
    "GrayScale": ("image", GrayScale),
    "Hash": ("observation", lambda keys: Hash(keys, [(*as_tuple(k)[:-1], "h") for k in keys])),
    "LineariseRewards": ("reward", lambda keys: LineariseRewards(keys, weights=[3.0])),
    "ObservationIndices": ("observation", lambda keys: ObservationIndices([2, 0], keys)),
    "ObservationNorm": ("observation", lambda keys: ObservationNorm(1.0, 2.0, keys)),
    "PermuteTransform": ("image", lambda keys: PermuteTransform([-1, -2], keys)),
    "RenameTransform": ("observation", lambda keys: RenameTransform(keys, [(*as_tuple(k)[:-1], "o") for k in keys])),
    "Resize": ("image", lambda keys: Resize(2, in_keys=keys)),
    "RewardClipping": ("reward", lambda keys: RewardClipping(-1.0, 1.0, keys)),
    "RewardScaling": ("reward", lambda keys: RewardScaling(1.0, 10.0, keys)),
    "RewardSum": ("reward", RewardSum),
    "SignTransform": ("reward", SignTransform),
    "SqueezeTransform": ("reward", lambda keys: SqueezeTransform(-1, keys)),
    "Stack": ("observation", lambda keys: Stack(keys, (*as_tuple(keys[0])[:-1], "joined"), del_keys=False)),
    "ToTensorImage": ("image", lambda keys: ToTensorImage(in_keys=keys)),
    "UnaryTransform": ("observation", lambda keys: UnaryTransform(keys, fn=torch.exp)),
    "UnsqueezeTransform": ("observation", lambda keys: UnsqueezeTransform(-1, keys)),
}
REFUSED = {
    "ObservationTransform": lambda: ObservationTransform(["observation"]),
    "RNDTransform": lambda: RNDTransform(nn.Linear(3, 4), nn.Linear(3, 4)),
    "RewardNorm": RewardNorm,
    "TargetReturn": lambda: TargetReturn(5.0),
    "TimeMaxPool": lambda: TimeMaxPool(["observation"]),
    "Transform": lambda: rl.envs.Transform(["observation"]),
    "VecNorm": lambda: VecNorm(["observation"]),
}
WITHOUT_KEYS = {"FiniteTensorDictCheck", "PinMemoryTransform", "RemoveEmptySpecs"}  # they have no constructor
RECORDERS = {"TensorDictRecorder", "VideoRecorder"}  # they change no entry


def rollout():
    """A batch [2, 7] of Pendulum-v1, with images and float64 entries."""
    torch.manual_seed(0)
    batch = PendulumEnv([2], seed=0).rollout(7)
    for part in (batch, batch["next"]):
        part["image"], part["double"] = torch.rand(2, 7, 3, 3, 3), torch.rand(2, 7, 1).double()
    return batch


def alone(key):
    return [("next", key)]


def test_the_table_has_every_transform_with_in_keys():
    every = {name: getattr(rl.envs, name) for name in rl.envs.__all__}
    found = {
        name
        for name, one in every.items()
        if inspect.isclass(one)
        and issubclass(one, rl.envs.Transform)
        and "in_keys" in inspect.signature(one).parameters
    }
    of_steps = {"ActionScaling", "NextObservationDelta", "TeamReward"}
    assert found - WITHOUT_KEYS - RECORDERS - of_steps == set(MAKE) | set(REFUSED)


@pytest.mark.parametrize("where", ["batch", "buffer"])
@pytest.mark.parametrize("name", MAKE)
def test_a_key_below_next_is_mapped_there_alone(name, where):
    key, make = MAKE[name]
    batch = rollout()
    expected = make([key])(batch.copy())["next"]
    transform = make(alone(key))
    out = transform(batch.copy()) if where == "batch" else through_buffer(transform, batch)
    assert set(out["next"].keys(True, True)) == set(expected.keys(True, True))
    for entry in expected.keys(True, True):
        torch.testing.assert_close(out["next"][entry], expected[entry], rtol=0, atol=0)
    for entry in batch.exclude("next").keys(True, True):
        assert out[entry] is batch[entry] or torch.equal(out[entry], batch[entry])
    changed = [k for k in expected.keys() if k not in batch["next"].keys() or not same(expected[k], batch["next", k])]
    assert changed, "the test needs a transform that has an effect"


def same(one, two):
    return one.dtype == two.dtype and torch.equal(one, two)


def through_buffer(transform, batch):
    """The rows of a buffer of one row, which holds the whole batch."""
    replay = pytest.importorskip("rl.replay")
    buffer = replay.ReplayBuffer(storage=replay.ListStorage(1), batch_size=1, collate_fn=lambda rows: rows[0])
    buffer.append_transform(transform)
    buffer.add(batch)
    return buffer.sample()


@pytest.mark.parametrize("name", sorted(set(MAKE) - {"CatTensors", "Stack"}))
def test_both_spellings_are_those_of_the_plain_key(name):
    key, make = MAKE[name]
    batch = rollout()
    if key == "reward":
        batch["reward"] = batch["next", "reward"] / 2
    expected, out = make([key])(batch.copy()), make([key, *alone(key)])(batch)
    for entry in expected.keys(True, True):
        if name != "RewardSum" or entry != "episode_reward":
            torch.testing.assert_close(out[entry], expected[entry], rtol=0, atol=0)
    assert set(out.keys(True, True)) == set(expected.keys(True, True))


@pytest.mark.parametrize("name", MAKE)
def test_an_environment_refuses_keys_below_next(name):
    key, make = MAKE[name]
    with pytest.raises(SpecError, match=r"\('next', '\w+'\)"):
        TransformedEnv(PendulumEnv(), make(alone(key)))


@pytest.mark.parametrize("name", REFUSED)
def test_without_an_order_a_batch_is_refused(name):
    with pytest.raises(RLError):
        REFUSED[name]()(rollout())


def test_an_entry_of_the_root_alone_is_joined_there():
    batch = rollout()
    for one in (CatTensors(["observation", "action"], "both", del_keys=False, sort=False),):
        out = one(batch)
        assert torch.equal(out["both"], torch.cat([batch["observation"], batch["action"]], -1))
        assert "both" not in out["next"].keys()
    with pytest.raises(ContractError, match="joins 'nothing', which is missing"):
        CatTensors(["observation", "nothing"])(batch)


def test_frames_before_those_of_next_are_those_of_the_root():
    batch = rollout()
    with pytest.raises(ContractError, match=r"reads .*'observation'.*does not have at the root"):
        CatFrames(3, -1, alone("observation"))(batch.exclude("observation"))


BOTH_WAYS = {
    **{
        f"frames-{n}-{padding}": (lambda n=n, padding=padding: CatFrames(n, -1, ["observation"], ["x"], padding, 0.5))
        for n in (1, 2, 4)
        for padding in ("same", "constant")
    },
    "frames-both": lambda: CatFrames(4, -1, ["observation"]),
    "clip": lambda: ClipTransform(["observation"], low=-0.5, high=0.5),
    "cat": lambda: CatTensors(["th", "thdot"], "x", unsqueeze_if_oor=True, del_keys=False),
    "exclude": lambda: ExcludeTransform("observation"),
    "exclude-reward": lambda: ExcludeTransform("reward"),
    "exclude-truncated": lambda: ExcludeTransform("truncated"),
    "norm": lambda: ObservationNorm(1.0, 2.0),
    "rename": lambda: RenameTransform(["observation", "reward"], ["o", "r"]),
    "scaling": lambda: RewardScaling(1.0, 2.0),
    "select": lambda: SelectTransform("observation", "th", "thdot", "step_count"),
    "select-state": lambda: SelectTransform("th", "thdot", "step_count"),
    "sum": RewardSum,
    "unary": lambda: UnaryTransform(["observation"], ["x"], fn=torch.exp),
}


def steps(transform):
    """A rollout [3, 11] of episodes of 4 steps; the transform sees their ends."""
    env = TransformedEnv(PendulumEnv([3], seed=0), Compose(StepCounter(4), *([] if transform is None else [transform])))
    env.set_seed(1)
    torch.manual_seed(1)
    return env.rollout(11, break_when_any_done=False)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_batch_gives_what_the_environment_gives(name):
    expected, out = steps(BOTH_WAYS[name]()), BOTH_WAYS[name]()(steps(None))
    assert set(out.keys(True, True)) == set(expected.keys(True, True))
    for entry in expected.keys(True, True):
        torch.testing.assert_close(out[entry], expected[entry])


@pytest.mark.parametrize("padding", ["same", "constant"])
def test_frames_with_both_keys_are_those_of_the_environment(padding):
    expected = steps(CatFrames(4, -1, ["observation"], ["x"], padding))
    both = CatFrames(4, -1, ["observation", ("next", "observation")], ["x", ("next", "x")], padding)
    out = both(steps(None))
    torch.testing.assert_close(out["x"], expected["x"])
    torch.testing.assert_close(out["next", "x"], expected["next", "x"])


def test_selected_and_excluded_entries_of_a_batch():
    batch = rollout()
    out = ExcludeTransform("image", ("next", "double"))(batch)
    assert "image" not in out.keys()
    assert "image" not in out["next"].keys()
    assert "double" in out.keys()
    assert "double" not in out["next"].keys()
    literal = SelectTransform("observation", "action", ("next", "reward"))(batch)
    assert set(literal.keys(True, True)) == {"observation", "action", ("next", "reward")}
    assert set(SelectTransform("x")(TensorDict(x=torch.ones(2), y=torch.ones(2))).keys()) == {"x"}


@pytest.mark.parametrize("make", [lambda: ExcludeTransform("image"), lambda: SelectTransform("observation")])
def test_selected_and_excluded_entries_of_a_buffer(make):
    batch = rollout()
    out = through_buffer(make(), batch)
    assert "image" not in out.keys()
    assert "image" not in out["next"].keys()
    assert {"observation", "action", "done", ("next", "reward")} <= set(out.keys(True))


@pytest.mark.parametrize("key", ["done", "terminated"])
def test_flags_that_every_environment_has_are_not_excluded(key):
    with pytest.raises(SpecError, match=f"would remove '{key}', which every environment has"):
        TransformedEnv(PendulumEnv(), ExcludeTransform(key))


@pytest.mark.parametrize(
    "function",
    [
        lambda td: td.set(("next", "reward"), -td["next", "reward"]),
        lambda td: td.set("next", td["next"].clone().set("reward", 0 * td["next", "reward"])) if "next" in td else td,
    ],
)
def test_a_function_of_batches_is_refused_by_an_environment_and_works_on_a_batch(function):
    with pytest.raises(SpecError, match=r"changes \('next', '\w+'\).*read and write '"):
        TransformedEnv(PendulumEnv(), function)
    batch = rollout()
    expected = function(batch.copy())["next", "reward"]
    assert torch.equal(Compose(function)(batch)["next", "reward"], expected)


def test_a_function_of_every_entry_is_one_of_environments_too():
    env = TransformedEnv(PendulumEnv(seed=0), lambda td: td.apply(torch.clone))
    assert env.rollout(2).batch_size == torch.Size([2])
