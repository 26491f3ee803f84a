from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    is_leaf_nontensor,
    is_tensor_collection,
)

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.mdp import (
    FLAGS,
    StepMDP,
    complete_done,
    done_levels,
    merge_reset,
    reset_masks,
    step_mdp,
    where_reset,
)
from rl.core.specs import Binary, Composite, Unbounded

KEYS = {"reward_keys": ["reward", ("agents", "reward")], "done_keys": ["done", ("agents", "done")]}
KEYS["action_keys"] = ["action", ("agents", "action")]


def make_step(batch=(2,)):
    """A step of an environment with a group of agents; under `next` all numbers are 10 larger."""
    flag = torch.zeros(*batch, 1, dtype=torch.bool)
    root = {
        "observation": torch.full((*batch, 3), 1.0),
        "action": torch.full((*batch, 1), 2.0),
        "loc": torch.full((*batch,), 3.0),
        "done": flag,
        ("agents", "observation"): torch.full((*batch, 4, 1), 4.0),
        ("agents", "action"): torch.full((*batch, 4), 5.0),
        ("agents", "hidden"): torch.full((*batch, 4), 6.0),
        ("agents", "done"): flag.unsqueeze(-2).expand(*batch, 4, 1),
    }
    following = {
        "observation": torch.full((*batch, 3), 11.0),
        "reward": torch.full((*batch, 1), 12.0),
        "done": ~flag,
        ("agents", "observation"): torch.full((*batch, 4, 1), 14.0),
        ("agents", "reward"): torch.full((*batch, 4), 15.0),
        ("agents", "done"): ~flag.unsqueeze(-2).expand(*batch, 4, 1),
    }
    return TensorDict(root, batch_size=batch).set("next", TensorDict(following, batch_size=batch))


def flat(td):
    return dict(td.items(include_nested=True, leaves_only=True))


def by_hand(td, switches):
    """The documented rule on flat keys."""
    root, following = {}, {}
    for key, value in flat(td).items():
        if key[0] == "next":
            following[key[1] if len(key) == 2 else key[1:]] = value
        else:
            root[key] = value
    out = dict(root) if switches["keep_other"] else {}
    if not switches["exclude_action"]:
        out.update((key, root[key]) for key in KEYS["action_keys"])
    out.update(following)
    for kind in ("reward", "done", "action"):
        if switches[f"exclude_{kind}"]:
            for key in KEYS[f"{kind}_keys"]:
                out.pop(key, None)
    return out


SWITCHES = ["keep_other", "exclude_reward", "exclude_done", "exclude_action"]


@pytest.mark.parametrize("values", list(product([False, True], repeat=4)), ids=str)
def test_every_switch_follows_the_rule(values):
    switches = dict(zip(SWITCHES, values, strict=True))
    td = make_step()
    before = td.clone()
    out, expected = flat(step_mdp(td, **switches, **KEYS)), by_hand(td, switches)
    assert out.keys() == expected.keys()
    assert all(out[key] is expected[key] for key in out)
    assert (td == before).all()


def test_defaults():
    root = step_mdp(make_step())
    assert set(root.keys()) == {"observation", "done", "loc", "agents"}
    assert root["done"].all()


def test_next_must_be_there():
    with pytest.raises(ContractError, match=r"'next', which is not there \(keys: \['action'\]\)"):
        step_mdp(TensorDict(action=torch.zeros(1)))


def test_result_is_written_into_what_is_given():
    target = TensorDict(kept=torch.ones(2), batch_size=[2])
    assert step_mdp(make_step(), target) is target
    assert {"kept", "observation"} <= set(target.keys())


def test_batch_size_and_names_stay():
    td = make_step((2, 5))
    td.names = [None, "time"]
    root = step_mdp(td)
    assert root.batch_size == (2, 5)
    assert root.names == [None, "time"]


def test_non_tensor_entries_are_copied():
    td = make_step(()).set("text", NonTensorData("a")).set(("next", "word"), NonTensorData("b"))
    root = step_mdp(td)
    assert (root["text"], root["word"]) == ("a", "b")
    assert root.get("text") is not td.get("text")


