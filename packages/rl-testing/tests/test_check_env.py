"""Each fault of an environment is named by check_env, or reported as not exercised."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import CheckError, NotExercisedWarning
from rl.core.keys import leaf_keys
from rl.core.mdp import FLAGS, merge_reset, reset_masks
from rl.core.specs import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, Unbounded
from rl.testing import CountingEnv, EnvRow, check_env, check_env_specs, examine_env, group_faults


class WrongShape(CountingEnv):
    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(3))


class WrongKey(CountingEnv):
    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observations=Unbounded(1))


class Forgotten(CountingEnv):
    """Writes an entry of which no spec tells."""

    def step_leaves(self, root):
        return super().step_leaves(root) | {"extra": torch.zeros(1)}


class Contradiction(CountingEnv):
    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"done": ~out["done"]}


class Overwriting(CountingEnv):
    """Its reset writes into the tensors of the last step."""

    def reset(self, tensordict=None):
        if tensordict is not None and tensordict.get("_reset", None) is not None:
            tensordict["observation"].masked_fill_(tensordict["_reset"], 0.0)
            tensordict = tensordict.clone()
        return super().reset(tensordict)


class Careless(CountingEnv):
    """Resets everything, whatever was asked for."""

    def reset(self, tensordict=None):
        out = super().reset(tensordict)
        return out.set("observation", torch.zeros_like(out["observation"]))


class Unseeded(CountingEnv):
    def reset_leaves(self, current=None, mask=None):
        out = super().reset_leaves(current, mask)
        return out | {"observation": out["observation"] + torch.rand(())}


class OwnReturn(CountingEnv):
    def step(self, tensordict):
        return super().step(tensordict.copy())


class Diverging(CountingEnv):
    """Its leaf form pays more."""

    def lowered(self):
        other = CountingEnv(self._length, tuple(self.batch_size))
        plain = other.step_leaves
        other.step_leaves = lambda root: (out := plain(root)) | {"reward": out["reward"] + 1}
        return other


class Sharing(CountingEnv):
    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"terminated": out["done"]}


class NoSeedReturned(CountingEnv):
    def set_seed(self, seed):
        return None


class CutAtReset(CountingEnv):
    def reset_leaves(self, current=None, mask=None):
        fresh = super().reset_leaves(current, mask)
        return fresh | {"truncated": torch.ones_like(fresh["done"])}


class RewardAtRoot(CountingEnv):
    def step_and_maybe_reset(self, tensordict):
        stepped, root = super().step_and_maybe_reset(tensordict)
        return stepped, root.set("reward", torch.zeros(*self.batch_size, 1))


class ClosesOnce(CountingEnv):
    def close(self):
        assert not self.closed
        super().close()


class NotANumber(CountingEnv):
    """NaN in the middle of an episode."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"observation": torch.where(out["observation"] == 5, torch.nan, out["observation"])}


class NotANumberAtTheEnd(CountingEnv):
    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"observation": torch.where(out["done"], torch.nan, out["observation"])}


class InfiniteReward(CountingEnv):
    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"reward": torch.where(out["done"], torch.inf, out["reward"])}


class Outside(CountingEnv):
    """Leaves its bounds after some steps."""

    def __init__(self, length=9, high=6.0):
        super().__init__(length)
        self.observation_spec = Composite(observation=Bounded(0.0, high, shape=(1,)))


class DoubleRewardAtTheEnd(CountingEnv):
    def step(self, tensordict):
        out = super().step(tensordict)
        if bool(out["next", "done"].any()):
            out["next", "reward"] = out["next", "reward"].double()
        return out


class FlatReward(CountingEnv):
    """Its reward broadcasts with values."""

    def __init__(self):
        super().__init__(3, (2,))
        self.full_reward_spec = Composite(reward=Unbounded((2,)), shape=(2,))


