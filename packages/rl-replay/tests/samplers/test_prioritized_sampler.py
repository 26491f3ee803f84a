"""The prioritized sampler against a naive model, and its numbers by hand."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.core import backends as _backend
from rl.core import registry
from rl.core.errors import (
    ArgumentError,
    CheckpointError,
    ContractError,
    ShapeError,
)
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.core.settings import Settings
from rl.plugins import replay as plugin
from rl.replay import LazyTensorStorage, LinearScheduler, PrioritizedSampler, ReplayBuffer, StepScheduler, TensorStorage

# blocks of 32 rows, so that a hundred rows fill more than one
from rl.replay._priority_tree import PrefixTree
from rl.testing import ToyPriorityTree, check_sampler


class FusedTree(ToyPriorityTree):
    """The toy tree with the optional methods of the protocol."""

    name, why = "fused", "for tests"

    def _set(self, index, error, eps, alpha):
        if not error.isfinite().all():  # with alpha=0 no priority tells of it
            raise ValueError(f"errors {error} are not finite")
        self.update(index, (error.abs() + eps) ** alpha)

    def sample_weighted(self, n, beta, *, generator=None, stratified=False):
        index, priority = self.sample(n, generator=generator, stratified=stratified)
        return index, (priority / self.min()) ** -beta

    def update_from_errors(self, index, error, eps, alpha, *, raw=None, largest=None, rows=None):
        if (index >= (self.capacity if rows is None else rows)).any():
            raise IndexError(f"index {index.max()} is too large")
        self._set(index, error, eps, alpha)
        if raw is not None:
            for i, e in zip(index.tolist(), error, strict=True):
                raw[i] = e
        if largest is not None and len(error):
            largest.copy_(torch.maximum(largest, error.abs().max()))


class Trees:
    """A plugin that offers one tree before the others."""

    def __init__(self, tree):
        self.tree = tree

    @hookimpl
    def rl_priority_tree(self, capacity, device, dtype):
        return self.tree(capacity, device, dtype) if self.tree else None


TREES = {
    "one level": PrefixTree,
    "blocks": lambda *given: PrefixTree(*given, block=32),
    "toy": ToyPriorityTree,
    "fused": FusedTree,
}


def use(monkeypatch, tree, distribution="acme", native="auto"):
    """Let `auto` find `tree`; of the installed plugins only rl-replay's is there."""
    own = Registry()
    own.register(plugin, "replay", "rl-replay")
    own.register(Trees(tree), "trees", distribution)
    monkeypatch.setattr(registry, "default", lambda: own)
    monkeypatch.setattr(_backend, "_warned", set())
    monkeypatch.setattr(_backend, "settings", lambda: Settings(plugins_disable=(), native=native, debug=False))


@pytest.fixture(params=TREES.values(), ids=TREES)
def make(request, monkeypatch):
    use(monkeypatch, request.param)
    return PrioritizedSampler


def told(sampler, rows):
    sampler.extended(torch.arange(rows), None)
    return sampler


def rows(n):
    return TensorStorage(torch.arange(n))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_it_conforms(make):
    check_sampler(lambda: make(64, 0.6, 0.4))
    check_sampler(lambda: make(64, 1.0, 1.0, dtype=torch.float64, stratified=True))


class Model:
    """The same in the slowest way."""

    def __init__(self, capacity, alpha, eps, within):
        self.raw, self.rows, self.alpha, self.eps, self.within = [0.0] * capacity, 0, alpha, eps, within
        self.largest = 1.0

    def extended(self, index):
        value = self.largest
        if self.within:
            value = max((abs(self.raw[i]) for i in range(self.rows) if i not in index), default=0.0) or 1.0
        for i in index:
            self.raw[i] = value
            self.rows = max(self.rows, i + 1)

    def update(self, index, priority):
        for i, p in zip(index, priority, strict=True):
            self.raw[i] = p
            self.largest = max(self.largest, abs(p))

    def priorities(self):
        raw = torch.tensor(self.raw[: self.rows], dtype=torch.float64)
        return (raw.abs() + self.eps) ** self.alpha


