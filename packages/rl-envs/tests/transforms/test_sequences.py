"""Transforms of sampled sequences and of stored batches, against naive loops."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError
from rl.core.specs import Composite, NonTensor, Unbounded
from rl.envs import (
    ActionChunkTransform,
    CatFrames,
    Compose,
    EnvBase,
    Hash,
    NextObservationDelta,
    NextStateReconstructor,
    PendulumEnv,
    RenameTransform,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    cat_frames,
)
from rl.testing import check_transform

IDS = ("collector", "traj_ids")


def sequences(rows=3, steps=7, seed=0):
    """A batch [rows, steps] with episodes that end at random steps."""
    generator = torch.Generator().manual_seed(seed)
    done = torch.rand(rows, steps, 1, generator=generator) < 0.3
    before = torch.cat([torch.zeros(rows, 1), done[:, :-1, 0]], 1).cumsum(1)
    batch = TensorDict(
        observation=torch.randn(rows, steps, 2, generator=generator),
        action=torch.randn(rows, steps, 2, generator=generator),
        next=TensorDict(done=done, reward=torch.zeros(rows, steps, 1), batch_size=[rows, steps]),
        batch_size=[rows, steps],
    )
    return batch.set(IDS, (before + 100 * torch.arange(rows).unsqueeze(-1)).long())


@pytest.mark.parametrize("done_key", ["done", None])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_chunks_are_the_next_actions_of_the_episode(size, done_key):
    batch = sequences()
    transform = ActionChunkTransform(size, done_key=done_key)
    out = transform(batch)
    for row in range(3):
        for t in range(7):
            last = 6
            if done_key:
                last = next((i for i in range(t, 7) if batch["next", "done"][row, i]), 6)
            for ahead in range(size):
                expected = batch["action"][row, min(t + ahead, last)]
                assert torch.equal(out["vla_action", "chunk"][row, t, ahead], expected)
                assert out["action_is_pad"][row, t, ahead] == (t + ahead > last)
    check_transform(transform, batch)


def test_chunks_of_flat_slices_of_a_buffer_stay_within_a_slice():
    replay = pytest.importorskip("rl.replay")
    buffer = replay.TensorDictReplayBuffer(
        storage=replay.LazyTensorStorage(100), sampler=replay.SliceSampler(slice_len=4), batch_size=40
    )
    buffer.append_transform(ActionChunkTransform(3))
    data = sequences(1, 60, seed=1)[0]
    data["action"] = torch.arange(60.0).unsqueeze(-1)
    data["next", "done"] = torch.arange(1, 61).unsqueeze(-1) % 10 == 0
    del data["collector"]
    buffer.extend(data)
    sample = buffer.sample().reshape(10, 4)
    expected = ActionChunkTransform(3, done_key=None)(sample)
    assert torch.equal(sample["vla_action", "chunk"], expected["vla_action", "chunk"])
    assert torch.equal(sample["action_is_pad"], expected["action_is_pad"])


def test_what_chunks_cannot_be_made_of_is_named():
    batch = sequences()
    with pytest.raises(ArgumentError, match="chunk_size must be at least 1"):
        ActionChunkTransform(0)
    with pytest.raises(ContractError, match="reads 'torque', which the batch does not have"):
        ActionChunkTransform(2, action_key="torque")(batch)
    with pytest.raises(ShapeError, match=r"time right before the last dimension, got \(3, 7, 2\) with time_dim=0"):
        ActionChunkTransform(2, time_dim=0)(batch)
    batch["next", "done"] = torch.zeros(3, 7, 2, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"'done'\) of shape \(3, 7, 1\), got \(3, 7, 2\); pass done_key=None"):
        ActionChunkTransform(2)(batch)


@pytest.mark.parametrize("keys", [(IDS, ("next", "done")), (None, ("next", "done")), (IDS, None)], ids=str)
def test_next_observations_are_those_of_the_following_step(keys):
    batch = sequences()
    batch["agents", "seen"] = torch.arange(42.0).reshape(3, 7, 2)
    transform = NextStateReconstructor(["observation", ("agents", "seen")], traj_key=keys[0], done_key=keys[1])
    out = transform(batch)
    for key in ("observation", ("agents", "seen")):
        got = out[("next", key) if isinstance(key, str) else ("next", *key)]
        for row in range(3):
            for t in range(7):
                if t == 6 or batch["next", "done"][row, t]:
                    assert got[row, t].isnan().all()
                else:
                    assert torch.equal(got[row, t], batch[key][row, t + 1])
    check_transform(transform, batch)


def test_next_observations_in_a_buffer_of_slices():
    replay = pytest.importorskip("rl.replay")
    buffer = replay.TensorDictReplayBuffer(
        storage=replay.LazyTensorStorage(100), sampler=replay.SliceSampler(slice_len=4, traj_key=IDS), batch_size=40
    )
    buffer.append_transform(NextStateReconstructor(fill_value=-1))
    data = sequences(1, 60)[0]
    data["observation"] = torch.arange(60).unsqueeze(-1)
    data[IDS] = torch.arange(60) // 10
    data["next", "done"] = torch.arange(1, 61).unsqueeze(-1) % 10 == 0
    buffer.extend(data)
    sample = buffer.sample().reshape(10, 4)
    assert torch.equal(sample["next", "observation"][:, :-1], sample["observation"][:, :-1] + 1)
    assert (sample["next", "observation"][:, -1] == -1).all()
    assert sample["next", "observation"].dtype == torch.int64


def test_steps_that_follow_count_on_where_a_count_is_named():
    batch = sequences(1, 4)[0].set("count", torch.tensor([0, 1, 5, 6]).unsqueeze(-1))
    out = NextStateReconstructor(traj_key=None, done_key=None, step_count_key="count", fill_value=0.0)(batch)
    assert torch.equal(out["next", "observation"][[0, 2]], batch["observation"][[1, 3]])
    assert not out["next", "observation"][[1, 3]].any()


def test_what_next_observations_cannot_be_found_by_is_named():
    batch = sequences().exclude(IDS)
    with pytest.raises(ContractError, match=r"\('collector', 'traj_ids'\), which the batch does not have: name"):
        NextStateReconstructor()(batch)
    assert ("next", "observation") in NextStateReconstructor(strict=False)(batch).keys(True)
    with pytest.raises(SpecError, match=r"write NaN as next value of 'observation', which is torch.int64"):
        NextStateReconstructor(strict=False)(batch.set("observation", torch.ones(3, 7).long()))
    with pytest.raises(ShapeError, match="a single step without batch"):
        NextStateReconstructor(strict=False)(batch[0, 0])


@pytest.mark.parametrize("fill", [-1, -1.0])
def test_next_integers_are_exact_whatever_the_kind_of_the_fill_value(fill):
    batch = TensorDict(x=2**53 + torch.arange(3), batch_size=[3])
    out = NextStateReconstructor(["x"], traj_key=None, done_key=None, fill_value=fill)(batch)
    assert out["next", "x"].tolist() == [2**53 + 1, 2**53 + 2, -1]


def test_next_observations_are_on_the_device_of_the_data_where_the_batch_names_none():
    batch = TensorDict(x=torch.ones(3, device="meta"), batch_size=[3])
    assert NextStateReconstructor(["x"], traj_key=None, done_key=None)(batch)["next", "x"].is_meta


@pytest.mark.parametrize("make", [lambda: ActionChunkTransform(2), NextStateReconstructor])
def test_transforms_of_sequences_are_refused_by_environments(make):
    with pytest.raises(RLError, match="append it to the replay buffer"):
        TransformedEnv(PendulumEnv(), make())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_differences_give_next_observations_back(dtype):
    torch.manual_seed(0)
    delta = NextObservationDelta(delta_dtype=dtype)
    plain = PendulumEnv([2], seed=0)
    env = TransformedEnv(plain, delta)
    assert set(delta.in_keys) == {"observation", "th", "thdot"}
    data = env.rollout(6)
    stored = delta.inv(data)
    assert stored["next", "delta", "th"].dtype == dtype
    assert not {"observation", "th", "thdot"} & set(stored["next"].keys())
    out = delta(stored)
    assert set(out.keys(True, True)) == set(data.keys(True, True))
    error = (data["next", "observation"] - data["observation"]).abs() * 2 * torch.finfo(dtype).eps + 1e-6
    assert ((out["next", "observation"] - data["next", "observation"]).abs() <= error).all()
    double = NextObservationDelta(["th"], restore_dtype=torch.float64, drop_delta=False)
    assert double(double.inv(data))["next", "th"].dtype == torch.float64
    assert ("next", "delta", "th") in double(double.inv(data)).keys(True, True)


def test_differences_in_a_buffer_take_less_memory_and_give_the_same_samples():
    replay = pytest.importorskip("rl.replay")
    env = TransformedEnv(PendulumEnv([2], seed=0), StepCounter(4))
    delta = NextObservationDelta()
    env.append_transform(delta)
    data = env.rollout(9, break_when_any_done=False).reshape(-1)
    buffer = replay.TensorDictReplayBuffer(storage=replay.LazyTensorStorage(50), batch_size=20)
    buffer.append_transform(delta)
    buffer.extend(data)
    assert buffer[:]["next", "delta", "observation"].dtype == torch.float16
    sample = buffer.sample()
    expected = data[sample["index"]]["next"]
    assert set(sample["next"].keys(True, True)) == set(expected.keys(True, True))
    error = 2**-9 + 1e-6  # half the distance of float16 numbers below 8, and that of float32 in the sum
    torch.testing.assert_close(sample["next", "observation"], expected["observation"], atol=error, rtol=0)
    check_transform(NextObservationDelta(), wrap=lambda t: TransformedEnv(PendulumEnv([2]), t))


@pytest.mark.parametrize("stored", [NextObservationDelta, lambda: CatFrames(2, -1, ["observation"], as_inverse=True)])
def test_a_state_is_set_where_a_transform_maps_batches_that_are_stored(stored):
    env = TransformedEnv(PendulumEnv([2]), Compose(stored(), RenameTransform(["th"], ["angle"], ["th"], ["angle"])))
    start = env.reset().set("angle", torch.tensor([0.5, 1.0]))
    assert torch.equal(env.reset(start.clone(), set_state=True)["angle"], start["angle"])


def test_what_differences_cannot_hold_is_refused_by_key():
    batch = TensorDict(x=torch.zeros(2), next=TensorDict(x=torch.tensor([1.0, 1e5]), batch_size=[2]), batch_size=[2])
    with pytest.raises(ContractError, match=r"a difference of 'x' exceeds the range of torch.float16"):
        NextObservationDelta(["x"]).inv(batch)
    with pytest.raises(ContractError, match="reads 'y', which the batch does not have"):
        NextObservationDelta(["y"]).inv(batch)
    whole = TensorDict(x=torch.tensor(5000), next=TensorDict(x=torch.tensor(9099)))
    with pytest.raises(
        ContractError, match=r"'x' is int64 \[\] and its next value int64 \[\].* leave it out of in_keys"
    ):
        NextObservationDelta(["x"]).inv(whole)
    with pytest.raises(RLError, match="pass in_keys=, or append it to the environment before"):
        NextObservationDelta().inv(batch)
    with pytest.raises(ArgumentError, match=r"restore_dtype must be a floating-point dtype, got torch.int32"):
        NextObservationDelta(restore_dtype=torch.int32)


class Texts(EnvBase):
    """Shows a text, and reads one."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(text=NonTensor())
        self.action_spec = Composite(word=NonTensor())
        self.said = []

    def _reset(self, td):
        return TensorDict(text=NonTensorData("start"))

    def _step(self, td):
        self.said.append(td["word"])
        return TensorDict(text=NonTensorData(td["word"] + "!"), reward=torch.zeros(1), done=torch.zeros(1).bool())

    def _set_seed(self, seed):
        pass