class ResetsInside(CountingEnv):
    """Its step returns the first observation of the following episode."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"observation": torch.where(out["done"], 0.0, out["observation"])}


class Seeded(CountingEnv):
    """Starts at random, from a generator of its own; its place is hidden."""

    def __init__(self, length=3, batch_size=()):
        super().__init__(length, batch_size)
        self.generator = torch.Generator().manual_seed(0)

    def start(self):
        return torch.rand((*self.batch_size, 1), generator=self.generator)

    def reset_leaves(self, current=None, mask=None):
        out = super().reset_leaves(current, mask)
        start = self.start()
        return out | {"observation": start if mask is None else torch.where(mask, start, out["observation"])}

    def set_seed(self, seed):
        self.generator.manual_seed(seed)
        return seed + 1

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class ResetsTwice(Seeded):
    """Its step draws the start of an episode that the reset then draws again."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"observation": torch.where(out["done"], self.start(), out["observation"])}


class DeafToSeeds(Seeded):
    def set_seed(self, seed):
        return seed + 1


class ForgetsItsGenerator(Seeded):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class OddState(Seeded):
    def state_dict(self):
        return {"generator": self.generator}


class NotRestorable(Seeded):
    def load_state_dict(self, state):
        return False


class Buffered(CountingEnv):
    """Its reset returns the same tensor each time."""

    def reset_leaves(self, current=None, mask=None):
        out = super().reset_leaves(current, mask)
        if mask is None:
            self.buffer = getattr(self, "buffer", out["observation"])
            out["observation"] = self.buffer
        return out


class StepsIntoItsReset(CountingEnv):
    """Each reset overwrites what the step before the last one returned."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        self.held = [*getattr(self, "held", []), out["observation"]]
        if len(self.held) > 2:
            self.held[-3].fill_(-1)
        return out


class TruncatesInstead(CountingEnv):
    """Reports its terminal states as truncated."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"truncated": out["terminated"], "terminated": torch.zeros_like(out["terminated"])}


class StepsAtTheRoot(CountingEnv):
    def step(self, tensordict):
        out = super().step(tensordict)
        return out.set("reward", torch.zeros(1))


class NotMaybeReset(CountingEnv):
    """Never resets by itself."""

    def step_and_maybe_reset(self, tensordict):
        self.step(tensordict)
        return tensordict, tensordict["next"].exclude("reward")


class LeavesTheMask(CountingEnv):
    def reset(self, tensordict=None):
        out = super().reset(tensordict)
        return out.set("_reset", torch.ones(1, dtype=torch.bool)) if tensordict is not None else out


class BothEnds(Seeded):
    """Half of its episodes are terminated, the others truncated."""

    def step_leaves(self, root):
        out = super().step_leaves(root)
        cut = out["done"] & (out["observation"] % 1 > 0.5)
        return out | {"truncated": cut, "terminated": out["done"] & ~cut}


class AlwaysSeedZero(Seeded):
    def set_seed(self, seed):
        return super().set_seed(0)


class HiddenClock(CountingEnv):
    """Its time limit is counted outside the TensorDict; `careless` resets zero the clock of all elements."""

    def __init__(self, limit=6, careless=True, noise=False):
        super().__init__(1000, (3,))
        self.limit, self.careless, self.noise = limit, careless, noise
        self.clock = torch.zeros(3, 1)
        self.generator = torch.Generator()
        self.observation_spec = Composite(observation=Unbounded((3, 1)), shape=(3,))

    def lowered(self):
        return None

    def set_seed(self, seed):
        self.seed = seed  # as in Gymnasium, it counts from the following full reset on
        return seed + 1

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        return False

    def reset_leaves(self, current=None, mask=None):
        if mask is None:
            self.generator.manual_seed(self.seed if hasattr(self, "seed") else 0)
        torch.rand((), generator=self.generator)
        again = torch.ones(3, 1, dtype=torch.bool) if mask is None or self.careless else mask
        self.clock = torch.where(again, 0.0, self.clock)
        return super().reset_leaves(current, mask)

    def step_leaves(self, root):
        out = super().step_leaves(root)
        self.clock = self.clock + 1
        if self.noise:
            out["reward"] = torch.rand((3, 1), generator=self.generator)
        over = self.clock >= self.limit
        return out | {"done": over, "truncated": over.clone()}