@given(data=st.data(), capacity=st.integers(1, 30), within=st.booleans(), eps=st.sampled_from([0.0, 1e-2]))
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_any_sequence_of_calls_gives_the_probabilities_of_a_naive_model(tree, data, capacity, within, eps):
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(monkeypatch, tree)
        sampler = PrioritizedSampler(
            capacity, 0.6, 0.4, eps, dtype=torch.float64, max_priority_within_buffer=within, backend="auto"
        )
    model, cursor = Model(capacity, 0.6, eps, within), 0
    value = st.one_of(st.just(0.0), st.floats(-100, 100).filter(lambda x: abs(x) > 1e-3))
    for _ in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["extend", "update", "alpha", "resume"]))
        if what == "extend" or not model.rows:
            count = data.draw(st.integers(1, capacity))
            index = [(cursor + i) % capacity for i in range(count)]
            cursor = (cursor + count) % capacity
            sampler.extended(torch.tensor(index), None)
            model.extended(index)
        elif what == "update":
            pairs = data.draw(st.lists(st.tuples(st.integers(0, model.rows - 1), value), max_size=20))
            index, priority = [i for i, _ in pairs], [p for _, p in pairs]
            sampler.update_priority(torch.tensor(index, dtype=torch.int64), torch.tensor(priority, dtype=torch.float64))
            model.update(index, priority)
        elif what == "alpha":
            sampler.alpha = model.alpha = data.draw(st.sampled_from([0.0, 0.3, 1.0, 2.0]))
        else:
            state, random = sampler.state_dict(), copy.deepcopy(sampler)
            sampler.empty()
            sampler.load_state_dict(state)
            assert torch.equal(sampler._tree.get(torch.arange(capacity)), random._tree.get(torch.arange(capacity)))
        expected = model.priorities()
        got = sampler._tree.get(torch.arange(capacity))
        assert torch.allclose(got[: model.rows], expected, rtol=1e-9)
        assert not got[model.rows :].any()
        if not expected.any():
            with pytest.raises(ContractError, match="above zero"):
                sampler.sample(rows(model.rows), 1)
            continue
        index, info = sampler.sample(rows(model.rows), 20, generator=rng())
        assert (expected[index] > 0).all()
        weights = (expected[index] / expected[expected > 0].min()) ** -0.4
        assert torch.allclose(info["priority_weight"], weights, rtol=1e-9)


def test_weights_by_hand(make):
    sampler = told(make(4, 0.5, 1.0, eps=0.0), 4)
    sampler.update_priority(torch.arange(4), torch.tensor([1.0, -4.0, 16.0, 0.0]))
    index, info = sampler.sample(rows(4), 400, generator=rng())
    # p = 1, 2, 4, 0; P = p / 7; (N P)^-1 = 7/4, 7/8, 7/16, over the largest: 1, 1/2, 1/4
    assert set(zip(index.tolist(), info["priority_weight"].tolist(), strict=True)) == {(0, 1), (1, 0.5), (2, 0.25)}
    assert info["priority_weight"].dtype == torch.float32
    sampler.beta = 0.0
    assert (sampler.sample(rows(4), 50)[1]["priority_weight"] == 1).all()


def test_p_min_is_that_of_the_buffer_and_not_of_the_batch(make):
    sampler = told(make(1000, 1.0, 1.0, eps=0.0), 1000)
    sampler.update_priority(0, 1e-3)
    index, info = sampler.sample(rows(1000), 5, generator=rng())
    assert 0 not in index
    assert torch.allclose(info["priority_weight"], torch.full((5,), 1e-3))


@pytest.mark.parametrize("stratified", [False, True])
def test_draws_are_in_proportion(make, stratified):
    sampler = told(make(50, 0.7, 0.5, stratified=stratified), 50)
    raw = torch.rand(50, generator=rng()) + 0.05
    sampler.update_priority(torch.arange(50), raw)
    index, _ = sampler.sample(rows(50), 50_000, generator=rng(1))
    p = (raw.double() + 1e-8) ** 0.7
    expected = 50_000 * p / p.sum()
    statistic = float(((index.bincount(minlength=50) - expected) ** 2 / expected).sum())
    assert statistic < 94  # 49 degrees of freedom, once in ten thousand
    assert stratified == (statistic < 1)