def digest(data):
    return list(hashlib.sha256(data).digest())


@pytest.mark.parametrize("several", [False, True])
def test_hashes_of_texts_are_those_of_hashlib(several):
    env = TransformedEnv(SerialEnv(2, Texts) if several else Texts(), Hash(["text"], ["hash"], seed="salt"))
    assert env.observation_spec["hash"].shape[-1] == 32
    hashes = env.reset()["hash"]
    assert hashes.reshape(-1, 32).tolist() == [digest(b"saltstart")] * (2 if several else 1)


def test_hashes_of_a_batch_are_those_of_its_rows():
    data = PendulumEnv([2], seed=0).rollout(3)
    transform = Hash(["observation"], ["hash"])
    out = transform(data)
    assert out["hash"].shape == (2, 3, 32)
    row = data["next", "observation"][1, 2].numpy().tobytes()
    assert out["next", "hash"][1, 2].tolist() == digest(row)
    words = TensorDict(word=NonTensorStack("a", "b"), batch_size=[2])
    assert Hash(["word"], ["hash"])(words)["hash"].tolist() == [digest(b"a"), digest(b"b")]
    check_transform(transform, data, compiles=False)
    check_transform(Hash(["observation"], ["hash"]), wrap=lambda t: TransformedEnv(PendulumEnv([2]), t))