class Pair:
    """Two agents in each element that count their steps; agent i ends after 3 + i of them, and is reset alone.

    Args:
        fault: ``clock``, of which only ends tell, or ``place``: of all where one is reset; ``lost``: ends show a reset.
        root: whether the root has flags, too, by which elements are reset.
    """

    device = torch.device("cpu")

    def __init__(self, fault="", *, root=False, batch_size=(2,)):
        self.batch_size, self.fault, self.root = torch.Size(batch_size), fault, root
        self.shape = (*batch_size, 2, 1)
        flag = Binary(shape=self.shape, dtype=torch.bool)
        flags = Composite(dict.fromkeys(FLAGS, flag), shape=batch_size)
        own = dict.fromkeys(FLAGS, Binary(shape=(*batch_size, 1), dtype=torch.bool)) if root else {}
        self.observation_spec = Composite(
            agents=Composite(place=Unbounded(self.shape), shape=batch_size), shape=batch_size
        )
        self.full_action_spec = Composite(
            agents=Composite(action=Unbounded(self.shape), shape=batch_size), shape=batch_size
        )
        self.full_reward_spec = Composite(
            agents=Composite(reward=Unbounded(self.shape), shape=batch_size), shape=batch_size
        )
        self.full_done_spec = Composite(agents=flags, **own, shape=batch_size)
        self.clock = torch.zeros(self.shape)

    def flagged(self, place, over, **more):
        """Entries of a reset or a step."""
        flags = {"done": over, "terminated": over.clone(), "truncated": torch.zeros_like(over)}
        own = {name: flag.all(-2) for name, flag in flags.items()} if self.root else {}
        agents = TensorDict({"place": place, **flags, **more}, self.batch_size)
        return TensorDict({"agents": agents, **own}, self.batch_size)

    def reset(self, tensordict=None):
        fresh = self.flagged(torch.zeros(self.shape), torch.zeros(self.shape, dtype=torch.bool))
        masks = {} if tensordict is None else reset_masks(tensordict, leaf_keys(self.full_done_spec))
        if not masks:
            self.clock = torch.zeros(self.shape)
            return fresh
        ((level, mask),) = masks.items()
        mask = mask if level else mask.unsqueeze(-2).expand(self.shape)
        self.clock = torch.zeros(self.shape) if self.fault == "clock" else self.clock.masked_fill(mask, 0.0)
        old = {key: tensordict.get(key) for key in leaf_keys(fresh)}
        new = merge_reset(old, {key: fresh.get(key) for key in leaf_keys(fresh)}, masks)
        out = tensordict.exclude("_reset", ("agents", "_reset"))
        for key, value in new.items():
            out.set(key, value)
        return out.set(("agents", "place"), torch.zeros(self.shape)) if self.fault == "place" else out

    def step(self, tensordict):
        self.clock = self.clock + 1
        over = self.clock >= torch.tensor([[3.0], [4.0]])
        place = tensordict["agents", "place"] + 1
        place = torch.where(over, 0.0, place) if self.fault == "lost" else place
        return tensordict.set("next", self.flagged(place, over, reward=torch.ones(self.shape)))

    def step_and_maybe_reset(self, tensordict):
        stepped = self.step(tensordict)
        root = stepped["next"].exclude(("agents", "reward")).clone()
        level = () if self.root else ("agents",)
        done = root.get((*level, "done"))
        return stepped, self.reset(root.set((*level, "_reset"), done.clone())) if bool(done.any()) else root

    def set_seed(self, seed):
        return seed + 1

    def close(self):
        pass


@pytest.mark.parametrize("root", [False, True], ids=["group", "group and root"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("", None),
        ("clock", r"^partial reset: after a reset of element 0, .*done.* of another element is different"),
        ("place", r"^partial reset: the reset of marked elements .* changed \('agents', 'place'\) of others"),
        ("lost", "^last observation of an episode: .* the last one is lost"),
    ],
)
def test_resets_and_ends_of_agents_are_judged(fault, message, root):
    if message is not None:
        with pytest.raises(CheckError, match=message):
            check_env(lambda: Pair(fault, root=root))
        return
    with pytest.warns(NotExercisedWarning):
        report = check_env(lambda: Pair(root=root))
    assert not [one for one in report.not_exercised if one.startswith(("partial", "last"))]


ROLES = {"observation": "observation_spec", "action": "full_action_spec", "reward": "full_reward_spec"}


def flag(*shape):
    return Binary(shape=shape, dtype=torch.bool)


