"""Burn-in against a hand-written loop over single steps."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core import State, recurrent_mode, set_recurrent_mode
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.replay import BurnInTransform, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer


class Leaky(nn.Module):
    """``h' = tanh(w h + x)``; restarts from the stored state where is_init is true."""

    def __init__(self, key="h", out="y"):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.7))
        self.key, self.out = key, out
        self.states = (State(key, (2,)),)
        self.modes, self.grads = [], []

    def forward(self, td):
        self.modes.append(recurrent_mode())
        self.grads.append(torch.is_grad_enabled())
        x, stored, init = td["x"], td[self.key], td["is_init"]
        h, after = stored[..., 0, :], []
        for t in range(x.shape[-2]):
            h = torch.where(init[..., t, :], stored[..., t, :], h)
            h = torch.tanh(self.weight * h + x[..., t, :])
            after.append(h)
        td["next", self.key] = torch.stack(after, -2)
        td[self.out] = td["next", self.key] * 2
        return td


def rows(*batch, key="h"):
    torch.manual_seed(0)
    init = torch.zeros(*batch, 1, dtype=torch.bool)
    td = TensorDict({"x": torch.randn(*batch, 2), key: torch.randn(*batch, 2), "is_init": init}, batch_size=batch)
    return td.set("next", TensorDict({key: torch.randn(*batch, 2)}, batch_size=batch))


def warmed(module, slice_rows, burn_in):
    """The state behind the first steps of one slice, in a loop."""
    h = slice_rows["h"][0]
    for t in range(burn_in):
        h = torch.tanh(module.weight.detach() * h + slice_rows["x"][t])
    return h


@pytest.mark.parametrize("burn_in", [1, 3, 5])
def test_a_batch_of_rows(burn_in):
    module, data = Leaky(), rows(4, 6)
    before = data.clone()
    out = BurnInTransform(module, burn_in)(data)
    assert out.batch_size == (4, 6 - burn_in)
    for row in range(4):
        torch.testing.assert_close(out["h"][row, 0], warmed(module, data[row], burn_in))
    assert out["h"][:, 1:].equal(data["h"][:, burn_in + 1 :])
    assert out["x"].equal(data["x"][:, burn_in:])
    assert out["is_init"][:, 0].all()
    assert not out["is_init"][:, 1:].any()
    assert (data == before).all()
    assert data.keys() == before.keys()
    assert not out["h"].requires_grad
    assert module.modes == [True]
    assert module.grads == [False]
    assert recurrent_mode() is None


def test_the_whole_sequence_and_the_warmed_rest_end_alike():
    module, data = Leaky(), rows(3, 7)
    with set_recurrent_mode(True):
        whole = module(data.clone())
        rest = module(BurnInTransform(module, 4)(data))
    torch.testing.assert_close(rest["y"], whole["y"][:, 4:])
    rest["y"].sum().backward()
    assert module.weight.grad is not None


def test_slices_of_a_buffer():
    data = rows(40)
    data["is_init"][::8] = True
    data["next", "done"] = (torch.arange(40) % 8 == 7).unsqueeze(-1)
    module = Leaky()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40),
        sampler=SliceSampler(slice_len=6),
        batch_size=24,
        transform=BurnInTransform(module, 2),
    )
    buffer.extend(data)
    out = buffer.sample()
    assert out.batch_size == (16,)
    assert out["is_init"].flatten().tolist() == [True, False, False, False] * 4
    for piece in out.split(4):
        start = int(piece["index"][0]) - 2
        torch.testing.assert_close(piece["h"][0], warmed(module, data[start : start + 2], 2))
        assert piece["h"][1:].equal(data["h"][start + 3 : start + 6])
    assert (buffer[:] == data).all()


def test_slices_of_several_lengths():
    module, data = Leaky(), rows(9)
    data["is_init"][0] = data["is_init"][5] = True
    out = BurnInTransform([module], 3)(data)
    assert out["x"].equal(torch.cat([data["x"][3:5], data["x"][8:]]))
    assert out["is_init"].flatten().tolist() == [True, False, True]
    torch.testing.assert_close(out["h"][0], warmed(module, data[:3], 3))
    torch.testing.assert_close(out["h"][2], warmed(module, data[5:8], 3))


def test_an_episode_that_begins_behind_the_burn_in_keeps_its_state():
    data = rows(2, 5)
    data["is_init"][1, 3] = True
    out = BurnInTransform(Leaky(), 3)(data)
    assert out["h"][1, 0].equal(data["h"][1, 3])
    assert not out["h"][0, 0].equal(data["h"][0, 3])


def test_several_modules_and_keys():
    one, two = Leaky(("state", "a")), Leaky("b", "z")
    data = rows(2, 4, key="b").set(("state", "a"), torch.randn(2, 4, 2))
    both = BurnInTransform([one, two], 2)
    assert both.out_keys == [("state", "a"), "b"]
    only = BurnInTransform([one, two], 2, out_keys=[("next", "b")])
    assert both(data)["b"].equal(only(data)["b"])
    assert only(data)["state", "a"].equal(data["state", "a"][:, 2:])


def test_none_is_nothing():
    data = rows(2, 4)
    assert BurnInTransform(Leaky(), 0)(data) is data


def test_refusals():
    with pytest.raises(ArgumentError, match="Linear has no recurrent state"):
        BurnInTransform(nn.Linear(1, 1), 2)
    with pytest.raises(ContractError, match="has no state 'c', only 'h'"):
        BurnInTransform(Leaky(), 2, out_keys=["c"])
    with pytest.raises(ArgumentError, match=r"burn_in must be an integer, got 1\.5"):
        BurnInTransform(Leaky(), 1.5)
    burn = BurnInTransform(Leaky(), 4)
    with pytest.raises(ShapeError, match="a slice of 4 steps has none left after a burn-in of 4"):
        burn(rows(2, 4))
    with pytest.raises(
        ContractError, match=r"BurnInTransform reads 'h', which .* \(keys: x.*slices begin with this state"
    ):
        burn(rows(2, 6).exclude("h"))
    with pytest.raises(ContractError, match="'is_init' is true, and it is false at the first row"):
        burn(rows(9))
    with pytest.raises(ContractError, match="and it is absent"):
        burn(rows(9).exclude("is_init"))
    flat = rows(9)
    flat["is_init"][::3] = True
    with pytest.raises(ShapeError, match="a slice of 3 steps"):
        burn(flat)
    with pytest.raises(ShapeError, match="one step without batch dimensions"):
        burn(rows(9)[0])
    silent = Leaky()
    silent.forward = lambda td: td.exclude(("next", "h"))
    with pytest.raises(ContractError, match=r"no module wrote \('next', 'h'\)"):
        BurnInTransform(silent, 2)(rows(2, 6))
