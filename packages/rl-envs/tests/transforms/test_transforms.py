from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, RLError, SpecError
from rl.core.specs import Bounded, Categorical, Composite, Unbounded
from rl.envs import (
    ActionClipping,
    ActionDiscretizer,
    ActionMask,
    ActionScaling,
    CartPoleEnv,
    CatTensors,
    ClipTransform,
    Compose,
    DTypeCastTransform,
    EnvBase,
    FlattenAction,
    FlattenObservation,
    GymEnv,
    GymWrapper,
    InitTracker,
    LeafEnvBase,
    ObservationIndices,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    RewardNorm,
    RewardScaling,
    RewardSum,
    RNDTransform,
    SerialEnv,
    SqueezeTransform,
    Stack,
    StepCounter,
    SuccessReward,
    TargetReturn,
    TeamReward,
    TicTacToeEnv,
    TimeMaxPool,
    Transform,
    TransformedEnv,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
)
from rl.testing import check_env, check_transform


class Scale(Transform):
    """Doubles observations, and takes actions of half the size."""

    leafwise = True

    def _call(self, entries):
        entries["observation"] = entries["observation"] * 2
        return entries

    def _inv(self, root):
        root["action"] = root["action"] * 2
        return root

    def transform_specs(self, specs):
        one = specs.observation["observation"]
        specs.observation["observation"] = Bounded(one.space.low * 2, one.space.high * 2)
        one = specs.action["action"]
        specs.action["action"] = Bounded(one.space.low / 2, one.space.high / 2)


class Slow(Scale):
    """The same, by its author not declared to run on leaves."""

    leafwise = False


def chain():
    return Compose(StepCounter(4), RewardSum(), InitTracker())


lengths = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(lengths=lengths, limit=st.integers(1, 6), steps=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_counts_sums_and_marks_follow_episodes(counter, lengths, limit, steps):
    env = TransformedEnv(counter(lengths), Compose(StepCounter(limit), RewardSum(), InitTracker()))
    data = env.rollout(steps, break_when_any_done=False)
    for row, length in zip(data, lengths, strict=True):
        count, total = 0, 0.0
        for step in row:
            assert step["step_count"].item() == count
            assert step["episode_reward"].item() == total
            assert step["is_init"].item() == (count == 0)
            count, total = count + 1, total + step["next", "reward"].item()
            assert step["next", "step_count"].item() == count
            assert step["next", "episode_reward"].item() == total
            assert not step["next", "is_init"].item()
            assert step["next", "terminated"].item() == (count >= length)
            assert step["next", "truncated"].item() == (count >= limit)
            over = count >= min(length, limit)
            assert step["next", "done"].item() == over
            count, total = (0, 0.0) if over else (count, total)


@pytest.mark.parametrize("inner", [PendulumEnv, lambda: PendulumEnv([3]), lambda: GymEnv("Pendulum-v1", num_envs=2)])
@pytest.mark.parametrize(
    "transform", [StepCounter(4), RewardSum(), InitTracker(), chain(), Scale(), Slow()], ids=lambda t: type(t).__name__
)
def test_conformance(inner, transform):
    check_transform(transform, wrap=lambda one: TransformedEnv(inner(), one))


def test_leaf_form_exists_where_all_have_one():
    assert TransformedEnv(PendulumEnv(), Compose(Scale(), StepCounter(3))).lowered() is not None
    assert TransformedEnv(PendulumEnv(), Compose(Slow(), StepCounter(3))).lowered() is None
    assert TransformedEnv(PendulumEnv(), lambda td: td).lowered() is None


def test_both_forms_of_a_transform_give_the_same_numbers():
    rows = []
    for transform in (Scale(), Slow()):
        env = TransformedEnv(PendulumEnv([2], seed=0), Compose(transform, StepCounter(3)))
        torch.manual_seed(0)
        rows.append(env.rollout(8, break_when_any_done=False))
    assert (rows[0] == rows[1]).all()


def test_actions_go_in_inverted_and_observations_come_out_mapped():
    plain, scaled = PendulumEnv(seed=0), TransformedEnv(PendulumEnv(seed=0), Scale())
    assert scaled.action_spec.space.high.item() == 1.0
    a = plain.step(plain.reset().set("action", torch.tensor([1.0])))
    b = scaled.step(scaled.reset().set("action", torch.tensor([0.5])))
    torch.testing.assert_close(b["next", "observation"], 2 * a["next", "observation"])
    assert b["next", "reward"] == a["next", "reward"]
    assert b["action"].item() == 0.5


def test_the_first_transform_is_nearest_to_the_environment():
    add = lambda td: td.set("observation", td["observation"] + 1)
    double = lambda td: td.set("observation", td["observation"] * 2)
    env = TransformedEnv(PendulumEnv(seed=0), Compose(add, double))
    plain = PendulumEnv(seed=0).reset()["observation"]
    torch.testing.assert_close(env.reset()["observation"], 2 * (plain + 1))


def test_a_partial_reset_maps_an_observation_once():
    env = TransformedEnv(PendulumEnv([2], seed=0), Scale())
    root = env.reset()
    first = root["observation"].clone()
    out = env.reset(root.set("_reset", torch.tensor([[True], [False]])))
    assert torch.equal(out["observation"][1], first[1])
    assert not torch.equal(out["observation"][0], first[0])


def test_specs_of_a_function_are_found_by_running_it():
    env = TransformedEnv(PendulumEnv([2]), lambda td: td.set("both", torch.cat([td["observation"]] * 2, -1)))
    assert env.observation_spec["both"] == Unbounded((2, 6))
    check_env(lambda: TransformedEnv(PendulumEnv([2]), lambda td: td.set("both", td["observation"] + 1)))


def test_printing():
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(max_steps=200)))
    assert str(env) == (
        "TransformedEnv(\n    env=GymEnv(env=Pendulum-v1, batch_size=torch.Size([]), device=None),\n"
        "    transform=Compose(\n        StepCounter(out_keys=['step_count'])))"
    )