def test_new_rows_get_the_largest_priority_ever_given(make):
    sampler = told(make(4, 1.0, 0.4, eps=0.0), 2)
    assert sampler._tree.get(torch.arange(4)).tolist() == [1, 1, 0, 0]
    sampler.update_priority([0, 1], [0.1, -5.0])
    sampler.update_priority(1, 0.2)
    sampler.extended(torch.tensor([2, 3, 0]), None)
    assert sampler._tree.get(torch.arange(4)).tolist() == pytest.approx([5, 0.2, 5, 5])


def test_new_rows_may_get_the_largest_of_the_buffer(make):
    sampler = told(make(4, 1.0, 0.4, eps=0.0, max_priority_within_buffer=True), 4)
    sampler.update_priority(torch.arange(4), torch.tensor([9.0, 0.5, 0.2, 0.1]))
    sampler.extended(torch.tensor([0]), None)
    assert sampler._tree.get(torch.arange(4)).tolist() == pytest.approx([0.5, 0.5, 0.2, 0.1])
    sampler.extended(torch.arange(4), None)
    assert sampler._tree.get(torch.arange(4)).tolist() == [1, 1, 1, 1]


def test_of_a_repeated_index_the_last_priority_counts_also_after_alpha_changes(make):
    sampler, generator = told(make(40, 1.0, 0.4, eps=0.0), 40), rng(3)
    index = torch.randint(0, 40, (20_000,), generator=generator)
    raw = torch.rand(20_000, generator=generator) + 1
    sampler.update_priority(index, raw)
    expected = torch.ones(40)
    for i, p in zip(index.tolist(), raw.tolist(), strict=True):
        expected[i] = p
    assert torch.equal(sampler._tree.get(torch.arange(40)), expected)
    sampler.alpha = 2.0
    assert torch.allclose(sampler._tree.get(torch.arange(40)), expected**2)


def test_alpha_zero_and_back(make):
    sampler = told(make(3, 0.6, 0.4, eps=0.0), 3)
    sampler.update_priority(torch.arange(3), torch.tensor([1.0, 2.0, 4.0]))
    before = sampler._tree.get(torch.arange(3))
    sampler.alpha = 0.0
    assert sampler._tree.get(torch.arange(3)).tolist() == [1, 1, 1]
    sampler.alpha = 0.6
    assert torch.equal(sampler._tree.get(torch.arange(3)), before)


def test_several_priorities_of_a_row_are_reduced():
    raw = torch.tensor([[[1.0], [-4.0], [2.0]], [[0.5], [0.5], [0.5]]])
    for reduction, first in {"max": 4.0, "min": 1.0, "mean": 7 / 3, "median": 2.0}.items():
        sampler = told(PrioritizedSampler(2, 1.0, 0.4, eps=0.0, reduction=reduction, backend="torch"), 2)
        sampler.update_priority(torch.arange(2), raw)
        assert sampler._tree.get(torch.arange(2)).tolist() == pytest.approx([first, 0.5])


def test_gradients_and_other_dtypes_are_taken(make):
    sampler = told(make(3, 1.0, 0.4, eps=0.0), 3)
    sampler.update_priorities(
        torch.tensor([0, 1], dtype=torch.int32), torch.ones(2, dtype=torch.float64).requires_grad_()
    )
    sampler.update_priority(torch.tensor([]).long(), torch.tensor([]))
    sampler.update_priority([], [])
    sampler.update_priority(2, 3)
    assert sampler._tree.get(torch.arange(3)).tolist() == [1, 1, 3]


