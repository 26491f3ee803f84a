"""`Composite` and `Stacked`: trees and stacks of specs."""

from __future__ import annotations

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, tensorclass

from rl.core.errors import SpecError
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    Stacked,
    Unbounded,
    group_sizes,
    make_composite_from_td,
    set_group_sizes,
)


@pytest.fixture
def spec():
    return Composite(
        {"observation": Unbounded(3), ("agents", "action"): Categorical(2, (4,))}, done=Binary(1, dtype=torch.bool)
    )


def test_print_is_as_documented():
    low = -torch.ones(3)
    assert repr(Composite(observation=Bounded(low, -low))) == (
        "Composite(\n"
        "    observation: BoundedContinuous(\n"
        "        shape=torch.Size([3]),\n"
        "        space=ContinuousBox(\n"
        "            low=Tensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, contiguous=True),\n"
        "            high=Tensor(shape=torch.Size([3]), device=cpu, dtype=torch.float32, contiguous=True)),\n"
        "        device=cpu,\n"
        "        dtype=torch.float32,\n"
        "        domain=continuous),\n"
        "    device=None,\n"
        "    shape=torch.Size([]),\n"
        "    data_cls=None)"
    )


def test_keys_are_listed_as_tensordict_lists_them(spec):
    value = spec.rand()
    for nested in (False, True):
        for leaves in (False, True):
            assert set(spec.keys(nested, leaves)) == set(value.keys(nested, leaves))
    assert list(spec) == ["observation", "agents", "done"]
    assert len(spec) == 3
    assert [leaf.dtype for leaf in spec.values(include_nested=True, leaves_only=True)] == [
        torch.float32,
        torch.int64,
        torch.bool,
    ]


def test_access_by_nested_key(spec):
    assert spec["agents", "action"] is spec["agents"]["action"]
    assert ("agents", "action") in spec
    assert ("agents", "reward") not in spec
    assert 3 not in spec
    assert spec.get(("agents", "reward"), None) is None
    spec["agents", "reward"] = Unbounded(1)
    assert ("agents", "reward") in spec.keys(include_nested=True)
    del spec["agents", "reward"]
    assert ("agents", "reward") not in spec
    assert spec.pop("done").shape == (1,)
    assert spec.pop("done", None) is None


@pytest.mark.parametrize(
    ("action", "text"),
    [
        pytest.param(lambda s: s["observatoin"], "'observatoin'.*did you mean 'observation'", id="missing"),
        pytest.param(lambda s: s.pop("reward"), "'reward'", id="pop"),
        pytest.param(lambda s: s.__delitem__(("agents", "reward")), r"\('agents', 'reward'\)", id="delete"),
        pytest.param(lambda s: s.set("x", 3), "'x' of Composite must be a spec, got int", id="type"),
        pytest.param(lambda s: s.set(("done", "x"), Unbounded()), r"'done' is a Binary, a leaf", id="below-a-leaf"),
        pytest.param(
            lambda s: s.expand(2).set("x", Unbounded(3)), r"'x' of Composite of shape \(2,\).*got \(3,\)", id="shape"
        ),
    ],
)
def test_mistakes_are_named(spec, action, text):
    with pytest.raises(SpecError, match=text):
        action(spec)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda s: s.set("x", Unbounded()), id="set"),
        pytest.param(lambda s: s.__setitem__(("agents", "x"), Unbounded(4)), id="nested"),
        pytest.param(lambda s: s.pop("done"), id="pop"),
        pytest.param(lambda s: s.__delitem__(("agents", "action")), id="delete-nested"),
        pytest.param(lambda s: s.update({"x": Unbounded()}), id="update"),
        pytest.param(lambda s: s["agents"].set("x", Unbounded()), id="below"),
    ],
)
def test_a_locked_composite_refuses_changes(spec, change):
    before = spec.clone()
    spec.lock_()
    assert spec.is_locked
    with pytest.raises(SpecError, match=r"locked"):
        change(spec)
    assert spec == before
    change(spec.clone())
    spec.unlock_()
    change(spec)
    assert spec != before


def test_a_missing_entry_is_also_a_key_error(spec):
    with pytest.raises(KeyError, match="no entry 'reward'"):
        spec["reward"]
    with pytest.raises(KeyError, match="not all specs of Stacked have an entry 'reward'"):
        torch.stack([spec, Composite(reward=Unbounded())])["reward"]


def test_none_is_left_out():
    spec = Composite({"a": Unbounded(2), ("b", "c"): None}, d=None, e={"f": None, "g": Unbounded()})
    assert spec.keys(include_nested=True, leaves_only=True) == ["a", ("e", "g")]
    spec["a"] = None
    spec.set(("e", "f"), None).update({"e": {"g": None}})
    assert spec.keys(include_nested=True) == ["e"]
    with pytest.raises(SpecError, match="locked"):
        spec.lock_().set("e", None)