def group_specs(batch=(2,), level=("agents",), **leaves):
    """The specs of one group, at `level`, behind a batch."""
    specs = {name: Composite(shape=batch) for name in (*ROLES.values(), "full_done_spec")}
    for name, leaf in leaves.items():
        specs["full_done_spec" if name in FLAGS else ROLES.get(name, "observation_spec")][(*level, name)] = leaf
    return SimpleNamespace(batch_size=torch.Size(batch), **specs)


RIGHT = {"reward": Unbounded((2, 3, 1)), "done": flag(2, 3, 1), "mask": flag(2, 3), "action": Unbounded((2, 3, 4))}


@pytest.mark.parametrize(
    "leaves",
    [
        {},
        {"done": flag(2, 3, 1), "terminated": flag(2, 3, 1), "truncated": flag(2, 3, 1)},
        {"mask": Unbounded((2, 3, 1))},
        {"action": Categorical(5, shape=(2, 3))},
        {"action": OneHot(5, shape=(2, 3, 5))},
        {"action": MultiCategorical(torch.tensor([2, 3]), shape=(2, 3, 2))},
        {"action": torch.stack([Unbounded((2, 4)), Unbounded((2, 5)), Unbounded((2, 4))], 1)},
        {"reward": Unbounded((2, 1)), "done": flag(2, 1)},
        {"done": flag(2, 1), "terminated": flag(2, 1)},
        {"observation": Unbounded((2, 3, 8, 8)), "action_mask": flag(2, 3, 5)},
        {"reward": Unbounded((2, 3, 2)), "done": flag(2, 1)},
        {"reward": Unbounded((2, 4, 3, 1)), "done": flag(2, 4, 1)},
    ],
)
def test_groups_that_agree_have_no_fault(leaves):
    assert group_faults(group_specs(**{**RIGHT, **leaves})) == {}
    nested = group_specs(level=("teams", "red"), **{**RIGHT, **leaves})
    assert group_faults(nested) == {}


def test_entries_at_the_root_are_not_compared():
    root = group_specs((), (), reward=Unbounded((3, 1)), done=flag(1), action=Unbounded(4), mask=flag(2))
    assert group_faults(root) == {}


@pytest.mark.parametrize(
    ("name", "leaf", "got", "expected"),
    [
        ("done", flag(2, 2, 1), "[2, 2, 1]", "[2, 3, 1]"),
        ("terminated", flag(2, 1, 1), "[2, 1, 1]", "[2, 3, 1]"),
        ("truncated", flag(2, 3), "[2, 3]", "[2, 3, 1]"),
        ("mask", flag(2, 3, 1), "[2, 3, 1]", "[2, 3]"),
        ("mask", flag(2, 2), "[2, 2]", "[2, 3]"),
        ("observation", Unbounded((2, 2, 4)), "[2, 2, 4]", "[2, 3, ...]"),
        ("action_mask", flag(2, 5), "[2, 5]", "[2, 3, ...]"),
        ("action", Unbounded((2, 2, 4)), "[2, 2, 4]", "[2, 3, ...]"),
        ("action", Categorical(5, shape=(2,)), "[2]", "[2, 3, ...]"),
    ],
)
def test_a_group_that_contradicts_its_reward_has_a_fault(name, leaf, got, expected):
    fault = (
        f"the spec has shape {got}, expected {expected}, as ('agents', 'reward') is [2, 3, 1]; change one of the two"
        " specs"
    )
    assert group_faults(group_specs(**{**RIGHT, name: leaf})) == {("agents", name): fault}


def test_groups_are_compared_with_their_own_reward():
    specs = group_specs(**RIGHT)
    specs.full_reward_spec["single", "reward"] = Unbounded((2, 1))
    specs.full_done_spec["single", "done"] = flag(2, 1)
    specs.full_reward_spec["pair", "reward"] = Unbounded((2, 2, 1))
    specs.full_done_spec["pair", "done"] = flag(2, 3, 1)
    assert list(group_faults(specs)) == [("pair", "done")]


class OddGroups(Pair):
    """Its flags and actions are those of three agents, its reward is that of two."""

    def __init__(self):
        super().__init__()
        self.full_done_spec["agents"] = Composite(dict.fromkeys(FLAGS, flag(2, 3, 1)), shape=(2,))
        self.full_action_spec["agents", "action"] = Unbounded((2, 3, 1))