def test_groups_that_lose_all_their_entries_do_not_stay_behind():
    td = TensorDict(x=torch.zeros(1), next=TensorDict(x=torch.ones(1), team=TensorDict(reward=torch.zeros(1))))
    assert set(step_mdp(td, reward_keys=("team", "reward")).keys()) == {"x"}


def test_ragged_steps_are_followed_one_by_one():
    steps = [TensorDict(x=torch.zeros(n), next={"x": torch.ones(n), "reward": torch.ones(1)}) for n in (1, 2)]
    root = step_mdp(LazyStackedTensorDict.lazy_stack(steps))
    assert [part["x"].tolist() for part in root.unbind(0)] == [[1.0], [1.0, 1.0]]
    assert "reward" not in root.keys()


def test_ragged_groups_are_followed_one_by_one():
    def group(value):
        parts = [TensorDict(x=torch.full((n,), value)) for n in (1, 2)]
        return LazyStackedTensorDict.lazy_stack(parts)

    root = step_mdp(TensorDict(agents=group(0.0), next=TensorDict(agents=group(1.0))))
    assert [part["x"].tolist() for part in root["agents"].unbind(0)] == [[1.0], [1.0, 1.0]]


def test_stepper_keeps_actions_and_drops_masks():
    td = make_step().set("_reset", torch.ones(2, 1, dtype=torch.bool))
    td["agents", "_reset"] = torch.ones(2, 4, 1, dtype=torch.bool)
    root = StepMDP(**KEYS)(td)
    assert ("agents", "action") in root.keys(include_nested=True)
    assert "action" in root.keys()
    assert not [key for key in root.keys(include_nested=True) if "_reset" in key]


def test_a_reward_that_is_state_is_kept():
    stepper = StepMDP(reward_keys=["reward", ("agents", "reward")], state_keys=["reward"])
    root = stepper(make_step())
    assert "reward" in root.keys()
    assert ("agents", "reward") not in root.keys(include_nested=True)


@pytest.mark.parametrize("values", list(product([False, True], repeat=4)), ids=str)
def test_leaf_form_gives_the_same(values):
    stepper = StepMDP(**dict(zip(SWITCHES, values, strict=True)), **KEYS)
    td = make_step()
    root = flat(td.exclude("next"))
    leaves = stepper.leaves(root, flat(td["next"]))
    expected = flat(stepper(td))
    assert leaves.keys() == expected.keys()
    assert all(leaves[key] is expected[key] for key in leaves)


def test_stepper_of_an_environment_knows_its_keys():
    agents = Composite(reward=Unbounded(4), shape=())
    env = SimpleNamespace(
        full_reward_spec=Composite(agents=agents),
        full_done_spec=Composite({("agents", "done"): Binary(1, dtype=torch.bool)}),
        full_action_spec=Composite(action=Unbounded(1)),
    )
    td = make_step().set(("agents", "_reset"), torch.ones(2, 4, 1, dtype=torch.bool))
    keys = StepMDP.from_env(env)(td).keys(include_nested=True)
    assert ("agents", "reward") not in keys
    assert ("agents", "_reset") not in keys
    assert {"action", "reward"} <= set(keys)


# ---------------------------------------------------------------------- done flags

T, F = True, False