def test_a_tuple_of_one_string_is_a_key_of_the_list(spec):
    assert ("done",) in spec.keys()
    assert ("agents", "action") in spec.keys(include_nested=True)
    assert ("agents", "action") not in spec.keys()
    assert 3 not in spec.keys()


def test_no_shape_is_the_empty_shape():
    spec = Composite(a=Unbounded(None), b=Categorical(3, None), shape=None)
    assert spec.shape == spec["a"].shape == spec["b"].shape == ()
    assert spec.rand(None).batch_size == spec.zero(None).batch_size == ()
    assert spec.locked is spec.is_locked is False


def test_update_merges_nested_composites(spec):
    spec.update(Composite(agents=Composite(reward=Unbounded(4)), observation=Unbounded(5)))
    assert set(spec["agents"].keys()) == {"action", "reward"}
    assert spec["observation"].shape == (5,)


def test_attributes_are_read_only(spec):
    with pytest.raises(AttributeError):
        spec.shape = (3,)


def test_values_are_tensordicts(spec):
    for value in (spec.rand((5,)), spec.zero((5,)), spec.one((5,))):
        assert isinstance(value, TensorDict)
        assert value.batch_size == (5,)
        assert value["agents", "action"].shape == (5, 4)
    assert not spec.zero().any()
    assert spec.expand(2).rand((5,)).batch_size == (5, 2)


def test_the_faulty_entry_is_named(spec):
    value = spec.rand()
    value["agents", "action"] = torch.full((4,), 9)
    with pytest.raises(SpecError, match=r"entry \('agents', 'action'\) of Composite expected classes .* 1, got \[9"):
        spec.assert_is_in(value)
    with pytest.raises(SpecError, match=r"entry 'done' of Composite expected an entry, got none"):
        spec.assert_is_in(spec.rand().exclude("done"))
    with pytest.raises(SpecError, match=r"batch size \(2,\), got batch size \(3,\)"):
        spec.expand(2).assert_is_in(spec.rand((3,)))
    with pytest.raises(SpecError, match=r"entry 'observation' .* shape \(2, 3\), got shape \(2, 1, 3\)"):
        spec.assert_is_in(spec.rand((2,)).set("observation", torch.zeros(2, 1, 3)))


def test_projection_repairs_each_entry_and_keeps_others(spec):
    value = spec.rand().set("agents", {"action": torch.full((4,), 9)}).set("extra", torch.ones(1))
    projected = spec.project(value)
    assert projected["agents", "action"].tolist() == [1, 1, 1, 1]
    assert projected["extra"].tolist() == [1]
    assert value["agents", "action"].tolist() == [9, 9, 9, 9]


def test_encoding_needs_exactly_the_keys():
    spec = Composite(a=Unbounded(1), b=NonTensor())
    value = spec.encode({"a": [1.0], "b": "text"})
    assert value["a"].tolist() == [1.0]
    assert value["b"] == "text"
    assert spec.to_numpy(value)["b"] == "text"
    for wrong in ({"a": [1.0]}, {"a": [1.0], "b": "", "c": 1}):
        with pytest.raises(SpecError, match=r"expected keys \['a', 'b'\]"):
            spec.encode(wrong)


def test_device_is_imposed_on_entries():
    spec = Composite(a=Unbounded(1), device="meta")
    assert spec["a"].device.type == "meta"
    assert Composite(a=Unbounded(1)).to("meta") == spec
    assert Composite(a=Unbounded(1)).rand().device is None
    assert Composite(a=Unbounded(1)).device is None


def test_forms_of_choices_entry_by_entry():
    spec = Composite(a=OneHot(3), b=Categorical(2))
    value = spec.rand()
    assert spec.to_categorical_spec().is_in(spec.to_categorical(value))
    assert spec.to_one_hot_spec().is_in(spec.to_one_hot(value))
    scores = TensorDict(a=torch.arange(3.0), b=torch.arange(2.0))
    assert spec.index(value, scores)["a"] == value["a"].int().argmax()
    spec.update_mask({"a": torch.tensor([False, False, True])})
    assert spec.rand()["a"].tolist() == [False, False, True]


def test_enumeration_is_the_product_of_the_entries():
    spec = Composite(a=Categorical(2), b=Categorical(3))
    rows = spec.enumerate()
    pairs = list(zip(rows["a"].tolist(), rows["b"].tolist(), strict=True))
    assert pairs == [(a, b) for a in range(2) for b in range(3)]


# ---------------------------------------------------------------------- stacks


