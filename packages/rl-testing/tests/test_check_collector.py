"""Each fault of a collector is named by check_collector."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import CheckError, NotExercisedWarning
from rl.testing import CountingEnv, check_collector


class Plain:
    """Collects random actions in a loop; keeps every promise."""

    def __init__(self, length=3, steps=4, total=5):
        self.env, self.steps, self.left = CountingEnv(length, (2,)), steps, total
        self.root, self.ids, self.free = None, torch.arange(2), 2

    def __iter__(self):
        while self.left:
            self.left -= 1
            yield self.batch([self.step() for _ in range(self.steps)])

    def batch(self, steps):
        out = torch.stack(steps, 1)
        out.names = [None, "time"]
        return out

    def step(self):
        self.root = self.env.reset() if self.root is None else self.root
        self.root["collector"] = TensorDict(traj_ids=self.ids.clone(), batch_size=[2])
        stepped, following = self.env.step_and_maybe_reset(self.root.update(self.env.full_action_spec.rand()))
        stepped = self.outcome(stepped, following)
        done = stepped["next", "done"].squeeze(-1)
        self.ids[done] = torch.arange(self.free, self.free + int(done.sum()))
        self.free += int(done.sum())
        self.root = following
        return stepped

    def outcome(self, stepped, following):
        return stepped

    def shutdown(self):
        pass

    def state_dict(self):
        state = {"left": self.left, "ids": self.ids.clone(), "free": self.free}
        return state | {"root": {key: self.root[key].clone() for key in ("observation", "done")}}

    def load_state_dict(self, state):
        self.left, self.ids, self.free = state["left"], state["ids"].clone(), state["free"]
        flags = {flag: state["root"]["done"].clone() for flag in ("done", "terminated", "truncated")}
        self.root = TensorDict(observation=state["root"]["observation"], **flags, batch_size=[2])


class TimeFirst(Plain):
    def batch(self, steps):
        return torch.stack(steps, 0)


class Shuffled(Plain):
    def batch(self, steps):
        return super().batch(steps[::-1])


class RestartsEachBatch(Plain):
    def batch(self, steps):
        self.root = None
        return super().batch(steps)


class LosesTheEnd(Plain):
    """Writes the first observation of the following episode under ``next``."""

    def outcome(self, stepped, following):
        after = stepped["next"].clone()
        return stepped.copy().set("next", after.set("done", torch.zeros_like(after["done"])))


class OneId(Plain):
    def outcome(self, stepped, following):
        stepped["collector", "traj_ids"] = torch.zeros(2, dtype=torch.int64)
        return stepped


class Reusing(Plain):
    def batch(self, steps):
        found = super().batch(steps)
        self.kept = found if not hasattr(self, "kept") else self.kept.update_(found)
        return self.kept


class ForgetsItsPlace(Plain):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.root = None


class OddState(Plain):
    def state_dict(self):
        return {"root": self.root}


class ShutsDownOnce(Plain):
    open = True

    def shutdown(self):
        assert self.open
        self.open = False


class Ends(Plain):
    def __init__(self):
        super().__init__(total=1)


class NoFlags(Plain):
    def batch(self, steps):
        return super().batch(steps).exclude(("next", "terminated"))


class Tuples(Plain):
    def batch(self, steps):
        return tuple(steps)


FAULTS = {
    TimeFirst: r"^the last dimension of a batch is named 'time', got None \(TimeFirst\)",
    Shuffled: "^within an episode, 'observation' is not what the step before wrote",
    RestartsEachBatch: "^within an episode, 'observation' is not what the step before wrote",
    LosesTheEnd: r"^\('next', 'done'\) is not the union of terminated and truncated",
    OneId: r"^\('collector', 'traj_ids'\) does not change exactly at episode ends",
    Reusing: "^reuses its buffer: .* of a batch was overwritten by a later one",
    ForgetsItsPlace: "^the state_dict is incomplete: after load_state_dict, other batches follow",
    OddState: "^state_dict holds a TensorDict",
    ShutsDownOnce: "^shutdown, called a second time, raised AssertionError",
    Ends: "^ended after 1 of 3 batches",
    NoFlags: r"^a batch has no \('next', 'terminated'\)",
    Tuples: "^a batch is a TensorDict, got tuple",
}


def test_a_collector_that_keeps_its_promises_passes():
    assert check_collector(Plain).not_exercised == []


@pytest.mark.parametrize(("kind", "message"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_reason_first(kind, message):
    with pytest.raises(CheckError, match=message):
        check_collector(kind)


def test_what_was_not_exercised_is_reported_in_one_sentence():
    with pytest.warns(NotExercisedWarning, match="^not exercised: episode ends: none in 3 batches"):
        check_collector(lambda: Plain(length=1000))


def test_something_else_is_no_collector():
    with pytest.raises(CheckError, match=r"^no rl.core.interfaces.Collector: lacks .*'state_dict'"):
        check_collector(lambda: iter(()))