def test_contradictions_of_a_group_are_named_before_the_first_step():
    with pytest.raises(CheckError) as caught:
        check_env(OddGroups)
    *lines, last = str(caught.value).splitlines()[:4]
    rest = "as ('agents', 'reward') is [2, 2, 1]; change one of the two specs"
    for name, line in zip(FLAGS, lines, strict=True):
        assert line == f"spec of ('agents', '{name}'): the spec has shape [2, 3, 1], expected [2, 2, 1], {rest}"
    assert last == f"spec of ('agents', 'action'): the spec has shape [2, 3, 1], expected [2, 2, ...], {rest}"


class UnlikeItsTwin(CountingEnv):
    """Each instance starts at another count."""

    made = 0

    def __init__(self):
        super().__init__()
        UnlikeItsTwin.made += 1
        self.first = float(UnlikeItsTwin.made)

    def lowered(self):
        return None

    def reset_leaves(self, current=None, mask=None):
        out = super().reset_leaves(current, mask)
        return out | {"observation": torch.where(out["observation"] == 0, -self.first, out["observation"])}


class CrashesLater(CountingEnv):
    def step(self, tensordict):
        self.count = getattr(self, "count", 0) + 1
        return super().step(tensordict) if self.count < 20 else 1 / 0


class LowersToNothing(CountingEnv):
    def lowered(self):
        return object()


class Batchless(CountingEnv):
    def __init__(self):
        super().__init__(3, (2,))
        self.full_action_spec = Composite(action=self.action_spec)


LOST = "^last observation of an episode: .* the last one is lost"

FAULTS = [
    (WrongShape, r"^'observation': expected float32 \[3\], got float32 \[1\] \(at the reset\)\n.* \(WrongShape\)$"),
    (WrongKey, r"^'observations': expected float32 \[1\], got nothing \(is 'observation' it"),
    (Forgotten, r"^\('next', 'extra'\): expected nothing, got float32 \[1\]"),
    (
        lambda: NotANumber(9),
        r"^\('next', 'observation'\): expected numbers, got NaN at \(0,\) \(at step 5\) \(NotANumber",
    ),
    (NotANumberAtTheEnd, r"^\('next', 'observation'\): expected numbers, got NaN"),
    (InfiniteReward, r"^\('next', 'reward'\): expected numbers, got inf"),
    (Outside, r"^\('next', 'observation'\): expected .*6.*, got .*\[7.0\]"),
    (lambda: Outside(7), r"^\('next', 'observation'\): expected .*6.*, got .*\[7.0\]"),
    (DoubleRewardAtTheEnd, r"^\('next', 'reward'\): expected .*float32.*, got .*float64"),
    (FlatReward, r"^spec of 'reward': the reward has shape \[2\]; it must be \[2, 1\]"),
    (Contradiction, r"^done flags: done is not terminated \| truncated at step 1"),
    (
        CutAtReset,
        r"^done flags: done is not terminated \| truncated at the reset\nstart of an episode: .*'truncated' true",
    ),
    (Overwriting, r"^input of a reset: .*\nlast observation of an episode: .* overwrote 'observation' .* is lost"),
    (ResetsInside, LOST),
    (lambda: ResetsInside([4, 2, 3], (3,)), LOST),
    (ResetsTwice, LOST),
    (lambda: Careless([4, 2, 3], (3,)), "changed 'observation' of others"),
    (Unseeded, "^same seed: two runs with the same seed and actions differ in 'observation' at step 1"),
    (DeafToSeeds, "^same seed: two runs with the same seed and actions differ"),
    (AlwaysSeedZero, "^set_seed ignores its argument: seeds 0 to 16 yield the same run"),
    (HiddenClock, "^partial reset: after a reset of element 0, 'done' of another element is different"),
    (CrashesLater, r"^reset and steps: step 20 raised ZeroDivisionError: division by zero \(CrashesLater\)"),
    (LowersToNothing, "^lowered returned a object, which lacks batch_size, reset_leaves, step_leaves of LeafEnv"),
    (NoSeedReturned, "^set_seed: it must return the next seed"),
    (ForgetsItsGenerator, "^the state_dict is incomplete: after load_state_dict"),
    (OddState, "^state_dict holds a Generator"),
    (Buffered, "^reset reuses its buffer: two resets returned 'observation' in the same memory"),
    (StepsIntoItsReset, "^(step|reset) reuses its buffer: a later call overwrote what it returned: 'observation'"),
    (OwnReturn, "^result of a step: step must return its input"),
    (StepsAtTheRoot, "^input of a step: step 1 changed 'reward' of its input"),
    (NotMaybeReset, "^the root of the following step differs"),
    (LeavesTheMask, "^result of a reset: a reset left .'_reset'."),
    (Batchless, r"^full_action_spec: must be a Composite of the batch \[2\], got one of \[\]"),
    (Diverging, "^step and step_leaves differ: 'reward' differs"),
    (Sharing, "^'terminated' shares its memory with 'done'"),
    (RewardAtRoot, "left .'reward'. in the root of the following step"),
    (ClosesOnce, "^close, called a second time, raised AssertionError"),
    (UnlikeItsTwin, "^two environments of seed 0 start differently: 'observation' differs"),
]


