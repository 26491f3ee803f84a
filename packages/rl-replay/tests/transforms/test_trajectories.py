"""Rewards to go, random crops, and the dimension that counts rows."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.replay import (
    LazyTensorStorage,
    RandomCropTensorDict,
    ReplayBuffer,
    Reward2GoTransform,
    SamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)


def trajectories(*shape, generator=None):
    generator = generator or torch.Generator().manual_seed(0)
    after = TensorDict(
        reward=torch.rand(*shape, 1, generator=generator),
        done=torch.rand(*shape, 1, generator=generator) < 0.3,
        batch_size=shape,
    )
    return TensorDict(step=torch.arange(shape[-1]).expand(shape), next=after, batch_size=shape)


@pytest.mark.parametrize("shape", [(9,), (4, 9), (2, 3, 9)])
def test_rewards_to_go_are_those_of_a_loop(shape):
    batch = trajectories(*shape)
    batch["next", "gain"] = torch.rand(*shape, 2, 1).double()
    transform = Reward2GoTransform(0.9, [("next", "reward"), ("next", "gain")], ["togo", ("next", "togo")])
    batch["next", "done_"] = batch["next", "done"].clone()
    out = transform.inv(batch.copy().exclude(("next", "gain")).set(("next", "gain"), batch["next", "gain"][..., 0, :]))
    reward, done, wanted = batch["next", "reward"].reshape(-1, 9), batch["next", "done"].reshape(-1, 9), []
    for row, ends in zip(reward.tolist(), done.tolist(), strict=True):
        total, sums = 0.0, []
        for value, end in zip(reversed(row), reversed(ends), strict=True):
            total = value + (0.0 if end else 0.9 * total)
            sums.append(total)
        wanted.append(sums[::-1])
    assert torch.allclose(out["togo"].reshape(-1, 9), torch.tensor(wanted))
    assert out["next", "togo"].dtype == torch.float64


def test_rewards_to_go_are_written_and_not_computed_of_samples():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=8)
    buffer.append_transform(lambda td: td.reshape(-1), invert=True)
    buffer.append_transform(Reward2GoTransform())
    batch = trajectories(2, 9)
    buffer.extend(batch)
    assert "reward_to_go" not in batch.keys()
    assert buffer.sample()["reward_to_go"].shape == (8, 1)
    in_order = SamplerWithoutReplacement(shuffle=False)
    whole = ReplayBuffer(storage=LazyTensorStorage(20), sampler=in_order, batch_size=2)
    whole.append_transform(Reward2GoTransform(), invert=True)
    whole.extend(batch)
    assert torch.equal(whole.sample()["reward_to_go"], Reward2GoTransform().inv(batch.copy())["reward_to_go"])


def test_bad_arguments_of_rewards_to_go():
    with pytest.raises(ArgumentError, match="gamma"):
        Reward2GoTransform(1.5)
    with pytest.raises(ArgumentError, match="out_keys"):
        Reward2GoTransform(out_keys=["a", "b"])
    with pytest.raises(ContractError, match="done"):
        Reward2GoTransform().inv(trajectories(3).exclude(("next", "done")))
    with pytest.raises(ShapeError, match="time dimension"):
        Reward2GoTransform().inv(trajectories(3)[0])
    batch = trajectories(3)
    batch["next", "done"] = torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ShapeError, match="done"):
        Reward2GoTransform().inv(batch)


def test_crops_begin_anywhere_and_keep_rows_together():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(10), batch_size=64, transform=RandomCropTensorDict(4), generator=torch.Generator()
    )
    batch = trajectories(10, 9)
    batch["row"] = torch.arange(10).unsqueeze(-1).expand(10, 9)
    buffer.extend(batch)
    sample = buffer.sample()
    assert sample.batch_size == (64, 4)
    assert (sample["step"].diff(dim=1) == 1).all()
    assert (sample["row"] == sample["row"][:, :1]).all()
    assert set(sample["step"][:, 0].tolist()) == set(range(6))
    assert torch.equal(sample["next", "reward"], batch["next", "reward"][sample["row"], sample["step"]])


def test_crops_of_another_dimension_and_within_a_mask():
    batch = TensorDict(a=torch.arange(60).view(5, 4, 3), batch_size=[5, 4])
    cropped = RandomCropTensorDict(2, sample_dim=0)(batch)
    assert cropped.batch_size == (2, 4)
    assert (cropped["a"].diff(dim=0) == 12).all()
    lengths = torch.tensor([3, 5, 9, 4])
    padded = TensorDict(
        {"step": torch.arange(9).expand(4, 9), ("collector", "mask"): torch.arange(9) < lengths.unsqueeze(1)},
        batch_size=[4, 9],
    )
    crop = RandomCropTensorDict(3, mask_key=("collector", "mask"), generator=torch.Generator().manual_seed(0))
    last = torch.stack([crop(padded)["step"][:, -1] for _ in range(100)])
    assert torch.equal(last.amax(0), lengths - 1)
    assert (last.amin(0) == 2).all()
    with pytest.raises(ShapeError, match="3 steps"):
        RandomCropTensorDict(4, mask_key=("collector", "mask"))(padded)
    with pytest.raises(ContractError, match="mask_key"):
        RandomCropTensorDict(2, mask_key="mask")(batch)
    with pytest.raises(ShapeError, match="sample_dim"):
        RandomCropTensorDict(2, sample_dim=2)(batch)
    with pytest.raises(ArgumentError, match="sub_seq_len"):
        RandomCropTensorDict(0)


def test_another_dimension_counts_rows():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), dim_extend=1)
    batch = trajectories(3, 9)
    assert buffer.extend(batch).tolist() == list(range(9))
    assert buffer[:].batch_size == (9, 3)
    assert torch.equal(buffer[4]["next", "reward"], batch["next", "reward"][:, 4])
    assert buffer.add(batch[:, 2]).item() == 9
    with pytest.raises(ShapeError, match="dim_extend=1"):
        buffer.extend(batch[0])
    same = TensorDictReplayBuffer(storage=LazyTensorStorage(27, ndim=2), dim_extend=1)
    assert torch.equal(same[same.extend(batch)]["step"], batch["step"].flatten())
    with pytest.raises(ArgumentError, match="dim_extend"):
        ReplayBuffer(dim_extend=-1)
    ranked = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, backend="torch", storage=LazyTensorStorage(20), dim_extend=1
    )
    ranked.extend(batch.set("td_error", (batch["step"] == 5).float()))
    assert (ranked.sample(20)["index"] == 5).all()