def test_append_insert_and_indexing():
    env = PendulumEnv([2]).append_transform(StepCounter(3))
    assert isinstance(env, TransformedEnv)
    assert env.append_transform(RewardSum()) is env
    assert isinstance(env.transform, Compose)
    env.transform.insert(0, InitTracker())
    assert [type(one) for one in env.transform] == [InitTracker, StepCounter, RewardSum]
    assert len(env.transform) == 3
    assert isinstance(env.transform[1], StepCounter)
    assert len(env.transform[1:]) == 2
    assert {"is_init", "step_count", "episode_reward"} <= set(env.observation_keys)
    assert env.rollout(9).shape == (2, 3)


def test_a_transform_belongs_to_one_environment():
    counter = StepCounter(3)
    env = TransformedEnv(PendulumEnv(), counter)
    assert counter.parent is env
    with pytest.raises(RLError, match="clone"):
        TransformedEnv(PendulumEnv(), counter)
    assert TransformedEnv(PendulumEnv(), counter.clone()).rollout(9).shape == (3,)
    assert counter.clone().parent is None


def test_nested_transformed_environments():
    env = TransformedEnv(TransformedEnv(PendulumEnv([2]), StepCounter(3)), RewardSum())
    data = env.rollout(7, break_when_any_done=False)
    assert data["step_count"][0].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0]
    torch.testing.assert_close(data["next", "episode_reward"][:, 2], data["next", "reward"][:, :3].sum(1))


def test_what_the_environment_offers_is_reached_through_it():
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    assert env.env_name == "CartPole-v1"
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = env.nothing_of_the_kind
    env.close()
    assert env.base_env.is_closed


def test_only_environments_are_wrapped():
    with pytest.raises(ArgumentError, match=r"object is no environment: it lacks batch_size, .*GymWrapper"):
        TransformedEnv(object(), StepCounter())
    with pytest.raises(ArgumentError, match="int"):
        Compose(3)


def test_a_missing_attribute_is_named_with_the_outer_class():
    env = TransformedEnv(TransformedEnv(PendulumEnv(), StepCounter()), InitTracker())
    with pytest.raises(
        AttributeError, match=r"^TransformedEnv has no attribute 'render', nor has .*PendulumEnv$"
    ) as error:
        env.render  # noqa: B018  reading it is the test
    assert (error.value.name, error.value.obj) == ("render", env)