def test_composites_that_differ_are_stacked_lazily():
    spec = torch.stack([Composite(x=Unbounded(2), y=Unbounded(1)), Composite(x=Unbounded(3))])
    assert isinstance(spec, Stacked)
    assert spec.shape == (2,)
    assert spec.keys() == ["x"]
    assert spec["x"].shape == (2, -1)
    value = spec.rand((4,))
    assert isinstance(value, LazyStackedTensorDict)
    assert value.batch_size == (4, 2)
    assert value[:, 1]["x"].shape == (4, 3)
    with pytest.raises(SpecError, match=r"'y' \(keys of all: \['x'\]\)"):
        spec["y"]
    assert spec[0] == Composite(x=Unbounded(2), y=Unbounded(1))


def test_equal_entries_of_stacked_composites_are_one_spec_again():
    spec = torch.stack([Composite(x=Unbounded(2), y=Unbounded(1)), Composite(x=Unbounded(2))])
    assert spec["x"] == Unbounded((2, 2))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_slices_of_a_stack_keep_their_order(dim):
    low = torch.arange(6.0).reshape(2, 3)
    one, two = Bounded(low, low + 1), Bounded(low + 10, low + 11)
    both = torch.stack([one, two], dim)
    lows = torch.stack([one.low, two.low], dim)
    assert list(both.unbind(dim)) == [one, two]
    for other in range(3):
        for part, expected in zip(both.unbind(other), lows.unbind(other), strict=True):
            flat = part.flatten()
            assert [flat[i].low.item() for i in range(flat.numel())] == expected.flatten().tolist()


def test_ragged_tensors_are_nested():
    value = Stacked(Unbounded(2), Unbounded(3)).rand()
    assert [part.shape for part in value.unbind()] == [(2,), (3,)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(Stacked, "at least one", id="nothing"),
        pytest.param(lambda: Stacked(Unbounded(2), Unbounded((2, 2))), r"\(2,\).*\(2, 2\)", id="dimensions"),
        pytest.param(lambda: Stacked(Unbounded(2), Categorical(2, (2,))), "float32.*int64", id="dtypes"),
        pytest.param(lambda: Stacked(NonTensor(), Composite()), "mix", id="mixed"),
        pytest.param(lambda: Stacked(Composite(shape=(2,)), Composite(shape=(3,))), "one shape", id="batch"),
        pytest.param(lambda: Stacked(OneHot(2), Unbounded(2, dtype=torch.bool), dim=1), "dimension 1", id="classes"),
        pytest.param(lambda: torch.stack([Unbounded(2), torch.zeros(2)]), "'Unbounded', 'Tensor'", id="a-tensor"),
        pytest.param(lambda: Stacked(Unbounded(2), Unbounded(3)).reshape(-1), "ragged", id="reshape"),
        pytest.param(lambda: Stacked(Unbounded(2), Unbounded(3)).unbind(1), "belongs to its values", id="unbind"),
        pytest.param(lambda: Stacked(Unbounded(2), Unbounded(3)).rand((2,)), "Composites", id="lead"),
        pytest.param(lambda: Stacked(Unbounded(2), Unbounded(3)).keys(), "no keys", id="keys"),
    ],
)
def test_impossible_stacks_are_refused(make, text):
    with pytest.raises(SpecError, match=text):
        make()


def test_the_faulty_slice_is_named():
    spec = Stacked(Bounded(0, 1, (2,)), Bounded(3, 4, (2,)))
    assert spec.is_in(torch.tensor([[0.0, 1.0], [3.0, 4.0]]))
    with pytest.raises(SpecError, match=r"entry '1' of Stacked expected values from \[3.0, 3.0\].* got \[0.0, 0.0\]"):
        spec.assert_is_in(torch.zeros(2, 2))
    with pytest.raises(SpecError, match=r"shape \(2, 2\).* got shape \(3, 2\)"):
        spec.assert_is_in(torch.zeros(3, 2))
    assert spec.project(torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [3.0, 3.0]]
    assert "dim=0" in repr(spec)


def test_discrete_stacks_list_the_product():
    spec = Stacked(Categorical(2), Categorical(3))
    assert spec.cardinality() == 6
    assert spec.enumerate().tolist() == [[a, b] for a in range(2) for b in range(3)]
    spec.update_mask([None, torch.tensor([False, True, False])])
    assert spec.enumerate().tolist() == [[0, 1], [1, 1]]


@tensorclass
class Seen:
    place: torch.Tensor
    word: str


