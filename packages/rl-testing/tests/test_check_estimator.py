"""Each fault of a value estimator is named by check_estimator."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.contract import Contract, Key
from rl.core.errors import CheckError, NotExercisedWarning
from rl.testing import check_estimator


class Return:
    """Discounted rewards to the end of the episode, plus the given value where it is cut."""

    contract = Contract(
        (
            Key(("next", "reward"), (1,)),
            Key(("next", "done"), (1,)),
            Key(("next", "terminated"), (1,)),
            Key(("next", "state_value"), (1,)),
        ),
        (Key("value_target", (1,)),),
    )

    def __call__(self, td):
        reward, done, terminated, value = self.contract.read(td, self)
        return td.set("value_target", self.compute(reward, done, terminated, value))

    def compute(self, reward, done, terminated, value):
        following, rows = value[:, -1], []
        for t in reversed(range(reward.shape[1])):
            following = torch.where(done[:, t], self.after(value[:, t], terminated[:, t]), following)
            following = reward[:, t] + 0.9 * following
            rows.append(following)
        return torch.stack(rows[::-1], 1)

    def after(self, value, terminated):
        return torch.where(terminated, 0.0, value)


class LooksBeyond(Return):
    def compute(self, reward, done, terminated, value):
        return super().compute(reward, torch.zeros_like(done), terminated, value)


class BootstrapsTheEnd(Return):
    def after(self, value, terminated):
        return value


class NeverBootstraps(Return):
    def after(self, value, terminated):
        return torch.zeros_like(value)


class Mixes(Return):
    def compute(self, reward, done, terminated, value):
        return super().compute(reward - reward.mean(), done, terminated, value)


class Double(Return):
    def compute(self, *entries):
        return super().compute(*entries).double()


class NotFinite(Return):
    def compute(self, *entries):
        return super().compute(*entries) / 0


class Flat(Return):
    def compute(self, *entries):
        return super().compute(*entries).squeeze(-1)


FAULTS = {
    LooksBeyond: r"^what follows the end of an episode has an influence .* \(LooksBeyond\)",
    BootstrapsTheEnd: "^a terminated step is bootstrapped",
    NeverBootstraps: "^a truncated step is not bootstrapped",
    Mixes: "^the results of a row depend on another row",
    Double: "^'value_target' is torch.float64, the reward is torch.float32",
    NotFinite: "^'value_target' is not finite",
    Flat: r"^'value_target' is declared \[\*B, 1\], it is \[2, 6\]",
}


def batch():
    torch.manual_seed(0)
    terminated, truncated = torch.zeros(2, 6, 1, dtype=torch.bool), torch.zeros(2, 6, 1, dtype=torch.bool)
    terminated[0, 2] = truncated[1, 3] = True
    after = TensorDict(
        reward=torch.randn(2, 6, 1),
        state_value=torch.randn(2, 6, 1),
        terminated=terminated,
        truncated=truncated,
        done=terminated | truncated,
        batch_size=[2, 6],
    )
    return TensorDict(next=after, batch_size=[2, 6])


def test_an_estimator_that_keeps_its_promises_passes():
    assert check_estimator(Return(), batch()).not_exercised == []


@pytest.mark.parametrize(("kind", "message"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_reason_first(kind, message):
    with pytest.raises(CheckError, match=message):
        check_estimator(kind(), batch())


def test_what_the_batch_does_not_hold_is_reported_in_one_sentence_each():
    plain = batch()[:1]
    for flag in ("done", "terminated", "truncated"):
        plain["next", flag] = torch.zeros_like(plain["next", flag])
    with pytest.warns(NotExercisedWarning, match="^not exercised: "):
        report = check_estimator(Return(), plain)
    assert [sentence.split(":")[0] for sentence in report.not_exercised] == [
        "independence of the rows of a batch",
        "ends of episodes",
        "bootstraps after a terminated step",
        "bootstraps after a truncated step",
    ]