BAD = {
    "negative index": ([0, -1], [9.0, 9.0], IndexError, "-1"),
    "row that is not stored": ([0, 3], [9.0, 9.0], IndexError, "3 rows that are stored"),
    "nan": ([0, 1], [9.0, float("nan")], ArgumentError, "nan at position 1"),
    "infinite": ([0, 1], [9.0, float("inf")], ArgumentError, "inf at position 1"),
    "too large": ([0, 1], [9.0, 1e30], ArgumentError, "alpha=2"),
    "too few": ([0, 1, 2], [9.0, 9.0], ShapeError, "3 indices"),
    "one for several": ([0, 1, 2], [9.0], ShapeError, "3 indices"),
    "float index": ([0.0], [9.0], ArgumentError, "float32"),
    "mask": ([True, False, True], [9.0, 9.0, 9.0], ArgumentError, "bool"),
    "complex": ([0], torch.ones(1, dtype=torch.complex64), ArgumentError, "complex64"),
    "nothing for a row": ([0], torch.zeros(1, 0), ShapeError, "nothing"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_what_is_refused_writes_nothing(make, case):
    index, priority, error, word = case
    sampler = told(make(5, 2.0, 0.4), 3)
    before = sampler.state_dict()
    with pytest.raises(error, match=word):
        sampler.update_priority(torch.tensor(index), torch.as_tensor(priority))
    for name, value in sampler.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(before[name])) if name != "reduction" else True


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_with_alpha_zero_a_priority_is_a_finite_number_still(make, bad):
    """Its power would be 1, and the largest priority NaN from then on."""
    sampler = told(make(5, 0.0, 0.4), 3)
    with pytest.raises(ArgumentError, match=f"{bad} at position 1"):
        sampler.update_priority(torch.tensor([0, 1]), torch.tensor([9.0, bad]))
    sampler.alpha = 0.5
    assert sampler.state_dict()["raw"].tolist() == [1, 1, 1]
    sampler.extended(torch.tensor([3]), None)
    assert sampler.state_dict()["raw"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("index", "priority", "word"),
    [
        (None, 1.0, "an index is an integer.* None"),
        ("a", 1.0, "an index is an integer.* 'a'"),
        (0, None, "a priority is a number.* None"),
        ([0], ["a"], r"a priority is a number.* \['a'\]"),
        (0, 1j, "a priority is a real number"),
    ],
)
def test_what_is_no_tensor_is_named(index, priority, word):
    sampler = told(PrioritizedSampler(5, 1.0, 0.4, backend="torch"), 3)
    with pytest.raises(ArgumentError, match=f"PrioritizedSampler: {word}"):
        sampler.update_priority(index, priority)


def test_indices_of_several_dimensions_take_priorities_of_these(make):
    sampler = told(make(5, 1.0, 0.4, eps=0.0), 5)
    index = torch.tensor([[0, 1], [2, 3]])
    sampler.update_priority(index, torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert sampler._tree.get(torch.arange(5)).tolist() == [5, 6, 7, 8, 1]
    sampler.update_priority(index, torch.ones(2, 2, 3))
    sampler.update_priority(index[:1], torch.tensor([3.0, 4.0]))
    assert sampler._tree.get(torch.arange(5)).tolist() == [3, 4, 1, 1, 1]
    with pytest.raises(ShapeError, match="4 indices"):
        sampler.update_priority(index, torch.ones(2, 3))


def test_a_full_sampler_refuses_an_index_behind_its_end(make):
    sampler = told(make(3, 1.0, 0.4), 3)
    with pytest.raises(IndexError, match="3"):
        sampler.update_priority(torch.tensor([0, 3]), torch.ones(2))


def test_alpha_that_makes_a_priority_infinite_is_refused(make):
    sampler = told(make(2, 1.0, 0.4), 2)
    sampler.update_priority(0, 1e30)
    before = sampler._tree.get(torch.arange(2))
    with pytest.raises(ArgumentError, match="alpha=2"):
        sampler.alpha = 2.0
    assert sampler.alpha == 1.0
    assert torch.equal(before, sampler._tree.get(torch.arange(2)))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"max_capacity": 0}, "max_capacity"),
        ({"alpha": -0.1}, "alpha"),
        ({"beta": float("nan")}, "beta"),
        ({"eps": -1.0}, "eps"),
        ({"eps": "x"}, "eps must be at least 0.* 'x'"),
        ({"alpha": "a"}, "alpha must be at least 0.* 'a'"),
        ({"alpha": None}, "alpha must be at least 0.* None"),
        ({"beta": "0.4"}, "beta must be at least 0.* '0.4'"),
        ({"device": "nowhere"}, "device must be.* 'nowhere'"),
        ({"reduction": "sum"}, "median"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_bad_arguments(arguments, word):
    with pytest.raises(ArgumentError, match=word):
        PrioritizedSampler(**{"max_capacity": 4, "alpha": 0.6, "beta": 0.4, **arguments}, backend="torch")
    sampler = PrioritizedSampler(4, 0.6, 0.4, backend="torch")
    for name in ("alpha", "beta"):
        for value in (-1, "x", None):
            with pytest.raises(ArgumentError, match=name):
                setattr(sampler, name, value)
    with pytest.raises(ArgumentError, match=r"alpha=1000.0 and eps=1.0.* new rows"):
        PrioritizedSampler(4, 1000, 0.4, eps=1.0, backend="torch")
    with pytest.raises(ArgumentError, match="float16"):
        PrioritizedSampler(4, 0.6, 0.4, dtype=torch.float16)


def test_a_dataset_that_the_sampler_was_not_told_of_is_drawn_from(make):
    sampler = make(10, 0.6, 0.4)
    index, info = sampler.sample(rows(7), 200, generator=rng())
    assert set(index.tolist()) == set(range(7))
    assert (info["priority_weight"] == 1).all()


def test_storages_that_do_not_fit_are_refused(make):
    with pytest.raises(ContractError, match="max_capacity=3"):
        make(3, 0.6, 0.4).sample(rows(4), 1)
    with pytest.raises(ContractError, match="storage has 2"):
        told(make(3, 0.6, 0.4), 3).sample(rows(2), 1)
    with pytest.raises(ArgumentError, match="max_size=4"):
        ReplayBuffer(storage=LazyTensorStorage(4), sampler=make(3, 0.6, 0.4))


def test_states_of_others_are_refused_and_change_nothing(make):
    sampler = told(make(3, 0.6, 0.4), 3)
    good = told(make(3, 0.9, 0.1), 2).state_dict()
    bad = [
        {},
        {**good, "eps": 0.5},
        {**good, "reduction": "mean"},
        {**good, "raw": torch.ones(4), "priority": torch.ones(4)},
        {**good, "raw": torch.ones(2).double()},
        {**good, "priority": torch.tensor([1.0, float("nan")])},
        {**good, "raw": torch.tensor([1.0, float("nan")])},
    ]
    for state in bad:
        with pytest.raises(CheckpointError):
            sampler.load_state_dict(state)
        assert sampler.alpha == 0.6
        assert sampler._tree.total().item() == pytest.approx(3)
    sampler.load_state_dict(good)
    assert (sampler.alpha, sampler.beta) == (0.9, 0.1)
    assert sampler._tree.total().item() == pytest.approx(2)


def test_beta_may_be_annealed():
    sampler = PrioritizedSampler(4, 0.6, 0.4, backend="torch")
    beta = LinearScheduler(sampler, "beta", 1.0, 3)
    seen = []
    for step in range(4):
        beta.step()
        seen.append(sampler.beta)
        if step == 0:
            again = LinearScheduler(SimpleNamespace(beta=0.0), "beta", 1.0, 3)
            again.load_state_dict(beta.state_dict())
            again.step()
            assert again.obj.beta == pytest.approx(0.8)
    assert seen == pytest.approx([0.6, 0.8, 1.0, 1.0])
    with pytest.raises(ArgumentError, match="no 'gamma'"):
        LinearScheduler(sampler, "gamma", 1.0, 3)
    for steps in (0, 2.5, "3"):
        with pytest.raises(ArgumentError, match="num_steps"):
            LinearScheduler(sampler, "beta", 1.0, steps)
    with pytest.raises(ArgumentError, match="final_value must be a finite number, got 'x'"):
        LinearScheduler(sampler, "beta", "x", 3)


def test_beta_may_change_at_intervals():
    def seen(count=4, **settings):
        sampler = PrioritizedSampler(4, 0.6, 0.4, backend="torch")
        schedule, found = StepScheduler(sampler, "beta", **settings), []
        for _ in range(count):
            schedule.step()
            found.append(sampler.beta)
        return schedule, found

    schedule, found = seen(gamma=2.0, n_steps=2)
    assert found == pytest.approx([0.4, 0.8, 0.8, 1.6])
    assert seen(gamma=0.1, mode="additive", max_value=0.65)[1] == pytest.approx([0.5, 0.6, 0.65, 0.65])
    assert seen(gamma=0.5, min_value=0.15)[1] == pytest.approx([0.2, 0.15, 0.15, 0.15])
    whole = StepScheduler(SimpleNamespace(batch=8), "batch", gamma=2, n_steps=2, max_value=16)
    for expected, kind in ((8, int), (16, float), (16, float)):
        whole.step()
        assert whole.obj.batch == expected
        assert type(whole.obj.batch) is kind  # nothing is written where nothing changes
    again = StepScheduler(SimpleNamespace(beta=1.0), "beta", gamma=2.0, n_steps=3)
    again.load_state_dict(seen(count=2)[0].state_dict())
    again.step()
    assert again.obj.beta == 2.0
    for name, value in (("n_steps", 0), ("mode", "linear"), ("gamma", "x")):
        with pytest.raises(ArgumentError, match=f"StepScheduler: {name} must be"):
            seen(**{name: value})
    with pytest.raises(ArgumentError, match="no 'delta'"):
        StepScheduler(schedule.obj, "delta")


# ---------------------------------------------------------------------- compiled, copied


def test_a_compilable_sampler_works_inside_of_a_compiled_function():
    sampler = PrioritizedSampler(max_capacity=100, alpha=0.6, beta=0.4, compilable=True, backend="torch")
    told(sampler, 50)
    storage = rows(50)

    @torch.compile(backend="eager")
    def step(x):
        index, info = sampler.sample(storage, 8)
        return (x[index] * info["priority_weight"]).sum()

    assert step(torch.ones(50)).item() == 8


@pytest.mark.parametrize("compilable", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_pickled_and_copied_samplers_go_on_alike(make, duplicate, compilable):
    sampler = told(make(30, 0.6, 0.4, compilable=compilable), 30)
    sampler.update_priority(torch.arange(30), torch.rand(30, generator=rng()))
    other = duplicate(sampler)
    one, two = (part.sample(rows(30), 50, generator=rng(1))[0] for part in (sampler, other))
    assert torch.equal(one, two)
    other.update_priority(torch.arange(30), torch.eye(30)[3])
    assert set(sampler.sample(rows(30), 50)[0].tolist()) != {3}
    other.update_priority(3, 1e12)
    assert set(other.sample(rows(30), 50)[0].tolist()) == {3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("raw", None),
        ("priority", [1.0] * 5),
        ("largest", 3.0),
        ("largest", torch.ones(2)),
        ("largest", torch.tensor(-1.0)),
        ("alpha", -1.0),
        ("beta", "much"),
        ("state", None),
    ],
)
def test_a_state_of_other_things_is_refused_and_changes_nothing(name, value):
    sampler = PrioritizedSampler(10, 0.6, 0.4, backend="torch")
    sampler.extended(torch.arange(5), None)
    before = sampler.state_dict()
    state = None if name == "state" else {**sampler.state_dict(), name: value}
    with pytest.raises(CheckpointError, match=rf"PrioritizedSampler.*{name}"):
        sampler.load_state_dict(state)
    after = sampler.state_dict()
    for key, kept in before.items():
        assert torch.equal(after[key], kept) if isinstance(kept, torch.Tensor) else after[key] == kept
