"""Each fault of a transform is named by check_transform."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.contract import Contract, Key
from rl.core.errors import CheckError, NotExercisedWarning
from rl.testing import CountingEnv, check_transform


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


class Negate:
    """A transform of single entries with an inverse and a memory that changes nothing."""

    in_keys = out_keys = in_keys_inv = out_keys_inv = ("x",)

    def __init__(self, key="x"):
        self.key, self.memory = key, 0

    def __call__(self, td):
        self.memory += 1
        return td.set(self.key, -td[self.key])

    def inv(self, td):
        return td.copy().set(self.key, -td[self.key])

    def clone(self):
        other = type(self)(self.key)
        other.memory = self.memory
        return other

    def state_dict(self):
        return {"memory": self.memory}

    def load_state_dict(self, state):
        self.memory = state["memory"]


class WrongInverse(Negate):
    def inv(self, td):
        return td.copy()


class InverseInPlace(Negate):
    def inv(self, td):
        return td.set("x", td["x"].neg_())


class LosesInverse(Negate):
    def inv(self, td):
        return td.exclude("x")


class FirstDimension(Negate):
    def __call__(self, td):
        return td.set("x", td["x"].cumsum(0))

    def inv(self, td):
        return td.copy().set("x", td["x"].diff(dim=0, prepend=torch.zeros(1)))


class Branches(Negate):
    def __call__(self, td):
        return td.set("x", -td["x"] if td["x"].sum() > -1 else td["x"])


class Counting(Negate):
    """Adds the number of calls, on purpose."""

    in_keys_inv = out_keys_inv = ()

    def __call__(self, td):
        self.memory += 1
        return td.set("x", td["x"] + self.memory)


class CannotBePickled(Negate):
    def __init__(self, key="x"):
        super().__init__(key)
        self.function = lambda: None


class PickleForgets(Negate):
    def __init__(self, key="x"):
        super().__init__(key)
        self.sign = -1

    def __getstate__(self):
        return {"key": self.key, "memory": self.memory, "sign": 1}

    def __call__(self, td):
        return td.set("x", self.sign * td["x"])

    def __deepcopy__(self, memo):
        return self.clone()


class StateLacksMemory(Counting):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class CloneHalves(Negate):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def __call__(self, td):
        return td.set("x", self.factor * td["x"])

    def inv(self, td):
        return td.copy().set("x", td["x"] / self.factor)

    def clone(self):
        return type(self)(self.factor / 2)


class DeepcopyHalves(CloneHalves):
    def clone(self):
        return type(self)(self.factor)

    def __deepcopy__(self, memo):
        return type(self)(self.factor / 2)


class OnCPU(Negate):
    def __call__(self, td):
        return td.set("x", -td["x"].cpu())


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


def ones():
    return TensorDict(x=torch.ones(3), y=torch.zeros(3), batch_size=[3])


def batch():
    return TensorDict(x=torch.zeros(3), y=torch.ones(3), batch_size=[3])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (in_place, r"^changed 'x' of its input in place.*\(in_place\)"),
        (lambda td: None, "^must return a TensorDict, got NoneType"),
        (lambda td: td[:2], r"^batch size \(2,\) was returned"),
        (random, "^the same input yields two results: the transform is random or keeps a state"),
        (Stateful(), "^the same input yields two results"),
        (Replacing(), "^changed the entry 'y' of its input, which the contract does not declare"),
        (Named(), "^changed the entry 'y' of its input"),
        (ReadsMore(), r"^reads \['y'\], which the contract does not declare"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__).strip("<>"),
)
def test_a_fault_is_named_reason_first(transform, message):
    with pytest.raises(CheckError, match=message):
        check_transform(transform, batch())


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (WrongInverse(), "^the inverse of the result must be the input again, and 'x' differs"),
        (LosesInverse(), "^the inverse of the result must be the input again, and 'x' differs"),
        (InverseInPlace(), "^changed 'x' of the input of inv in place|^changed 'x' of its input in place"),
        (FirstDimension(), r"^a batch \[1, 3\] returns another result than the same batch \[3\]: 'x' differs"),
        (Branches(), r"^torch.compile\(fullgraph=True\) .*pass `compiles=False`\) raised"),
        (CloneHalves(), "^its clone returns another result: 'x' differs"),
        (DeepcopyHalves(), "^its deepcopy returns another result: 'x' differs"),
        (CannotBePickled(), "^pickle .*pass `picklable=False`.* raised"),
        (PickleForgets(), "^its pickle returns another result: 'x' differs"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_of_an_inverse_a_copy_or_compiled_code_is_named(transform, message):
    with pytest.raises(CheckError, match=message):
        check_transform(transform, ones())


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (StateLacksMemory(), "^a new one with its state_dict returns another result: 'x' differs"),
        (Holds := type("Holds", (Counting,), {"state_dict": lambda self: {"x": self}})(), "^state_dict holds a Holds"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_of_a_state_is_named(transform, message):
    with pytest.raises(CheckError, match=message):
        check_transform(transform, ones(), repeatable=False, picklable=False)


def test_a_transform_with_all_of_it_passes():
    check_transform(Negate(), ones(), nested=Negate(("nested", "x")))
    check_transform(Counting(), ones(), repeatable=False)
    check_transform(CannotBePickled(), ones(), picklable=False)
    check_transform(Branches(), ones(), compiles=False)


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        (Negate("x"), "^the transform with nested keys raised KeyError"),
        (Negate(("nested", "y")), r"^nested keys return another result: \('nested', '[xy]'\) differs"),
    ],
    ids=["at the root", "another key"],
)
def test_a_fault_of_nested_keys_is_named(nested, message):
    with pytest.raises(CheckError, match=message):
        check_transform(Negate(), ones(), nested=nested)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_result_on_another_device_is_named():
    with pytest.raises(CheckError, match=r"^'x' is on the CPU for a batch on a CUDA device"):
        check_transform(OnCPU(), ones())


def test_what_is_random_or_stateful_on_purpose_passes_by_name():
    check_transform(random, ones(), repeatable=False)
    check_transform(Stateful(), ones(), repeatable=False)


def test_a_replaced_entry_is_reported_where_nothing_is_declared():
    with pytest.warns(NotExercisedWarning, match=r"whether \['x'\] may be replaced"):
        check_transform(lambda td: td.set("x", td["x"] + 1), ones())
    assert not check_transform(Declared(), ones()).not_exercised


def test_a_transform_needs_something_to_run_on():
    with pytest.raises(CheckError, match="needs a batch"):
        check_transform(lambda td: td)


class Around(CountingEnv):
    """Applies a transform to what the environment writes; its specs stay."""

    def __init__(self, transform):
        super().__init__(batch_size=(2,))
        self.transform = transform

    def reset(self, tensordict=None):
        return self.transform(super().reset(tensordict))

    def step(self, tensordict):
        stepped = super().step(tensordict)
        return stepped.set("next", self.transform(stepped["next"]))


class Same:
    def __call__(self, td):
        return td


class WrongDtype(Same):
    def __call__(self, td):
        return td.set("observation", td["observation"].double())


class Adds(Same):
    def __call__(self, td):
        return td.set("observation", td["observation"] + 1)


class Total(Same):
    """Adds all observations so far, over episodes."""

    def __init__(self):
        self.total = 0.0

    def __call__(self, td):
        self.total = self.total + td["observation"]
        return td.set("observation", self.total)


class Clamping(Same):
    """Clamps at a number that a clone keeps and a pickle loses."""

    def __init__(self, number=3.0):
        self.number = number

    def __call__(self, td):
        return td.set("observation", td["observation"].clamp(max=self.number))

    def clone(self):
        return Clamping(self.number)

    def __reduce__(self):
        return Clamping, (0.0,)

    def __deepcopy__(self, memo):
        return self.clone()


@pytest.mark.filterwarnings("ignore::rl.core.errors.NotExercisedWarning")
@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (WrongDtype(), "^'observation': expected float32 .*, got float64"),
        (Adds(), "^partial reset: the reset of marked elements after step 2 changed 'observation' of others"),
        (Total(), "^last observation of an episode: .* the last one is lost"),
        (Clamping(), "^its pickle returns another result: .*observation"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_within_an_environment_is_named(transform, message):
    with pytest.raises(CheckError, match=message):
        check_transform(transform, wrap=Around)


@pytest.mark.filterwarnings("ignore::rl.core.errors.NotExercisedWarning")
def test_a_transform_within_an_environment():
    check_transform(lambda td: td, wrap=Around)
    check_transform(Same(), wrap=Around)


class OfBatches:
    """Scales the reward of a batch; in an environment it does nothing."""

    def __call__(self, td):
        reward = td.get(("next", "reward"), None)
        return td if reward is None else td.set(("next", "reward"), 0.001 * reward)


class OfBatchesOnly(OfBatches):
    def __call__(self, td):
        return td.set(("next", "reward"), 0.001 * td["next", "reward"])


class ForBuffers(OfBatches):
    def inv(self, td):
        return td


BATCH = TensorDict(x=torch.ones(3), next=TensorDict(x=torch.ones(3), reward=torch.ones(3, 1)), batch_size=[3])


class Called(CountingEnv):
    """Calls a transform as environments do."""

    def __init__(self, transform):
        super().__init__(length=3, batch_size=(2,))
        self.transform = transform

    def step(self, tensordict):
        stepped = super().step(tensordict)
        return stepped.set("next", self.transform(stepped["next"]))


@pytest.mark.parametrize(
    ("transform", "reason"), [(OfBatches(), "has no effect"), (OfBatchesOnly(), "fails: KeyError")]
)
def test_a_transform_of_batches_is_none_of_environments(transform, reason):
    sentence = f"as environments do, it {reason}.*changes \\('next', 'reward'\\): read and write 'reward'"
    with pytest.raises(CheckError, match=sentence):
        check_transform(transform, BATCH, wrap=Called)
    with pytest.warns(NotExercisedWarning):
        report = check_transform(transform, BATCH)
    assert any("read and write 'reward', or use it in replay buffers only" in one for one in report.not_exercised)


def test_a_transform_of_buffers_need_not_run_in_an_environment():
    with pytest.warns(NotExercisedWarning):
        report = check_transform(ForBuffers(), BATCH)
    assert not any("environments" in one for one in report.not_exercised)