DETERMINISTIC = "whether set_seed uses its argument: seeds 0 and 1 yield the same run, and nothing in it looks random"


def named(value):
    return getattr(value, "__name__", "").strip("<>")


@pytest.mark.parametrize(("make", "message"), FAULTS, ids=named)
def test_a_fault_is_named_reason_first(make, message):
    with pytest.raises(CheckError, match=message):
        check_env(make)


def test_a_terminal_state_reported_as_truncated_is_named_where_the_time_limit_is_known():
    with pytest.raises(CheckError, match=r"^a terminal state is reported as truncated: after .3. steps, .* 10"):
        check_env(TruncatesInstead, time_limit=10)
    with pytest.warns(NotExercisedWarning, match="as truncated: none in 20 .*, although the time limit is 10"):
        check_env(CountingEnv, steps=20, time_limit=10)
    unseen = ["ends reported as terminated: none in 200 random steps; pass `steps=`", DETERMINISTIC]
    assert check_env(TruncatesInstead, time_limit=3).not_exercised == unseen
    with pytest.raises(CheckError, match="goes on after the time limit of 2"):
        check_env(TruncatesInstead, time_limit=2)


class NoState(CountingEnv):
    state_dict = property()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CountingEnv(1000), "last observation of an episode: no end in 200 random steps; pass `steps=`"),
        (TruncatesInstead, "whether ends reported as truncated are time limits: .* after .3. steps"),
        (NotRestorable, "exact continuation: load_state_dict says that it cannot"),
        (lambda: HiddenClock(careless=False, noise=True), "partial reset: steps draw random numbers"),
        (CountingEnv, f"{DETERMINISTIC} .CountingEnv"),
        (NoState, "exact continuation: there is no state_dict"),
    ],
    ids=named,
)
def test_what_was_not_exercised_is_reported_in_one_sentence(make, sentence):
    with pytest.warns(NotExercisedWarning, match=f"^not exercised: {sentence}"):
        check_env(make)


def test_something_else_is_no_environment():
    class Nothing:
        batch_size = torch.Size([])

        def close(self):
            pass

    with pytest.raises(AssertionError, match=r"^protocol: no rl\.core\.interfaces\.Env: lacks .*'reset'"):
        check_env(Nothing)


def test_what_is_right_passes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # everything is exercised
        check_env(BothEnds, time_limit=3)
        check_env(lambda: BothEnds(3, (3,)), time_limit=3)
    check_env(lambda: Seeded([2, 5, 3], (3,)))
    check_env(lambda: HiddenClock(careless=False))
    check_env_specs(CountingEnv(), steps=5)


def test_one_instance_is_judged_row_by_row():
    rows = {row.name: row for row in examine_env(Contradiction(), steps=4)}
    assert rows["'observation'"] == EnvRow("'observation'", "float32 [1]", "float32 [1]", "ok", None)
    assert rows["done flags"].fault == "done is not terminated | truncated at step 1"
    assert [row.name for row in rows.values() if row.verdict == "FAULT"] == ["done flags"]
    assert {row.verdict for row in examine_env(CountingEnv(3, (2,)), steps=10)} == {"ok"}