@pytest.mark.parametrize(
    ("given_flags", "expected"),
    [
        pytest.param({"terminated": T}, (T, T, F), id="terminated"),
        pytest.param({"terminated": F}, (F, F, F), id="running"),
        pytest.param({"terminated": F, "truncated": T}, (T, F, T), id="cut"),
        pytest.param({"terminated": T, "truncated": T}, (T, T, T), id="both"),
        pytest.param({"done": T}, (T, T, F), id="done"),
        pytest.param({"truncated": T}, (T, F, T), id="truncated-alone"),
        pytest.param({"done": T, "terminated": F}, (T, F, T), id="done-but-not-terminated"),
        pytest.param({"done": T, "terminated": T}, (T, T, F), id="done-and-terminated"),
        pytest.param({}, (F, F, F), id="nothing"),
    ],
)
@pytest.mark.parametrize("level", [(), ("agents",)], ids=["root", "nested"])
@pytest.mark.parametrize("form", ["tensordict", "leaves"])
def test_flags_are_completed(given_flags, expected, level, form):
    def key(flag):
        return (*level, flag) if level else flag

    flags = {key(name): torch.tensor([[value]]) for name, value in given_flags.items()}
    data = TensorDict(flags, batch_size=[1]) if form == "tensordict" else flags
    out = complete_done(data, level=level, shape=(1, 1))
    assert out is data
    assert tuple(bool(out[key(name)]) for name in ("done", "terminated", "truncated")) == expected
    assert all(out[key(name)].shape == (1, 1) for name in ("done", "terminated", "truncated"))


def test_only_the_requested_flags_are_written():
    out = complete_done({"terminated": torch.tensor([T])}, flags=("done", "terminated"))
    assert set(out) == {"done", "terminated"}


def test_flags_never_share_memory():
    out = complete_done({"done": torch.tensor([T])})
    assert len({flag.data_ptr() for flag in out.values()}) == 3


def test_flags_of_another_shape_are_reshaped():
    out = complete_done({"done": torch.tensor([1, 0])}, shape=(2, 1))
    assert out["done"].tolist() == out["terminated"].tolist() == [[T], [F]]


def test_flags_that_cannot_be_completed_are_refused():
    flag = torch.tensor([T])
    with pytest.raises(ContractError, match=r"'done' and 'truncated' came without 'terminated'"):
        complete_done({"done": flag, "truncated": flag})
    with pytest.raises(ShapeError, match=r"'done' must have shape \(2, 1\), got \(1,\)"):
        complete_done({"done": flag}, shape=(2, 1))
    with pytest.raises(ShapeError, match=r"\('agents', 'done'\)"):
        complete_done({}, level=("agents",))


@pytest.mark.parametrize(
    "flags", [(F, T, F), (F, F, T), (T, F, F), (F, T, None)], ids=["terminated", "truncated", "neither", "two-flags"]
)
def test_flags_that_contradict_each_other_are_refused(flags):
    data = {name: torch.tensor([F, flag]) for name, flag in zip(FLAGS, flags, strict=True) if flag is not None}
    before = {name: flag.clone() for name, flag in data.items()}
    with pytest.raises(
        ContractError, match=rf"Line wrote done flags .*at \[1\] of \[2\]: 'done' {flags[0]}, .*Write done"
    ):
        complete_done(data, owner="Line")
    assert data.keys() == before.keys()
    assert all(torch.equal(data[name], flag) for name, flag in before.items())


def test_a_flag_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(SpecError, match=r"Line wrote the flag 'terminated' as 0\.5 \(torch\.float32\)"):
        complete_done({"terminated": torch.tensor([1.0, 0.5])}, owner="Line")


def test_the_group_of_a_kept_action_keeps_its_batch_size():
    agents = TensorDict(action=torch.arange(6).reshape(2, 3), batch_size=[2, 3])
    td = TensorDict(agents=agents, x=torch.zeros(2), next=TensorDict(x=torch.ones(2), batch_size=[2]), batch_size=[2])
    out = step_mdp(td, keep_other=False, exclude_action=False, action_keys=("agents", "action"))
    assert out["agents"].batch_size == (2, 3)
    assert torch.equal(out["agents", "action"], agents["action"])
    assert out["x"].tolist() == [1, 1]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_done_is_terminated_or_truncated(rows):
    terminated, truncated = torch.tensor(rows).T.unsqueeze(-1)
    out = complete_done({"terminated": terminated, "truncated": truncated})
    assert out["done"].tolist() == [[a or b] for a, b in rows]


def test_levels_of_flags():
    assert done_levels([("a", "b", "done"), "done", ("z", "done"), "terminated"]) == [(), ("z",), ("a", "b")]
    assert done_levels(("agents", "done")) == [("agents",)]


