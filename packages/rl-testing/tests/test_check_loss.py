"""check_loss finds each of the faults that it is there for."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core.contract import Contract, Key
from rl.core.errors import CheckError, ContractError, NotExercisedWarning
from rl.testing import check_loss


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


class Double(Regression):
    def forward(self, td):
        out = super().forward(td)
        return out.set("error", out["error"].double())


class Broadcasting(Regression):
    """Its squared errors are those of all pairs."""

    def forward(self, td):
        observation, reward = self.contract.read(td, self)
        error = self.net(observation) - reward.squeeze(-1)
        return TensorDict(loss_value=error.square().mean(), error=error.detach().mean())


class BroadcastsInALoss(Regression):
    def forward(self, td):
        observation, reward = self.contract.read(td, self)
        loss = nn.functional.smooth_l1_loss(self.net(observation), reward.squeeze(-1))
        return TensorDict(loss_value=loss, error=loss.detach())


class ReadsMore(Regression):
    def forward(self, td):
        out = super().forward(td)
        return out.set("error", td["unrelated"].mean())


class ReadsMoreIfThere(Regression):
    def forward(self, td):
        out, weight = super().forward(td), td.get("unrelated", None)
        return out if weight is None else out.set("loss_value", out["loss_value"] + (weight + 1).sum())


class ReadsWhatIsNowhere(Regression):
    def forward(self, td):
        return super().forward(td).set("error", td["nowhere"].mean())


class Replacing(Regression):
    def forward(self, td):
        td["observation"] = 2 * td["observation"]
        return super().forward(td)


class RaisesKeyError(Regression):
    def forward(self, td):
        _ = td["observation"]
        return super().forward(td)


class WrongShape(Regression):
    contract = Contract((Key("observation", ("O",)), Key(("next", "reward"), ())), Regression.contract.writes)


class WrongType(Regression):
    contract = Contract((Key("observation", dtype=torch.uint8), Key(("next", "reward"))), Regression.contract.writes)


class WrongLetters(Regression):
    contract = Contract((Key("observation", ("O",)), Key(("next", "reward"), ("O",))), Regression.contract.writes)


class WrongScalar(Regression):
    contract = Contract(
        Regression.contract.reads, (Key("loss_value", (1,), batched=False), Key("error", (), batched=False))
    )


class NoLoss(Regression):
    contract = Contract(Regression.contract.reads, (Key("value"), Key("error")))

    def forward(self, td):
        return super().forward(td).rename_key_("loss_value", "value")


class Bootstrapped(nn.Module):
    """Regresses values on reward plus the target network's value of the next state."""

    contract = Contract(
        (Key("observation"), Key(("next", "observation")), Key(("next", "reward"))), (Key("loss_value"),)
    )

    def __init__(self):
        super().__init__()
        self.net, self.target_net = nn.Linear(3, 1), nn.Linear(3, 1)
        self.target_net.requires_grad_(requires_grad=False)

    def following(self, x):
        with torch.no_grad():
            return self.target_net(x)

    def forward(self, td):
        observation, after, reward = self.contract.read(td, self)
        return TensorDict(loss_value=(self.net(observation) - reward - self.following(after)).square().mean())


class TrainsItsTarget(Bootstrapped):
    def __init__(self):
        super().__init__()
        self.target_net.requires_grad_()

    def following(self, x):
        return self.target_net(x)


class DetachesItsTarget(TrainsItsTarget):
    """Its target network could be trained; no gradient reaches it."""

    def following(self, x):
        return self.target_net(x).detach()


class Undetached(Bootstrapped):
    def following(self, x):
        return self.net(x)


@pytest.fixture
def batch():
    torch.manual_seed(0)
    after = TensorDict(reward=torch.randn(4, 1), observation=torch.randn(4, 3), batch_size=[4])
    return TensorDict(observation=torch.randn(4, 3), next=after, unrelated=torch.zeros(4), batch_size=[4])