def test_the_own_error_of_a_property_is_kept():
    class Broken(PendulumEnv):
        @property
        def height(self):
            return self.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        TransformedEnv(Broken(), StepCounter()).height  # noqa: B018  reading it is the test


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(lambda: StepCounter(0), ArgumentError, "at least 1", id="no-steps"),
        pytest.param(
            lambda: StepCounter(2, update_done=False), ArgumentError, "'truncated' without 'done'", id="no-done"
        ),
        pytest.param(lambda: RewardSum(["a"], ["b", "c"]), ArgumentError, "one for each", id="lengths"),
        pytest.param(lambda: InitTracker(3), ArgumentError, "a key is a string .*, got 3", id="no-key"),
        pytest.param(lambda: TimeMaxPool(T=0), ArgumentError, "TimeMaxPool: T must be at least 1", id="no-frames"),
        pytest.param(
            lambda: TransformedEnv(PendulumEnv(), RewardSum(["gain"])), SpecError, "'gain'.*'reward'", id="reward"
        ),
        pytest.param(
            lambda: TransformedEnv(PendulumEnv(), Compose(StepCounter(), StepCounter())),
            SpecError,
            "exists already",
            id="twice",
        ),
        pytest.param(
            lambda: TransformedEnv(PendulumEnv(), StepCounter(3, ("agents", "truncated"))),
            SpecError,
            "agents",
            id="level",
        ),
        pytest.param(
            lambda: TransformedEnv(PendulumEnv(), InitTracker(("agents", "is_init"))),
            SpecError,
            "agents",
            id="init-level",
        ),
    ],
)
def test_wrong_use(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_stepping_from_entries_of_ones_own_is_explained():
    env = TransformedEnv(PendulumEnv(), StepCounter(3))
    td = env.rand_action(env.reset()).exclude("step_count")
    with pytest.raises(ContractError, match="'step_count'"):
        env.step(td)


def test_on_a_batch():
    batch = TensorDict(observation=torch.ones(3, 2), next={"observation": torch.zeros(3, 2)}, batch_size=[3])
    out = Scale().forward(batch)
    assert out["observation"][0, 0].item() == 2.0
    assert batch["observation"][0, 0].item() == 1.0
    check_transform(Scale(), batch)
    with pytest.raises(RLError, match="cannot transform a batch"):
        StepCounter()(batch)


def test_reward_sum_of_a_batch_is_that_of_the_environment():
    env = TransformedEnv(PendulumEnv([2]), Compose(StepCounter(3), RewardSum()))
    data = env.rollout(8, break_when_any_done=False)
    again = RewardSum()(data.exclude("episode_reward", ("next", "episode_reward")))
    torch.testing.assert_close(again["episode_reward"], data["episode_reward"])
    torch.testing.assert_close(again["next", "episode_reward"], data["next", "episode_reward"])
    with pytest.raises(ContractError):
        RewardSum()(data.exclude("next"))


class Pair(EnvBase):
    """Two groups, each with reward and flags of its own."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(a={"x": Unbounded(1)}, b={"x": Unbounded(1)})
        self.action_spec = Unbounded(1)
        self.reward_spec = Composite(a={"reward": Unbounded(1)}, b={"reward": Unbounded(1)})
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.done_spec = Composite(a={"done": flag}, b={"done": flag})

    def _reset(self, td):
        return TensorDict(a={"x": torch.zeros(1)}, b={"x": torch.zeros(1)})

    def _step(self, td):
        def one(reward):
            return TensorDict(x=torch.ones(1), reward=torch.tensor([reward]), done=torch.tensor([False]))

        return TensorDict(a=one(1.0), b=one(2.0))


def test_transforms_of_a_level():
    transforms = Compose(RewardSum(), StepCounter(3, ("b", "truncated"), ("b", "count")), InitTracker(("a", "is_init")))
    data = TransformedEnv(Pair(), transforms).rollout(2)
    assert data["next", "b", "episode_reward"].flatten().tolist() == [2.0, 4.0]
    assert data["b", "count"].flatten().tolist() == [0, 1]
    assert data["a", "is_init"].flatten().tolist() == [True, False]


@pytest.mark.parametrize("form", ["tensordict", "leaves"])
def test_a_promised_entry_that_a_transform_removes_is_missing(form):
    class Dropping(InitTracker):
        def _reset(self, root, mask=None):
            return root

    env = TransformedEnv(PendulumEnv(batch_size=[2]), Dropping())
    with pytest.raises(SpecError, match=r"TransformedEnv\._reset does not.*\n.*'is_init': expected bool"):
        env.reset() if form == "tensordict" else env.lowered().reset_leaves()


def test_a_promised_entry_that_is_never_written_is_missing():
    class Promising(Transform):
        def transform_specs(self, specs):
            specs.observation["extra"] = Unbounded(1)

    with pytest.raises(SpecError, match=r"'extra': expected float32 \[1\], got nothing$|got nothing\n"):
        TransformedEnv(PendulumEnv(), Promising()).reset()


@pytest.mark.parametrize(
    ("hook", "ours"),
    [
        ("_apply_transform", r"_apply\(value\)"),
        ("_inv_call", r"_inv\(root\)"),
        ("transform_observation_spec", r"_transform_spec\(spec\)"),
    ],
)
def test_a_hook_that_nothing_calls_is_refused(hook, ours):
    with pytest.raises(RLError, match=f"Foreign overrides {hook}, which no transform calls: write {ours}"):
        type("Foreign", (Transform,), {hook: lambda self, value: value})


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            lambda: UnaryTransform(["observation"], fn=lambda x: x + torch.zeros(9)),
            r"map the spec of 'observation', float32",
        ),
        (lambda: FlattenObservation(-2, -1, in_keys=["observation"]), r"map the spec of 'observation', float32 \[3\]"),
        (lambda: CatTensors(["observation", "th"], del_keys=False), r"join entries of the shapes .*'th'.*: \(\)"),
        (lambda: Stack(["th", "thdot"], "both"), "remove 'th', 'thdot', which .* next step: pass del_keys=False"),
        (lambda: ActionMask(mask_key="observation"), "mask of booleans or integers, and 'observation' is float32"),
    ],
)
def test_what_does_not_fit_the_specs_is_named_when_it_is_appended(transform, message):
    with pytest.raises(SpecError, match=message):
        TransformedEnv(PendulumEnv(), transform())


def test_places_of_a_chain():
    env = PendulumEnv().insert_transform(0, RewardSum())
    assert [type(one) for one in env.insert_transform(0, StepCounter()).transform] == [StepCounter, RewardSum]
    with pytest.raises(ArgumentError, match="insert a transform at 3: there are 2"):
        env.insert_transform(3, InitTracker())


def test_a_transform_that_is_not_there_or_is_needed_cannot_be_removed():
    with pytest.raises(ArgumentError, match="cannot remove the transform at -1: there are 0"):
        Compose().pop()
    env = TransformedEnv(
        PendulumEnv(), Compose(StepCounter(5), RenameTransform(["step_count"], ["clock"], create_copy=True))
    )
    with pytest.raises(ArgumentError, match="remove the transform at 2: there are 2"):
        env.transform.pop(2)
    counter = env.transform[0]
    with pytest.raises(SpecError, match="has the key 'step_count', which the environment does not write"):
        env.transform.pop(0)
    assert counter.parent is env
    assert "clock" in env.rollout(2).keys()
    assert isinstance(env.transform.pop(), RenameTransform)
    assert env.transform.pop() is counter
    assert counter.parent is None
    assert set(env.rollout(2).keys()) == set(PendulumEnv().rollout(2).keys())


@pytest.mark.parametrize("hook", ["_reset", "_step", "_inv"])
def test_an_error_in_a_hook_names_the_transform(hook):
    def broken(*_):
        raise KeyError("lost")

    kind = type("Broken", (Transform,), {hook: broken})
    env = TransformedEnv(PendulumEnv(), kind())
    with pytest.raises(ContractError, match=r"Broken\(\) failed: KeyError: 'lost'"):
        env.rollout(2)


def test_random_moves_stay_legal_where_games_end_at_different_times():
    env = TransformedEnv(TicTacToeEnv([4], categorical_action_encoding=True), ActionMask())
    torch.manual_seed(0)
    data = env.rollout(60, break_when_any_done=False)
    assert data["next", "done"][:, 5:].any(1).all()
    assert data["action_mask"].gather(-1, data["action"].unsqueeze(-1)).all()


MASKS = {
    "multi-binary": gym.spaces.MultiBinary(3),
    "box-int8": gym.spaces.Box(0, 1, (3,), np.int8),
    "box-uint8": gym.spaces.Box(0, 9, (3,), np.uint8),
    "box-int64": gym.spaces.Box(0, 1, (3,), np.int64),
}


class Masked(gym.Env):
    """Allows the actions ``masks[t % 3]`` at step t."""

    def __init__(self, space, masks=((1, 0, 0), (0, 1, 1), (0, 0, 1))):
        self.action_space = gym.spaces.Discrete(3)
        self.observation_space = gym.spaces.Dict(action_mask=space)
        self.masks = np.array(masks, space.dtype)

    def _seen(self):
        return {"action_mask": self.masks[self.count % 3]}

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        self.count += 1
        return self._seen(), 0.0, False, False, {}


@pytest.mark.parametrize("space", MASKS.values(), ids=MASKS)
def test_action_mask_keeps_random_actions_within_integer_masks(space):
    env = TransformedEnv(GymWrapper(Masked(space), categorical_action_encoding=True), ActionMask())
    data = env.rollout(60)
    assert not data["action_mask"].dtype.is_floating_point
    assert data["action_mask"].gather(-1, data["action"].unsqueeze(-1)).all()
    assert set(data["action"][1::3].tolist()) == {1, 2}
    several = TransformedEnv(SerialEnv(2, lambda: GymWrapper(Masked(space))), ActionMask())
    root = several.rand_step(several.reset())
    root = several.reset(root["next"].set("_reset", torch.tensor([[True], [False]])))
    for _ in range(20):
        assert root["action_mask"].tolist() == [[1, 0, 0], [0, 1, 1]]
        assert (several.full_action_spec.rand()["action"] <= root["action_mask"]).all()


def test_action_mask_refuses_integers_other_than_0_and_1_by_key():
    env = TransformedEnv(GymWrapper(Masked(MASKS["box-uint8"], ((1, 0, 0), (0, 2, 1), (0, 0, 1)))), ActionMask())
    env.reset()
    with pytest.raises(ContractError, match=r"mask of 0 and 1, and 'action_mask' has the values \[0, 1, 2\]"):
        env.rollout(3)


def test_an_assigned_transform_takes_effect():
    env = TransformedEnv(PendulumEnv(seed=0), StepCounter(max_steps=3))
    old, new = env.transform, RewardSum()
    env.transform = new
    assert env.transform is new
    assert new.parent is env
    assert old.parent is None
    data = env.rollout(5)
    assert "step_count" not in data.keys()
    assert len(data) == 5
    assert "episode_reward" in data.keys()
    env.transform = lambda td: td
    assert env.rollout(2)["next"].keys() == PendulumEnv().rollout(2)["next"].keys()


def test_an_assigned_transform_that_does_not_fit_leaves_the_old_one():
    env = TransformedEnv(PendulumEnv(seed=0), StepCounter(max_steps=3))
    old = env.transform
    with pytest.raises(SpecError, match="'nothing'"):
        env.transform = UnaryTransform(["nothing"], fn=torch.exp)
    with pytest.raises(Exception, match="belongs to another environment"):
        env.transform = TransformedEnv(PendulumEnv(), RewardSum()).transform
    assert env.transform is old
    assert len(env.rollout(9)) == 3


@pytest.mark.parametrize("name", ["base_env", "batch_size", "device"])
def test_what_specs_depend_on_cannot_be_assigned(name):
    for env in (PendulumEnv(), TransformedEnv(PendulumEnv(), StepCounter())):
        if hasattr(env, name):
            with pytest.raises(RLError, match=f"{name} of a? ?\\w+ cannot be assigned"):
                setattr(env, name, getattr(env, name))


def test_an_attribute_of_the_environment_inside_is_set_there():
    env = TransformedEnv(PendulumEnv(), StepCounter())
    env.physics = "other"
    assert env.base_env.physics == "other"
    assert "physics" not in vars(env)
    env.note = 1
    assert vars(env)["note"] == 1
    assert not hasattr(env.base_env, "note")


@pytest.mark.parametrize("inverse", [{}, {"in_keys_inv": ["th"], "out_keys_inv": ["angle"]}], ids=["one", "both"])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("create_copy", [False, True])
def test_an_observation_that_is_state_too_is_renamed(inverse, chained, create_copy):
    rename = RenameTransform(["th"], ["angle"], **inverse, create_copy=create_copy)
    env = TransformedEnv(PendulumEnv([2], seed=0), Compose(StepCounter(), rename) if chained else rename)
    plain = PendulumEnv([2], seed=0)
    torch.manual_seed(0)
    expected = plain.rollout(4)
    torch.manual_seed(0)
    data = env.rollout(4)
    for part, other in ((data, expected), (data["next"], expected["next"])):
        torch.testing.assert_close(part["angle"], other["th"], rtol=0, atol=0)
        torch.testing.assert_close(part["observation"], other["observation"], rtol=0, atol=0)
        assert ("th" in part.keys()) == create_copy
    start = env.reset(data[:, 2].select(*env.state_keys), set_state=True)
    torch.testing.assert_close(start["angle"], data["angle"][:, 2])


def test_an_entry_of_the_state_has_one_name():
    with pytest.raises(SpecError, match="pass the same pair of keys in both directions"):
        TransformedEnv(PendulumEnv(), RenameTransform(["th"], ["angle"], ["th"]))
    with pytest.raises(SpecError, match="writes 'observation', which the environment has already"):
        TransformedEnv(PendulumEnv(), RenameTransform(["th"], ["observation"]))


def test_a_dimension_of_the_action_that_cannot_move_is_scaled_to_the_middle():
    class Fixed(EnvBase):
        def __init__(self):
            super().__init__(batch_size=[4])
            self.observation_spec = Composite(observation=Unbounded(2))
            self.action_spec = Bounded(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 1.0]))

        def _reset(self, td):
            return TensorDict(observation=torch.zeros(4, 2), batch_size=[4])

        def _step(self, td):
            entries = {"observation": td["action"], "reward": torch.ones(4, 1)}
            return TensorDict(**entries, terminated=torch.zeros(4, 1, dtype=torch.bool), batch_size=[4])

        def _set_seed(self, seed):
            pass

    scaling = ActionScaling(in_keys=["action"])
    env = TransformedEnv(Fixed(), scaling)
    data = env.rollout(5)
    assert (data["next", "observation"][..., 1] == 1).all()
    assert data["next", "observation"].isfinite().all()
    raw = Fixed().rollout(5)
    unit = scaling.forward(raw)["action"]
    torch.testing.assert_close(unit[..., 0], raw["action"][..., 0] - 1)
    assert (unit[..., 1] == 0).all()


def test_target_returns_fall_by_each_reward_and_begin_again():
    env = TransformedEnv(CartPoleEnv([3], seed=0), Compose(StepCounter(4), TargetReturn(10.0)))
    data = env.rollout(9, break_when_any_done=False)
    step = torch.arange(9).expand(3, 9)[..., None] % 4
    assert (data["target_return"] == 10 - step).all()
    assert (data["next", "target_return"] == 9 - step).all()
    constant = TransformedEnv(CartPoleEnv([3], seed=0), TargetReturn(7.0, mode="constant", out_keys=["goal"]))
    assert (constant.rollout(5)["next", "goal"] == 7).all()
    with pytest.raises(ArgumentError, match="mode must be 'reduce' or 'constant'"):
        TargetReturn(1.0, "half")


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_positive_dimensions_count_after_the_batch_of_the_environment(batch):
    def shapes(sign):
        chain = Compose(
            UnsqueezeTransform(0 if sign else -2, ["observation"], None, ["action"], allow_positive_dim=sign),
            FlattenAction(0 if sign else -2, 1 if sign else -1, allow_positive_dim=sign),
            UnsqueezeTransform(2 if sign else -1, ["observation"], ["wide"], allow_positive_dim=sign),
            FlattenObservation(0 if sign else -3, 1 if sign else -2, ["wide"], ["flat"], allow_positive_dim=sign),
            SqueezeTransform(0 if sign else -2, ["observation"], allow_positive_dim=sign),
        )
        env = TransformedEnv(PendulumEnv(batch), chain)
        data = env.rollout(2)
        return {str(key): data[key].shape for key in data.keys(True, True)}, env.observation_spec, env.action_spec

    assert shapes(True) == shapes(False)


def test_positive_dimensions_without_an_environment_are_those_of_the_tensor():
    td = TensorDict(x=torch.zeros(2, 1, 4), y=torch.zeros(2, 1, 4), batch_size=[2])
    SqueezeTransform(1, ["x"], allow_positive_dim=True)(td)
    UnsqueezeTransform(1, ["y"], allow_positive_dim=True)(td)
    assert (td["x"].shape, td["y"].shape) == ((2, 4), (2, 1, 1, 4))


@pytest.mark.parametrize("hook", ["_call", "_reset", "_step", "_inv"])
def test_the_hooks_of_a_chain_are_those_of_its_transforms_in_order(hook):
    calls = []

    class Spy(Transform):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def _note(self, *entries):
            calls.append(self.name)
            return entries[-1]

        _call = _step = _inv = _note

        def _reset(self, root, mask=None):
            return self._note(mask, root)

    td = TensorDict(x=torch.zeros(2))
    assert getattr(Compose(Spy("a"), Spy("b")), hook)(*[td] * (2 if hook == "_step" else 1)) is td
    assert calls == (["b", "a"] if hook == "_inv" else ["a", "b"])


def test_clipped_actions_have_no_bounds_and_have_the_effect_of_the_bound():
    env = TransformedEnv(PendulumEnv(seed=0), ActionClipping())
    assert type(env.action_spec) is Unbounded
    start, plain = env.reset(), PendulumEnv(seed=0)
    plain.reset()
    start["action"] = torch.tensor([5.0])
    beyond = env.step(start.clone())
    start["action"] = torch.tensor([2.0])
    assert torch.equal(beyond["next", "observation"], plain.step(start)["next", "observation"])
    assert beyond["action"].item() == 5.0


def test_action_clipping_names_an_action_without_bounds():
    with pytest.raises(SpecError, match=r"clips bounded floats, and 'action' is int64"):
        TransformedEnv(CartPoleEnv(categorical_action_encoding=True), ActionClipping())
    with pytest.raises(ArgumentError, match="clips one action"):
        ActionClipping(["a", "b"])


def test_observation_indices_select_elements_in_their_order():
    env, plain = TransformedEnv(CartPoleEnv([2], seed=0), ObservationIndices([2, 0])), CartPoleEnv([2], seed=0)
    assert torch.equal(env.reset()["observation"], plain.reset()["observation"][:, [2, 0]])
    high = plain.observation_spec["observation"].space.high
    assert torch.equal(env.observation_spec["observation"].space.high, high[:, [2, 0]])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(lambda: ObservationIndices([-1]), ArgumentError, "must be at least 0, got -1", id="negative"),
        pytest.param(
            lambda: TransformedEnv(CartPoleEnv(), ObservationIndices([4])), SpecError, "4 elements", id="too-large"
        ),
        pytest.param(
            lambda: TransformedEnv(TransformedEnv(CartPoleEnv(), UnsqueezeTransform(-1)), ObservationIndices([0])),
            SpecError,
            r"a vector, got Bounded \[4, 1\]",
            id="matrix",
        ),
    ],
)
def test_observation_indices_need_a_vector_that_has_them(make, error, message):
    with pytest.raises(error, match=message):
        make()


class Teams(Pair):
    """Two groups, of two agents and of one, with a reward of each agent and one end of the episode for all."""

    def __init__(self):
        super().__init__()
        self.reward_spec = Composite(a={"reward": Unbounded((2, 1))}, b={"reward": Unbounded((1, 1))})
        self.done_spec = Categorical(2, shape=(1,), dtype=torch.bool)

    def _step(self, td):
        a = TensorDict(x=torch.ones(1), reward=torch.tensor([[1.0], [2.0]]))
        b = TensorDict(x=torch.ones(1), reward=torch.tensor([[6.0]]))
        return TensorDict(a=a, b=b, done=torch.tensor([False]))

    def _set_seed(self, seed):
        pass


def test_the_reward_of_a_team_is_the_mean_over_its_agents():
    keys = [("a", "reward"), ("b", "reward")]
    data = TransformedEnv(Teams(), Compose(TeamReward(keys), TeamReward(keys[:1], "first"))).rollout(2)
    assert data["next", "reward"].tolist() == [[3.0], [3.0]]
    assert data["next", "first"].tolist() == [[1.5], [1.5]]
    assert data["next", "a", "reward"].shape == (2, 2, 1)
    again = TeamReward(keys).forward(data.exclude(("next", "reward")))
    assert torch.equal(again["next", "reward"], data["next", "reward"])
    check_transform(TeamReward(keys), wrap=lambda t: TransformedEnv(Teams(), t))


def test_the_reward_of_a_team_needs_rewards_of_agents():
    with pytest.raises(ArgumentError, match="at least one group"):
        TeamReward([])
    with pytest.raises(SpecError, match=r"reads rewards \[n_agents, 1\], and \('a', 'reward'\) is \[1\]"):
        TransformedEnv(Pair(), TeamReward([("a", "reward")]))


class Reporting(LeafEnvBase):
    """Success as a simulator reports it, at the third step."""

    def __init__(self, success, rewards=1):
        super().__init__()
        self.success = success
        self.observation_spec = Composite(success=Unbounded(success.shape, dtype=success.dtype))
        self.action_spec, self.reward_spec = Bounded(-1, 1, (1,)), Unbounded((rewards,))

    def _reset_leaves(self, mask):
        self.count = 0
        return {"success": torch.zeros_like(self.success)}

    def _step_leaves(self, root):
        self.count += 1
        success = self.success if self.count == 3 else torch.zeros_like(self.success)
        return {"success": success, "reward": -torch.ones(self.full_reward_spec["reward"].shape)}

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize("success", [torch.tensor([True]), torch.tensor([1]), torch.tensor(1.0)])
def test_a_success_is_reported_as_a_flag_or_a_number(success):
    env = TransformedEnv(Reporting(success), SuccessReward())
    assert env.rollout(4)["next", "reward"].flatten().tolist() == [0, 0, 1, 0]


def test_one_flag_for_several_rewards_is_refused():
    with pytest.raises(SpecError, match=r"one flag for each reward; 'success' is \[1\], 'reward' \[2\]"):
        TransformedEnv(Reporting(torch.tensor([True]), 2), SuccessReward()).rollout(2)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RewardScaling(loc=NAN, scale=1.0),
        lambda: RewardScaling(loc=0.0, scale=torch.tensor([1.0, INF])),
        lambda: RewardScaling(loc="a", scale=1.0),
        lambda: RewardScaling(loc=0.0, scale=0.0, standard_normal=True),
        lambda: ObservationNorm(loc=NAN, scale=1.0),
        lambda: ObservationNorm(loc=0.0, scale=1.0, eps=0.0),
        lambda: RewardNorm(clip=NAN),
        lambda: RewardNorm(eps=0.0),
        lambda: VecNorm(eps=NAN),
        lambda: TargetReturn(NAN),
        lambda: RNDTransform(torch.nn.Linear(3, 2), torch.nn.Linear(3, 2), reward_clip=NAN),
        lambda: ClipTransform(["observation"], low=NAN),
        lambda: ClipTransform(["observation"], low="a", high=1.0),
        lambda: ActionDiscretizer(2.5),
        lambda: ActionDiscretizer("a"),
        lambda: DTypeCastTransform("float32", torch.float64),
        lambda: RenameTransform(["a", "b"], ["c", "c"]),
        lambda: RenameTransform([], [], ["a", "a"], ["b", "c"]),
    ],
)
def test_a_constructor_rejects_what_its_methods_cannot_use(make):
    with pytest.raises(ArgumentError):
        make()


def test_a_limit_may_be_infinite():
    td = ClipTransform(["observation"], low=-INF, high=1.0)(TensorDict(observation=torch.tensor([-9.0, 9.0])))
    assert td["observation"].tolist() == [-9.0, 1.0]
