"""Each fault of a transform is named by check_transform."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.contract import Contract, Key
from rl.core.errors import CheckError, NotExercisedWarning
from rl.core.testing import CountingEnv, check_transform


def in_place(td):
    td["x"].add_(1)
    return td


def random(td):
    return td.set("noisy", td["x"] + torch.rand(3))


class Stateful:
    count = 0

    def __call__(self, td):
        self.count += 1
        return td.set("count", torch.full((3,), self.count))


class Declared:
    contract = Contract((Key("x"),), (Key("twice"),))

    def __call__(self, td):
        return td.set("twice", 2 * td["x"])


class Replacing(Declared):
    def __call__(self, td):
        return super().__call__(td).set("y", td["x"])


class ReadsMore(Declared):
    def __call__(self, td):
        return td.set("twice", td["x"] + td["y"])


class Named:
    in_keys = out_keys = ("x",)

    def __call__(self, td):
        return td.set("x", td["x"] + 1).set("y", td["x"] + 1)


def batch():
    return TensorDict(x=torch.zeros(3), y=torch.ones(3), batch_size=[3])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (in_place, r"^changed 'x' of its input in place.*\(in_place\)"),
        (lambda td: None, "^must return a TensorDict, got NoneType"),
        (lambda td: td[:2], r"^batch size \(2,\) was returned"),
        (random, "^the same input gives two results: the transform is random or keeps a state"),
        (Stateful(), "^the same input gives two results"),
        (Replacing(), "^changed the entry 'y' of its input, which the contract does not declare"),
        (Named(), "^changed the entry 'y' of its input"),
        (ReadsMore(), r"^reads \['y'\], which the contract does not declare"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__).strip("<>"),
)
def test_a_fault_is_named_reason_first(transform, message):
    with pytest.raises(CheckError, match=message):
        check_transform(transform, batch())


def test_what_is_random_or_stateful_on_purpose_passes_by_name():
    check_transform(random, batch(), repeatable=False)
    check_transform(Stateful(), batch(), repeatable=False)


def test_a_replaced_entry_is_reported_where_nothing_is_declared():
    with pytest.warns(NotExercisedWarning, match=r"whether \['x'\] may be replaced"):
        check_transform(lambda td: td.set("x", td["x"] + 1), batch())
    assert not check_transform(Declared(), batch()).not_exercised


def test_a_transform_needs_something_to_run_on():
    with pytest.raises(CheckError, match="needs a batch"):
        check_transform(lambda td: td)


def test_a_transform_within_an_environment():
    class Around(CountingEnv):
        def __init__(self, transform):
            super().__init__()
            self.transform = transform

    check_transform(lambda td: td, wrap=Around)