def test_a_loss_that_keeps_its_promises_passes(batch):
    assert set(check_loss(Regression(), batch, frozen=()).keys()) == {"loss_value", "error"}
    assert "td_error" not in batch
    check_loss(Bootstrapped(), batch, frozen=["target_net", ("next", "observation")])
    check_loss(DetachesItsTarget(), batch, frozen=["target_net"])


FAULTS = {
    Undeclared: r"^returned .*'more'.*, declared is \['loss_value', 'error'\] \(Undeclared\)",
    Incomplete: r"^returned \['loss_value'\], declared is",
    Meddling: "^changed the entry 'observation' of its input",
    Replacing: "^changed the entry 'observation' of its input",
    Littering: r"^wrote \['scratch'\] into its input",
    Unreduced: r"^'error' has shape \(4,\), expected a scalar",
    Infinite: "^'loss_value' is inf",
    Detached: "^'loss_value' has no gradient",
    Attached: "^'error', a diagnostic, has a gradient",
    Tolerant: "^did without 'observation'",
    Mumbling: r"^without \('next', 'reward'\), the error does not name it",
    RaisesKeyError: "^without 'observation', which it reads, it raises KeyError",
    Unreached: "^no gradient reaches idle",
    Sticky: "^a deep copy does not compute with its own parameters",
    Unpicklable: "^cannot be pickled",
    Double: "^'error' is float64, although nothing that is read is",
    Broadcasting: r"^sub broadcasts \[4\] with \[4, 1\] to \[4, 4\]",
    BroadcastsInALoss: r"^smooth_l1_loss broadcasts \[4\] with \[4, 1\] to \[4, 4\]",
    ReadsMore: r"^reads \['unrelated'\], which the contract does not declare \(ReadsMore\)",
    ReadsMoreIfThere: r"^reads \['unrelated'\], which the contract does not declare: the result depends on it",
    ReadsWhatIsNowhere: "^reads what neither the contract declares nor the batch holds: KeyError: .*nowhere",
    WrongShape: r"^\('next', 'reward'\) is declared \[\*B\], it is \[4, 1\] in a batch \[4\]",
    WrongType: "^'observation' is declared torch.uint8, it is torch.float32",
    WrongLetters: r"^\('next', 'reward'\) is declared \[\*B, O\], it is \[4, 1\] .* where {'O': 3}",
    WrongScalar: r"^'loss_value' is declared \[1\], it is \[\]",
    NoLoss: "^returns nothing whose name starts with 'loss'",
}


@pytest.mark.parametrize(("make", "text"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_reason_first(batch, make, text):
    with pytest.raises(CheckError, match=text):
        check_loss(make(), batch, frozen=())


@pytest.mark.parametrize(
    ("make", "frozen", "text"),
    [
        (TrainsItsTarget, ["target_net"], "^the gradient reaches 'target_net', which is frozen"),
        (Undetached, [("next", "observation")], r"^the gradient reaches \('next', 'observation'\), which is frozen"),
        (Bootstrapped, ["target"], "^frozen='target' is neither an attribute of the loss nor a key that it reads"),
    ],
)
def test_a_gradient_into_what_is_frozen_is_named(batch, make, frozen, text):
    loss = make()
    if make is Undetached:
        del loss.target_net
    with pytest.raises(CheckError, match=text):
        check_loss(loss, batch, frozen=frozen)


def test_what_was_not_exercised_is_reported_in_one_sentence(batch):
    with pytest.warns(NotExercisedWarning, match="^not exercised: gradients into target networks"):
        check_loss(Bootstrapped(), batch)
    with pytest.warns(NotExercisedWarning, match="^not exercised: broadcasts .*: the batch has one element"):
        check_loss(Regression(), batch[:1], frozen=())
    counted = batch.clone()
    counted["next", "reward"] = counted["next", "reward"].round().long()
    with pytest.warns(NotExercisedWarning, match="the gradient into .*'reward'.*: it holds no floating-point"):
        check_loss(Regression(), counted, frozen=[("next", "reward")])


def test_a_batch_that_lacks_what_is_read_is_refused(batch):
    with pytest.raises(AssertionError, match=r"the batch of this check must hold \['observation'\]"):
        check_loss(Regression(), batch.exclude("observation"))
