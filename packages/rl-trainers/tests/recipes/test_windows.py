"""Windows of steps and returns-to-go of a data set, against loops."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.replay import ReplayBuffer, TensorStorage
from rl.trainers.datasets import Windows, check_entries, chunk_reader, returns_to_go

LENGTHS = (3, 1, 5, 2)


def rows(*, numbers=True, flags=True):
    """Episodes whose `x` counts all steps; the last one is cut off."""
    total = sum(LENGTHS)
    done = torch.zeros(total, 1, dtype=torch.bool)
    ends = torch.tensor(LENGTHS).cumsum(0) - 1
    if flags:
        done[ends[:-1]] = True
    after = TensorDict(done=done, reward=torch.arange(total).float().unsqueeze(-1) + 0.5, batch_size=[total])
    found = TensorDict(x=torch.arange(total).float().unsqueeze(-1), next=after, batch_size=[total])
    found["act"] = -found["x"]
    if numbers:
        found["episode"] = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    return ReplayBuffer(storage=TensorStorage(found))


def last_steps():
    found, first = [], 0
    for length in LENGTHS:
        found += [first + length - 1] * length
        first += length
    return found


@pytest.mark.parametrize(("numbers", "flags"), [(True, True), (False, True), (True, False)])
def test_windows_stay_in_an_episode(numbers, flags):
    torch.manual_seed(0)
    windows = Windows(rows(numbers=numbers, flags=flags), ["x"], 3, 4000)
    assert windows.last_step.tolist() == last_steps()
    batch = windows.sample(double=2 * torch.arange(11).unsqueeze(-1))
    assert batch.shape == (4000, 3)
    for window, mask, double in zip(batch["x"], batch["collector", "mask"], batch["double"], strict=True):
        start, last = int(window[0]), last_steps()[int(window[0])]
        assert window.flatten().tolist() == [min(start + k, last) for k in range(3)]
        assert mask.tolist() == [start + k <= last for k in range(3)]
        assert torch.equal(double, 2 * window)
    counts = torch.bincount(batch["x"][:, 0, 0].long(), minlength=11)
    assert (counts - 4000 / 11).abs().max() < 5 * (4000 / 11) ** 0.5  # each step is equally often the first one


def test_returns_to_go_are_sums():
    data = rows()
    reward = data[:]["next", "reward"].flatten().tolist()
    expected = [sum(reward[step : last + 1]) for step, last in enumerate(last_steps())]
    assert returns_to_go(data, torch.tensor(last_steps())).flatten().tolist() == expected


def test_a_chunk_has_the_following_actions_and_names_missing_entries():
    class Config:
        recipe, dataset, chunk_size, batch_size = "act", "mine:x", 3, 64

    batch = chunk_reader(Config, rows(), "x", "act", chunk_key="chunk")()
    assert batch["x"].shape == (64, 1)
    assert torch.equal(batch["chunk"][:, 0], -batch["x"])
    steps = batch["x"] + torch.arange(3)
    last = torch.tensor(last_steps())[batch["x"].flatten().long()].unsqueeze(-1)
    assert torch.equal(batch["action_is_pad"], steps > last)
    assert torch.equal(batch["chunk"].squeeze(-1), -steps.minimum(last))
    with pytest.raises(ContractError, match=r"act reads 'action', which mine:x lacks; it has 'x', .*'episode'"):
        check_entries("act", "mine:x", rows()[0], ["x", "action"])