def test_values_have_the_class_of_the_data():
    spec = Composite(place=Unbounded((2, 3)), word=NonTensor((2,), example_data="go"), shape=(2,), data_cls=Seen)
    for value in (spec.rand(), spec.zero(), spec.expand(4, 2).rand(), spec.rand((4,)), spec.clone().one()):
        assert type(value) is Seen
        assert value.place.shape == (*value.batch_size, 3)
    assert spec.is_in(spec.rand())
    with pytest.raises(SpecError, match="expected a Seen, got a TensorDict"):
        spec.assert_is_in(TensorDict(place=torch.zeros(2, 3), word=["go", "on"], batch_size=[2]))
    assert spec == spec.clone()
    assert spec != Composite(place=Unbounded((2, 3)), word=NonTensor((2,), example_data="go"), shape=(2,))
    assert type(Composite(inside=spec, shape=(2,)).rand()["inside"]) is Seen


def test_a_spec_is_made_from_data():
    group = TensorDict(action=torch.zeros(5, 3, dtype=torch.int64), batch_size=[5, 3])
    data = TensorDict(place=torch.zeros(5, 2), done=torch.zeros(5, dtype=torch.bool), batch_size=[5])
    data["agents"], data["word"] = group, NonTensorData("go", batch_size=[5])
    spec = make_composite_from_td(data)
    assert spec.shape == (5,)
    assert spec["agents"].shape == (5, 3)
    assert (spec["place"].shape, spec["done"].dtype) == ((5, 2), torch.bool)
    assert spec["agents", "action"] == Unbounded((5, 3), dtype=torch.int64)
    assert spec["word"].example_data == "go"
    assert spec.is_in(data)
    assert make_composite_from_td(TensorDict(reward=torch.zeros(())))["reward"].shape == (1,)
    assert make_composite_from_td(TensorDict(x=torch.zeros(())), unsqueeze_null_shapes=False)["x"].shape == ()
    assert make_composite_from_td(Seen(torch.zeros(2), "go", batch_size=[])).data_cls is Seen


@pytest.mark.parametrize("nested", [False, True])
def test_a_spec_is_made_of_a_lazy_stack(nested):
    data = torch.stack([TensorDict(x=torch.zeros(3), word="go"), TensorDict(x=torch.ones(3), word="on")]).to("cpu")
    lazy = LazyStackedTensorDict(*data.unbind(0), stack_dim=0)
    spec = make_composite_from_td(TensorDict(inside=lazy, batch_size=[2]) if nested else lazy)
    inside = spec["inside"] if nested else spec
    assert (inside.shape, inside["x"].shape) == ((2,), (2, 3))
    assert spec.is_in(spec.rand())
    assert inside.is_in(lazy)
    assert inside.is_in(data)


@pytest.mark.parametrize("time", [None, 0, 1])
def test_groups_inside_of_groups_get_the_sizes_of_their_specs(time):
    inner = Composite(
        place=Unbounded((4, 3, 2)), legs=Composite(angle=Unbounded((4, 3, 5)), shape=(4, 3, 5)), shape=(4, 3)
    )
    agents = Composite(obs=inner, reward=Unbounded((4, 3, 1)), shape=(4, 3))
    spec = Composite(agents=agents, step=Unbounded((4, 1)), shape=(4,))
    sizes = group_sizes([spec])
    lead = {None: (4,), 0: (8, 4), 1: (4, 8)}[time]
    leaves = {key: torch.zeros(*lead, *spec[key].shape[1:]) for key in spec.keys(True, True)}
    leaves["agents", "written", "logits"] = torch.zeros(*lead, 3, 6)  # by a policy
    names = [None, "env"] if time == 0 else ["env", None]
    data = TensorDict(leaves, batch_size=lead, names=names[: len(lead)])
    set_group_sizes(data, sizes, time)
    for key in ("agents", ("agents", "obs"), ("agents", "written")):
        assert data[key].batch_size == (*lead, 3)
        assert data[key].names == [*data.names, None]
    assert data["agents", "obs", "legs"].batch_size == (*lead, 3, 5)
    assert data["agents", "obs", "legs"].names == [*data.names, None, None]
    assert data.batch_size == lead
    leaves["agents", "obs", "mean"] = torch.zeros(*lead)  # by a policy, without agents
    other = TensorDict(leaves, batch_size=lead)
    set_group_sizes(other, sizes, time)
    assert [other[key].batch_size for key in ("agents", ("agents", "obs"))] == [lead, lead]
    assert other["agents", "obs", "legs"].batch_size == (*lead, 3, 5)
    ragged = LazyStackedTensorDict(*TensorDict(x=torch.zeros(*lead, 3), batch_size=lead).unbind(0), stack_dim=0)
    kept = TensorDict(agents=TensorDict(written=ragged, batch_size=lead), batch_size=lead)
    set_group_sizes(kept, sizes, time)
    assert kept["agents"].batch_size == lead
