"""check_loss finds each of the faults that it is there for."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError
from rl.core.testing import check_loss


class Regression(nn.Module):
    """Keeps every promise."""

    contract = Contract((Key("observation"), Key(("next", "reward"))), (Key("loss_value"), Key("error")))

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def predict(self, x):
        return self.net(x)

    def forward(self, td):
        observation, reward = self.contract.read(td, self)
        error = self.predict(observation) - reward
        td["td_error"] = error.detach().abs().squeeze(-1)
        return TensorDict(loss_value=error.square().mean(), error=error.detach().mean())


class Undeclared(Regression):
    def forward(self, td):
        return super().forward(td).set("more", torch.zeros(()))


class Incomplete(Regression):
    def forward(self, td):
        return super().forward(td).exclude("error")


class Meddling(Regression):
    def forward(self, td):
        td["observation"].mul_(1.5)
        return super().forward(td)


class Littering(Regression):
    def forward(self, td):
        td["scratch"] = td["observation"]
        return super().forward(td)


class Unreduced(Regression):
    def forward(self, td):
        return super().forward(td).set("error", torch.zeros(4))


class Infinite(Regression):
    def forward(self, td):
        out = super().forward(td)
        return out.set("loss_value", out["loss_value"] / 0)


class Detached(Regression):
    def forward(self, td):
        return super().forward(td).detach()


class Attached(Regression):
    def forward(self, td):
        out = super().forward(td)
        return out.set("error", out["loss_value"])


class Tolerant(Regression):
    def forward(self, td):
        td = td.copy()
        if "observation" not in td.keys():
            td["observation"] = torch.zeros(4, 3)
        return super().forward(td)


class Mumbling(Regression):
    def forward(self, td):
        if ("next", "reward") not in td.keys(include_nested=True):
            raise ContractError("something is missing")
        return super().forward(td)


class Unreached(Regression):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(2, 2)


class Sticky(Regression):
    """Calls the network of the one that it was copied from."""

    def __init__(self):
        super().__init__()
        self.calls = [self.net]

    def predict(self, x):
        return self.calls[0](x)

    def __deepcopy__(self, memo):
        other = Sticky()
        other.load_state_dict(self.state_dict())
        other.calls = self.calls
        return other


class Unpicklable(Regression):
    def __init__(self):
        super().__init__()
        self.hook = lambda: None


@pytest.fixture
def batch():
    torch.manual_seed(0)
    after = TensorDict(reward=torch.randn(4, 1), batch_size=[4])
    return TensorDict(observation=torch.randn(4, 3), next=after, unrelated=torch.zeros(4), batch_size=[4])


def test_a_loss_that_keeps_its_promises_passes(batch):
    assert set(check_loss(Regression(), batch).keys()) == {"loss_value", "error"}
    assert "td_error" not in batch


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Undeclared, r"Undeclared declares \['loss_value', 'error'\] and returned .*'more'"),
        (Incomplete, "Incomplete declares"),
        (Meddling, "Meddling changed 'observation' of its input"),
        (Littering, r"Littering wrote \['scratch'\] into its input"),
        (Unreduced, r"returned 'error' of shape \(4,\); expected a scalar"),
        (Infinite, "returned 'loss_value' = inf"),
        (Detached, "returned 'loss_value' without a gradient"),
        (Attached, "returned 'error', a diagnostic, with a gradient"),
        (Tolerant, "did without 'observation', which it declares to read"),
        (Mumbling, r"without \('next', 'reward'\) the error of Mumbling does not name it"),
        (Unreached, "no gradient of Unreached reaches idle"),
        (Sticky, "a deep copy of Sticky does not compute with its own parameters"),
        (Unpicklable, "Unpicklable cannot be pickled"),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_a_fault_is_named(batch, make, text):
    with pytest.raises(AssertionError, match=text):
        check_loss(make(), batch)


def test_a_batch_that_lacks_what_is_read_is_refused(batch):
    with pytest.raises(AssertionError, match=r"the batch of this check must hold \['observation'\]"):
        check_loss(Regression(), batch.exclude("observation"))