def test_an_environment_gets_the_texts_of_known_hashes():
    known = Hash(["x"], ["y"], repertoire={})
    base = Texts()
    env = TransformedEnv(base, Hash([], [], ["word"], ["number"], repertoire=known.repertoire))
    assert isinstance(env.full_action_spec["number"], Unbounded)
    numbers = known(TensorDict(x=NonTensorStack("left", "right"), batch_size=[2]))["y"]
    td = env.step(env.reset().set("number", numbers[1]))
    assert base.said == ["right"]
    assert td["next", "text"] == "right!"
    with pytest.raises(ContractError, match="knows no value of the hash"):
        env.step(env.reset().set("number", numbers[1] + 1))
    rows = Hash([], [], ["x"], ["y"], repertoire=known.repertoire).inv(TensorDict(y=numbers, batch_size=[2]))
    assert rows["x"] == ["left", "right"]


def test_a_hash_function_of_ones_own():
    data = TensorDict(x=torch.tensor([[3.0], [5.0]]), batch_size=[2])
    transform = Hash(["x"], ["y"], ["x"], ["y"], hash_fn=lambda value, seed: value.sum().long() % seed, seed=3)
    out = transform(data)
    assert out["y"].tolist() == [0, 2]
    data["x"].zero_()
    assert transform.inv(out.exclude("x"))["x"].tolist() == [[3.0], [5.0]]
    with pytest.raises(ArgumentError, match="hash_fn must return a tensor, got int"):
        Hash(["x"], ["y"], hash_fn=lambda value: 3)(data)