# ---------------------------------------------------------------------- partial resets


def merged(td, fresh, done_keys="done"):
    """What a partial reset by the masks of `td` leaves, by flat key."""
    current, new = (dict(x.items(True, True, is_leaf=is_leaf_nontensor)) for x in (td, fresh))
    return merge_reset(current, new, reset_masks(td, done_keys))


def test_a_mask_at_the_root_overrides_those_below():
    root, nested = torch.tensor([[T], [F]]), torch.ones(2, 4, 1, dtype=torch.bool)
    td = TensorDict(_reset=root, agents={"_reset": nested}, batch_size=[2])
    assert list(reset_masks(td, KEYS["done_keys"])) == [()]
    assert list(reset_masks(td.exclude("_reset"), KEYS["done_keys"])) == [("agents",)]
    assert reset_masks(TensorDict(), KEYS["done_keys"]) == {}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_what_is_not_selected_comes_from_the_last_root(selected):
    n = len(selected)
    mask = torch.tensor(selected).unsqueeze(-1)
    td = TensorDict(
        x=torch.full((n, 3), 7),
        agents={"y": torch.full((n, 2, 1), 7)},
        loc=torch.full((n,), 7),
        _reset=mask,
        batch_size=[n],
    )
    last = td["x"]
    fresh = TensorDict(x=torch.zeros(n, 3, dtype=torch.int64), agents={"y": torch.zeros(n, 2, 1)}, batch_size=[n])
    fresh["agents", "y"] = fresh["agents", "y"].long()
    out = merged(td, fresh)
    assert out["x"].tolist() == [[0 if s else 7] * 3 for s in selected]
    assert out["agents", "y"].tolist() == [[[0 if s else 7]] * 2 for s in selected]
    assert last.eq(7).all()


def test_masks_of_a_group_select_its_members():
    mask = torch.tensor([[[T], [F]]])
    td = TensorDict(x=torch.full((1, 3), 7), agents={"y": torch.full((1, 2, 1), 7), "_reset": mask}, batch_size=[1])
    fresh = TensorDict(x=torch.zeros(1, 3), agents={"y": torch.zeros(1, 2, 1, dtype=torch.int64)}, batch_size=[1])
    out = merged(td, fresh, KEYS["done_keys"])
    assert out["agents", "y"].flatten().tolist() == [0, 7]
    assert out["x"].flatten().tolist() == [0, 0, 0], "a level without a mask is reset in full"


def test_a_partial_reset_without_the_last_data_is_refused():
    td = TensorDict(_reset=torch.tensor([[T], [F]]), batch_size=[2])
    with pytest.raises(ContractError, match=r"reads \('agents', 'x'\)"):
        merged(td, TensorDict(agents={"x": torch.zeros(2)}, batch_size=[2]))


def test_leaves_are_merged_by_flat_key():
    mask = torch.tensor([[T], [F]])
    current = {"x": torch.tensor([1, 2]), ("agents", "y"): torch.tensor([[3], [4]])}
    fresh = {"x": torch.tensor([0, 0]), ("agents", "y"): torch.tensor([[0], [0]])}
    out = merge_reset(current, fresh, {(): mask})
    assert out["x"].tolist() == [0, 2]
    assert out["agents", "y"].tolist() == [[0], [4]]


def test_text_is_merged_too():
    td = TensorDict(_reset=torch.tensor([[T], [F]]), batch_size=[2]).set("word", NonTensorStack("old", "kept"))
    out = merged(td, TensorDict(batch_size=[2]).set("word", NonTensorStack("new", "unused")))
    assert out["word"].tolist() == ["new", "kept"]
    assert is_tensor_collection(out["word"])


def test_shapes_must_agree():
    with pytest.raises(ShapeError, match=r"mask of shape \(2, 1\).*\(3, 4\).*\(3, 4\)"):
        where_reset(torch.ones(2, 1, dtype=torch.bool), torch.zeros(3, 4), torch.zeros(3, 4))
