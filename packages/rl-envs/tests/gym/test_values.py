"""Values of a simulator are compared with its space before they are converted."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as S

from rl.core.errors import RLError, SpecError, WorkerError
from rl.core.specs import Bounded, Unbounded
from rl.envs import (
    ActionScaling,
    AsyncEnvPool,
    GymWrapper,
    ParallelEnv,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

# one space with two million choices is encoded, without steps of an environment
from rl.envs.gym._spaces import places


class Sim(gym.Env):
    """Returns what it is given."""

    def __init__(self, space, value, first=None, reward=1.0, ends=(False, False), acts=None):
        self.observation_space, self.action_space = space, S.Discrete(2) if acts is None else acts
        self.value, self.first, self.reward, self.ends = value, space.sample() if first is None else first, reward, ends
        self.acts = []

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, action):
        self.acts.append(action)
        return self.value, self.reward, *self.ends, {}


IMAGE = S.Box(0, 255, (2, 2), np.uint8)
WRONG = {
    "float-image": (IMAGE, np.full((2, 2), 0.5, np.float32), "0.5, which it cannot hold"),
    "above-uint8": (IMAGE, np.full((2, 2), 300), "300, which it cannot hold"),
    "below-uint8": (IMAGE, np.full((2, 2), -1), "-1, which it cannot hold"),
    "nothing": (S.Box(-1, 1, (2,)), None, "expected float32, got object: .*None"),
    "nothing-inside": (S.Box(-1, 1, (2,)), [None, 1.0], "got object"),
    "text": (S.Box(-1, 1, (2,)), ["1", "2"], "got <U1"),
    "ragged": (S.Box(-1, 1, (2,)), [[1.0], [1.0, 2.0]], "inhomogeneous"),
    "choice-below": (S.Discrete(3), -1, "integers from 0 to 2, got -1"),
    "choice-above": (S.Discrete(3, start=5), 8, "integers from 5 to 7, got 8"),
    "choice-between": (S.Discrete(3), 0.7, "0.7, which it cannot hold"),
    "choices": (S.MultiDiscrete([2, 3]), [1, 3], r"integers from \[0 0\] to \[1 2\], got 3"),
    "bits": (S.MultiBinary(2), [0, 2], "integers from 0 to 1, got 2"),
    "nan-choice": (S.Discrete(3), float("nan"), "nan, which it cannot hold"),
}


@pytest.mark.parametrize("form", ["one", "list", "dict", "integers"])
@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_the_space_cannot_hold_is_refused_by_key(name, form):
    space, value, reason = WRONG[name]
    key = "observation"
    if form == "dict":
        space, value, key = S.Dict(inner=S.Dict(x=space)), {"inner": {"x": value}}, r"\('inner', 'x'\)"
    sim = Sim(space, value)
    env = GymWrapper([sim] if form == "list" else sim, categorical_action_encoding=form == "integers")
    td = env.rand_action(env.reset())
    with pytest.raises(SpecError, match=f"{key}'? of the simulator does not fit .*{reason}"):
        env.step(td)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (IMAGE, [[0, 1], [2, 255]], [[0, 1], [2, 255]]),
        (IMAGE, np.array([[0.0, 1.0], [2.0, 255.0]]), [[0, 1], [2, 255]]),
        (S.Box(-1, 1, (2,)), np.array([0.5, 1]), [0.5, 1.0]),
        (S.Box(-1, 1, (2,)), (True, 0), [1.0, 0.0]),
        (S.Discrete(3, start=5), np.int32(7), [0, 0, 1]),
        (S.Discrete(3), np.float64(1.0), [0, 1, 0]),
        (S.Discrete(2), True, [0, 1]),
        (S.Discrete(4, start=-2), np.int8(1), [0, 0, 0, 1]),
        (S.Discrete(4, start=-2), np.uint8(1), [0, 0, 0, 1]),
        (S.MultiBinary(2), np.array([True, False]), [1, 0]),
        (S.MultiDiscrete([2, 3], start=[1, 0]), [1, 2], [1, 0, 0, 0, 1]),
    ],
)
def test_values_that_only_have_another_type_are_converted(space, value, expected):
    sim = Sim(space, value)
    for env in (GymWrapper(sim), GymWrapper([sim])):
        out = env.step(env.rand_action(env.reset()))["next", "observation"]
        assert out.reshape(env.observation_spec_unbatched["observation"].shape).tolist() == expected


@pytest.mark.parametrize("form", ["one", "list"])
@pytest.mark.parametrize(
    "outcome", [{"reward": None}, {"ends": (None, False)}, {"ends": (False, None)}], ids=["reward", "end", "cut"]
)
def test_a_missing_reward_or_flag_is_refused(outcome, form):
    sim = Sim(S.Box(-1, 1, (2,)), np.zeros(2, np.float32), **outcome)
    env = GymWrapper([sim] if form == "list" else sim)
    with pytest.raises(SpecError, match=r"step of Sim returned .*=None.*return a number and two booleans"):
        env.step(env.rand_action(env.reset()))


@pytest.mark.parametrize("form", ["one", "list"])
@pytest.mark.parametrize(
    "outcome",
    [
        {"reward": "1"},
        {"reward": 1j},
        {"reward": {"team": 1.0}},
        {"reward": [[1.0], [1.0, 2.0]]},
        {"ends": ("False", False)},
        {"ends": (False, np.array([False, True]))},
        {"ends": ([], False)},
    ],
    ids=["text", "complex", "dict", "ragged", "text-as-flag", "two-flags", "no-flag"],
)
def test_a_reward_or_flag_without_a_number_is_rejected(outcome, form):
    sim = Sim(S.Box(-1, 1, (2,)), np.zeros(2, np.float32), **outcome)
    env = GymWrapper([sim] if form == "list" else sim)
    with pytest.raises(SpecError, match=r"step of Sim returned .*return a number and two booleans"):
        env.step(env.rand_action(env.reset()))


@pytest.mark.parametrize("outcome", [None, 3, "abcde", np.zeros(5)])
def test_a_step_that_returns_no_five_values_is_named(outcome):
    sim = Sim(S.Box(-1, 1, (2,)), np.zeros(2, np.float32))
    sim.step = lambda action: outcome
    env = GymWrapper(sim)
    with pytest.raises(SpecError, match=f"step of Sim returned one {type(outcome).__name__}: Gymnasium needs"):
        env.step(env.rand_action(env.reset()))


@pytest.mark.parametrize("form", ["one", "list"])
def test_flags_and_rewards_that_are_arrays_of_one(form):
    ends = np.array([True]), np.array([False])
    sim = Sim(S.Box(-1, 1, (2,)), np.zeros(2, np.float32), reward=np.array([2.0]), ends=ends)
    env = GymWrapper([sim] if form == "list" else sim)
    out = env.step(env.rand_action(env.reset()))["next"]
    assert [out[name].flatten().tolist() for name in ("reward", "done", "terminated", "truncated")] == [
        [2.0],
        [True],
        [True],
        [False],
    ]
    assert out["done"].shape == (*env.batch_size, 1)


BOTH = S.Dict(a=S.Box(-1, 1, (1,)), b=S.Box(-1, 1, (1,)))
LACKING = {
    "flat": (BOTH, lambda part: {"a": part}, r"'b', it has \['a'\]; its space has \['a', 'b'\]"),
    "deep": (
        S.Dict(x=BOTH),
        lambda part: {"x": {"a": part}},
        r"\('x', 'b'\), it has \['a'\]; its space has \['a', 'b'\]",
    ),
    "tuple": (S.Tuple(BOTH.spaces.values()), lambda part: (part,), r"1, it has 1 value; its space has \[0, 1\]"),
    "array": (BOTH, lambda part: part, r"'a', it is of type ndarray; its space has \['a', 'b'\]"),
    "none": (
        S.Dict(x=BOTH),
        lambda _: {"x": None},
        r"\('x', 'a'\), it is of type NoneType; its space has \['a', 'b'\]",
    ),
}


@pytest.mark.parametrize("form", ["one", "list"])
@pytest.mark.parametrize("when", ["reset", "reset of some", "step"])
@pytest.mark.parametrize("case", LACKING)
def test_an_observation_that_lacks_an_entry_of_its_space_is_refused_by_key(case, when, form):
    space, lacking, message = LACKING[case]
    good, bad = space.sample(), lacking(np.zeros(1, np.float32))
    sim = Sim(space, bad if when == "step" else good, bad if when == "reset" else good)
    env = GymWrapper(sim if form == "one" else [sim])

    def use():
        root = env.reset()
        sim.first = bad
        if when == "step":
            env.step(env.rand_action(root))
        env.reset(root.set("_reset", torch.ones_like(root["done"])))

    with pytest.raises(SpecError, match=rf"the observation of Sim lacks {message}"):
        use()


class Lossy(gym.vector.SyncVectorEnv):
    def step(self, actions):
        seen, *rest = super().step(actions)
        return {"a": seen["a"]}, *rest


def test_a_vector_environment_that_lacks_an_entry_of_its_space_is_refused_by_key():
    made = [lambda: Sim(BOTH, BOTH.sample())] * 2
    env = GymWrapper(Lossy(made, autoreset_mode=gym.vector.AutoresetMode.DISABLED))
    with pytest.raises(SpecError, match=rf"the observation of Lossy lacks {LACKING['flat'][2]}"):
        env.step(env.rand_action(env.reset()))


class OldStep(Sim):
    def step(self, action):
        return self.value, 1.0, False, {}


class OldReset(Sim):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class WithoutSeed(Sim):
    def reset(self):
        return np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (OldStep, "step of OldStep returned 4 values: Gymnasium needs the 5 values"),
        (OldReset, "reset of OldReset returned one ndarray: Gymnasium needs the 2 values"),
        (WithoutSeed, r"reset of WithoutSeed takes no seed .*Gymnasium needs reset\(\*, seed=None, options=None\)"),
    ],
)
def test_environments_of_the_old_interface_are_told_what_is_missing(cls, message):
    env = GymWrapper(cls(S.Box(-1, 1, (2,)), np.zeros(2, np.float32)))
    with pytest.raises(SpecError, match=message):
        env.step(env.rand_action(env.reset()))


def test_a_large_choice_takes_memory_of_its_size():
    n = 2_000_000  # n * n numbers would be 32 TB
    (place,) = places(S.Discrete(n), "x", categorical=False, under_name=False)
    out = place.encode([n - 1, 3])
    assert out.shape == (2, n)
    assert out.sum() == 2
    assert out[0, n - 1] == out[1, 3] == 1


@pytest.mark.parametrize(("dtype", "ours"), [("uint16", torch.int32), ("uint32", torch.int64), ("uint64", torch.int64)])
@pytest.mark.parametrize("form", ["one", "list"])
def test_boxes_of_wide_unsigned_integers(dtype, ours, form):
    box = S.Box(0, 60_000, (3,), np.dtype(dtype).type)
    sim = Sim(box, np.array([0, 7, 60_000], dtype), acts=box)
    env = GymWrapper([sim] if form == "list" else sim)
    td = env.step(env.rand_action(env.reset()))
    assert isinstance(env.observation_spec_unbatched["observation"], Bounded)
    assert td["next", "observation"].dtype == ours
    assert td["next", "observation"].flatten().tolist() == [0, 7, 60_000]
    assert sim.acts[0].dtype == box.dtype
    assert box.contains(sim.acts[0])
    assert td["action"].flatten().tolist() == sim.acts[0].tolist()


@pytest.mark.parametrize("form", ["one", "list"])
def test_boxes_without_elements_keep_their_shape_and_bounds(form):
    seen, acts = S.Dict(none=S.Box(-1, 1, (0,)), rows=S.Box(0, 9, (0, 3), np.uint8)), S.Box(-1, 1, (0,))
    sim = Sim(seen, seen.sample(), acts=acts)
    env = TransformedEnv(GymWrapper([sim] if form == "list" else sim), ActionScaling())
    data = env.rollout(3)
    assert data["next", "none"].shape == (*env.batch_size, 3, 0)
    assert data["rows"].shape == (*env.batch_size, 3, 0, 3)
    assert sim.acts[0].shape == (0,)
    assert isinstance(env.base_env.observation_spec_unbatched["none"], Bounded)


def test_integers_that_torch_cannot_hold_are_refused():
    with pytest.raises(SpecError, match=r"exceeds int64.*declare lower bounds"):
        GymWrapper(Sim(S.Box(0, 2**64 - 1, (1,), np.uint64), 0))
    with pytest.raises(SpecError, match="torch has no dtype for"):
        GymWrapper(Sim(S.Box(-1, 1, (1,), np.longdouble), 0, first=0))


class Start(gym.Env):
    """Begins where the options say."""

    observation_space, action_space = S.Box(0, 9, (1,)), S.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = (options or {}).get("at", 0) + 0.5 * self.np_random.random()
        return np.array([self.place], np.float32), {}

    def step(self, action):
        return np.array([self.place], np.float32), 0.0, False, False, {}


def starts(form):
    if form == "vector":
        return GymWrapper(gym.vector.SyncVectorEnv([Start, Start], autoreset_mode=gym.vector.AutoresetMode.DISABLED))
    env = GymWrapper([Start(), Start()] if form == "list" else Start())
    return TransformedEnv(TransformedEnv(env, StepCounter()), RewardSum()) if form == "transformed" else env


def start():
    return starts("one")


BATCHES = {
    "serial": lambda: SerialEnv(2, start),
    "processes": lambda: ParallelEnv(2, start, processes=2),
    "two in a process": lambda: ParallelEnv(2, start, processes=1),
    "messages": lambda: ParallelEnv(2, start, processes=1, shared_memory=False),
    "view": lambda: ParallelEnv(3, start, processes=2)[1:],
    "pool": lambda: AsyncEnvPool([start] * 2),
    "threads": lambda: AsyncEnvPool([start] * 2, backend="threading"),
    "pool, messages": lambda: AsyncEnvPool([start] * 2, shared_memory=False),
}


@pytest.mark.parametrize("form", ["one", "list", "transformed", "vector", *BATCHES])
def test_options_are_those_of_one_reset(form):
    env = BATCHES[form]() if form in BATCHES else starts(form)
    root = env.reset(options={"at": 5})
    assert (root["observation"] >= 5).all()
    assert torch.equal(env.step(env.rand_action(root))["next", "observation"], root["observation"])
    if env.batch_size:
        mask = torch.tensor([[True], [False]])
        root = env.reset(root.set("_reset", mask), options={"at": 7})
        assert root["observation"].int().flatten().tolist() == [7, 5]
        root = env.reset(root.set("_reset", ~mask))
        assert root["observation"].int().flatten().tolist() == [7, 0]
    assert (env.reset()["observation"] < 1).all()
    getattr(env, "_parent", env).close()


def test_a_state_repeats_the_options_of_its_episode():
    env, other = starts("one"), starts("one")
    env.set_seed(3)
    root = env.reset(options={"at": 5, "more": (1, np.zeros(2))})
    root = env.step_and_maybe_reset(env.rand_action(root))[1]
    assert other.load_state_dict(env.state_dict())
    td = root.clone().set("action", env.action_spec.rand())
    assert torch.equal(other.step(td.clone())["next", "observation"], env.step(td)["next", "observation"])
    env.reset(options={"at": 5, "call": print})
    assert env.state_dict() == {"restorable": False}


def test_an_environment_without_options_says_so():
    with pytest.raises(RLError, match=r"PendulumEnv.reset takes no options"):
        PendulumEnv().reset(options={"at": 1})
    with pytest.raises(RLError, match=r"PendulumEnv.reset takes no options"):
        SerialEnv(2, PendulumEnv).reset(options={"at": 1})
    env = ParallelEnv(2, PendulumEnv, processes=1)
    with pytest.raises(WorkerError, match=r"PendulumEnv.reset takes no options"):
        env.reset(options={"at": 1})
    assert env.reset()["th"].shape == (2,)
    env.close()


@pytest.mark.parametrize("where", ["observation", "nested", "action", "info"])
def test_private_names_are_refused_at_once(where):
    box = S.Box(-1, 1, (1,))
    seen = (
        S.Dict(x=box, _memory=box) if where == "observation" else S.Dict(x=S.Dict(_m=box)) if where == "nested" else box
    )
    sim = Sim(seen, seen.sample(), acts=S.Dict(_a=box) if where == "action" else None)
    infos = {"_note": Unbounded(1)} if where == "info" else None
    with pytest.raises(SpecError, match="names that begin with '_' are private, so that collectors would drop it"):
        GymWrapper(sim, info_keys=infos)