@pytest.mark.parametrize("as_inverse", [False, True])
def test_unfolding_is_the_concatenation_of_the_frames_of_a_sequence(as_inverse):
    frames, over = torch.rand(2, 7, 3), torch.zeros(2, 7, 1, dtype=torch.bool)
    td = TensorDict(x=frames, next={"done": over}, batch_size=[2, 7])
    out = CatFrames(3, -1, ["x"], ["out"], as_inverse=as_inverse).unfolding(td)
    assert out is td
    assert torch.equal(out["out"], cat_frames(frames, 3, -1, time_dim=-2))


@pytest.mark.parametrize("padding", ["same", "constant"])
@pytest.mark.parametrize("kind", ["episodes", "nothing", "everything", "trailing dimension of 1"])
def test_a_mask_says_which_frames_of_a_window_are_padding(padding, kind):
    frames = torch.randn(2, 6, 3)
    number = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])  # of the episode of each frame
    mask = torch.zeros(2, 6, 4, dtype=torch.bool)
    for b, t, slot in itertools.product(range(2), range(6), range(4)):
        mask[b, t, slot] = t - 3 + slot < 0 or number[b, t - 3 + slot] != number[b, t]
    given = {"nothing": mask & False, "everything": mask | True}.get(kind, mask)
    out = cat_frames(
        frames,
        4,
        -1,
        time_dim=-2,
        padding=padding,
        padding_value=-9.0,
        done_mask=given.unsqueeze(-2) if "1" in kind else given,
    )
    for b, t, slot in itertools.product(range(2), range(6), range(4)):
        kept = [s for s in range(4) if s == 3 or (t - 3 + s >= 0 and not given[b, t, s])]
        source = slot if slot in kept else kept[0]
        expected = frames[b, t - 3 + source]
        if padding == "constant" and slot not in kept:
            expected = torch.full((3,), -9.0)
        assert torch.equal(out[b, t, 3 * slot : 3 * slot + 3], expected)


@pytest.mark.parametrize("mask", [torch.zeros(6, 3, dtype=torch.bool), torch.zeros(6, 4)])
def test_a_mask_of_another_shape_or_dtype_is_rejected(mask):
    with pytest.raises(ShapeError, match="done_mask must be bool of the shape"):
        cat_frames(torch.randn(6, 3), 4, -1, time_dim=-2, done_mask=mask)
