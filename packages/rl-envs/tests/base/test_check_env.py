"""`check_env` names each fault of an environment, and all of them in one error."""

import sys

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, MissingExtraError, SpecError
from rl.core.specs import Bounded, Categorical, Composite, NonTensor, Unbounded
from rl.envs import (
    AcrobotEnv,
    BanditEnv,
    CartPoleEnv,
    EnvBase,
    GridWorldEnv,
    GymEnv,
    PendulumEnv,
    PixelGridWorldEnv,
    SerialEnv,
    StepCounter,
    TicTacToeEnv,
    VecNorm,
    check_env,
    check_env_specs,
)
from rl.testing import CountingEnv


class Walk(EnvBase):
    """Two walkers that start at a random place and end beyond 1; right as it is, to be broken in one point."""

    def __init__(self, size=2):
        super().__init__(batch_size=[size])
        self.observation_spec = Composite(place=Bounded(-2, 2, shape=(1,)), mark=Unbounded((3,), dtype=torch.int64))
        self.action_spec = Bounded(-0.5, 0.5, shape=(1,))
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone())
        self.generator = torch.Generator()

    def _rows(self, place, **more):
        mark = torch.zeros(*self.batch_size, 3, dtype=torch.int64)
        return {"place": place, "mark": mark, **more}

    def _start(self):
        return torch.rand(*self.batch_size, 1, generator=self.generator) - 0.5

    def _reset(self, td):
        del td
        return TensorDict(self._rows(self._start()), batch_size=self.batch_size)

    def _outcome(self, td):
        place = td["place"] + td["action"]
        over = place.abs() > 1
        return self._rows(place, reward=-place.abs(), done=over, terminated=over, truncated=over & False)

    def _step(self, td):
        return TensorDict(self._outcome(td), batch_size=self.batch_size)

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)


def outcome(**changes):
    """A walk whose step writes something else; None leaves an entry out."""

    class Broken(Walk):
        def _outcome(self, td):
            new = super()._outcome(td)
            for name, change in changes.items():
                value = change(new) if callable(change) else change
                new.pop(name, None)
                if value is not None:
                    new[name] = value
            return new

    return Broken


class Mutating(Walk):
    def _step(self, td):
        td["place"] += td["action"]
        return super()._step(td)


class Losing(Walk):
    """Resets itself, and shows the first observation of the next episode as the last one."""

    def _reset(self, td):
        return super()._reset(td)

    def _start(self):
        return torch.zeros(*self.batch_size, 1)

    def _outcome(self, td):
        new = super()._outcome(td)
        return {**new, "place": torch.where(new["done"], self._start(), new["place"])}


class Unseeded(Walk):
    def _set_seed(self, seed):
        pass


class Inside(Walk):
    """Keeps its place in itself, and resets all elements or none."""

    all_at_once = True

    def _reset(self, td):
        if td is None or self.all_at_once or bool(td["_reset"].all()):
            self.place = self._start()
        return TensorDict(self._rows(self.place.clone()), batch_size=self.batch_size)

    def _outcome(self, td):
        new = super()._outcome(td.clone().set("place", self.place))
        self.place = new["place"].clone()
        return new


class Deaf(Inside):
    all_at_once = False


class Ended(Walk):
    def _reset(self, td):
        return super()._reset(td).set("done", torch.ones(*self.batch_size, 1, dtype=torch.bool))


class Team(EnvBase):
    """Two agents in each element, whose places are random; each is reset alone, or with `root` all together."""

    lost = careless = False
    lengths = ((3, 4), (12, 13))  # the resets of one draw numbers while the other goes on

    def __init__(self, *, root=False):
        super().__init__(batch_size=[2])
        self.root, self.clock = root, torch.zeros(2, 2, 1)
        flags = lambda *shape: {name: Categorical(2, shape=shape, dtype=torch.bool) for name in self.flags}
        self.flags = ["done", "terminated", "truncated"]
        self.observation_spec = Composite(agents=Composite(place=Unbounded((2, 1))))
        self.action_spec = Composite(agents=Composite(action=Unbounded((2, 1))))
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1))))
        self.done_spec = Composite(agents=Composite(flags(2, 1)), **(flags(1) if root else {}))
        self.generator = torch.Generator()

    def _place(self):
        return torch.rand(2, 2, 1, generator=self.generator)

    def _reset(self, td):
        mask = None if td is None else td.get("_reset" if self.root else ("agents", "_reset"), None)
        if mask is None or self.careless:
            self.clock = torch.zeros(2, 2, 1)
        else:
            self.clock = self.clock.masked_fill(mask.unsqueeze(-2) if self.root else mask, 0.0)
        self.first = self._place()
        return TensorDict(agents=TensorDict(place=self.first, batch_size=[2]), batch_size=[2])

    def _step(self, td):
        self.clock = self.clock + 1
        over = self.clock >= torch.tensor(self.lengths).unsqueeze(-1)
        flags = {"done": over, "terminated": over, "truncated": over & False}
        own = {name: flag.all(-2) for name, flag in flags.items()} if self.root else {}
        place = self._place() if not self.lost else torch.where(over, 0.0, td["agents", "place"] + 1)
        agents = {"place": place, "reward": td["agents", "action"], **flags}
        return TensorDict(agents=TensorDict(agents, batch_size=[2]), **own, batch_size=[2])

    def _set_seed(self, seed):
        self.generator.manual_seed(seed)


class LosingTeam(Team):
    lost = True

    def _place(self):
        return torch.zeros(2, 2, 1)


class CarelessTeam(Team):
    careless = True
    lengths = ((3, 4), (3, 4))


@pytest.mark.parametrize("root", [False, True], ids=["group", "group and root"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        pytest.param(CarelessTeam, "partial reset: after a reset of element 0, .*done.* of another element", id="all"),
        pytest.param(LosingTeam, "the last one is lost", id="lost"),
    ],
)
def test_resets_and_ends_of_agents_are_judged(kind, message, root, capsys):
    check_env(Team(root=root), steps=40)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("last observation", "partial"))]
    assert [row.split("|")[-1].strip() for row in rows] == ["ok", "ok"]
    with pytest.raises(SpecError, match=message):
        check_env(kind(root=root), steps=40)


class Linked(Walk):
    """The first walker decides how many numbers a step draws before that of the second one, as opponents may."""

    def _outcome(self, td):
        more = int(td["place"][0, 0] * 100) % 3
        noise = torch.rand(more + 1, generator=self.generator)[-1:]
        return super()._outcome(td.clone().set("place", td["place"] + 0.01 * noise))


def test_a_partial_reset_that_changes_what_others_draw_is_no_fault(capsys):
    check_env(Linked(), steps=40)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("partial reset")]
    assert rows[0].split("|")[-1].strip() == "not judged"


class LargeTeam(Team):
    """Writes an entry of four agents, two more than there are, once the first element has done `after` steps."""

    def __init__(self, name, lengths, *, root, after=0):
        super().__init__(root=root)
        self.name, self.lengths, self.after = name, lengths, after

    def _step(self, td):
        out = super()._step(td)
        if self.clock[0, 0] > self.after:
            out["agents", self.name] = out["agents", self.name].repeat(1, 2, 1)
        return out


TOGETHER, APART = ((3, 3), (3, 3)), ((3, 3), (3, 5))


@pytest.mark.parametrize("root", [False, True], ids=["group", "group and root"])
@pytest.mark.parametrize("lengths", [TOGETHER, APART], ids=["together", "apart"])
@pytest.mark.parametrize("name", ["place", "reward", "done", "terminated", "truncated"])
def test_entries_of_too_many_agents_are_faults(name, lengths, root):
    with pytest.raises(SpecError) as caught:
        check_env(LargeTeam(name, lengths, root=root), steps=40)
    message = str(caught.value)
    dtype, domain = ("float32", "") if name in ("place", "reward") else ("bool", " of Categorical(2)")
    fault = f"('next', 'agents', '{name}'): expected {dtype} [2, 2, 1]{domain}, got {dtype} [2, 4, 1] (at step 1)"
    assert fault in message
    assert "step 1 raised" not in message


def test_runs_whose_shapes_differ_are_compared():
    late = LargeTeam("place", ((9, 9), (9, 9)), root=True, after=2)
    with pytest.raises(SpecError, match=r"'place'\): expected float32 \[2, 2, 1\], got .* \(at step 3\)"):
        check_env(late, steps=8)


@pytest.mark.parametrize("root", [False, True], ids=["group", "group and root"])
def test_last_observations_of_too_many_agents_are_not_judged(root, capsys):
    with pytest.raises(SpecError):
        check_env(LargeTeam("place", TOGETHER, root=root), steps=40)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("last observation of an episode")]
    assert [row.split("|")[-1].strip() for row in rows] == ["not judged"]


class Squad(EnvBase):
    """Three agents whose entries are zeros of their specs."""

    def __init__(self, flags=(3, 1), mask=(3,), action=(3, 2), reward=(3, 1)):
        super().__init__(batch_size=[2])
        flag = lambda shape: Categorical(2, shape=shape, dtype=torch.bool)
        self.observation_spec = Composite(team=Composite(observation=Unbounded((3, 4)), mask=flag(mask)))
        self.action_spec = Composite(team=Composite(action=Bounded(-1, 1, shape=action)))
        self.reward_spec = Composite(team=Composite(reward=Unbounded(reward)))
        self.done_spec = Composite(done=flag((1,)), team=Composite(done=flag(flags)))

    def _reset(self, td):
        return self.observation_spec.zero()

    def _step(self, td):
        out = self.observation_spec.zero()
        return out.update(self.full_reward_spec.zero()).update(self.full_done_spec.zero())

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({}, {}),
        ({"reward": (1,), "flags": (1,), "mask": (), "action": (2,)}, {}),
        ({"flags": (2, 1)}, dict.fromkeys(["done", "terminated"], ("[2, 2, 1]", "[2, 3, 1]"))),
        ({"mask": (3, 1)}, {"mask": ("[2, 3, 1]", "[2, 3]")}),
        ({"mask": (2,)}, {"mask": ("[2, 2]", "[2, 3]")}),
        ({"action": (2, 2)}, {"action": ("[2, 2, 2]", "[2, 3, ...]")}),
    ],
    ids=str,
)
def test_entries_that_contradict_the_reward_of_their_group_are_faults(changes, faults, capsys):
    env = Squad(**changes)
    if not faults:
        check_env(env, steps=5)
        return
    with pytest.raises(SpecError) as caught:
        check_env(env, steps=5)
    assert str(caught.value).splitlines()[1:] == [
        f"  spec of ('team', '{name}'): the spec has shape {got}, expected {expected}, as ('team', 'reward')"
        " is [2, 3, 1]; change one of the two specs"
        for name, (got, expected) in faults.items()
    ]
    assert capsys.readouterr().out.count("FAULT") == len(faults)


FAULTS = {
    "missing": (outcome(mark=None), "'next', 'mark'.*got nothing"),
    "extra": (outcome(speed=torch.zeros(2, 1)), "'next', 'speed'.*expected nothing, got float32"),
    "shape": (
        outcome(reward=torch.zeros(2, 2)),
        "'next', 'reward'.*float32 \\[2, 1\\].*got float32 \\[2, 2\\]",
    ),
    "dtype": (outcome(mark=torch.zeros(2, 3)), "'next', 'mark'.*expected int64.*got float32"),
    "bounds": (outcome(place=lambda new: new["place"] * 9), "'next', 'place'.*in \\[-2, 2\\]"),
    "flags": (outcome(done=torch.zeros(2, 1, dtype=torch.bool)), "done is not terminated | truncated at step"),
    "nan": (outcome(reward=torch.full((2, 1), torch.nan)), "'next', 'reward'.*NaN"),
    "last observation": (Losing, "the last one is lost"),
    "seed": (Unseeded, "same seed: two runs with the same seed and actions differ"),
    "input": (Mutating, "input of a step: step 1 changed 'place'"),
    "others": (Inside, "partial reset: after a reset of element 0"),
    "ignored": (Deaf, "marked in '_reset' and not reset"),
    "start": (Ended, "start|reset.*done"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named(name, capsys):
    kind, message = FAULTS[name]
    with pytest.raises(SpecError, match=message):
        check_env(kind(), steps=40)
    assert "FAULT" in capsys.readouterr().out


def test_a_wrong_device_is_named(capsys):
    env = Walk()
    env.observation_spec = Composite(place=Unbounded((1,), device="meta"), mark=Unbounded((3,), dtype=torch.int64))
    with pytest.raises(SpecError, match="device meta, got cpu"):
        check_env(env)
    assert "FAULT" in capsys.readouterr().out


def test_all_faults_are_in_one_error(capsys):
    kind = outcome(mark=None, reward=torch.zeros(2, 2), speed=torch.zeros(2, 1))
    with pytest.raises(SpecError, match="3 faults") as caught:
        check_env(kind())
    for word in ("mark", "reward", "speed"):
        assert word in str(caught.value)
    table = capsys.readouterr().out
    assert table.count("FAULT") == 3
    line = next(line for line in table.splitlines() if "'place'" in line and "next" in line)
    cells = ["('next', 'place')", "float32 [2, 1] in [-2, 2]", "float32 [2, 1]", "ok"]
    assert [cell.strip() for cell in line.split("|")] == cells


@pytest.mark.parametrize(
    "make",
    [
        Walk,
        lambda: Walk(size=1),
        lambda: PendulumEnv([3]),
        AcrobotEnv,
        lambda: BanditEnv([2]),
        lambda: GridWorldEnv([2], slip=0.3),
        lambda: PixelGridWorldEnv([2], slip=0.3),
        lambda: TicTacToeEnv([2]),
        lambda: CountingEnv(length=3, batch_size=(2,)),
        lambda: GymEnv("CartPole-v1", num_envs=2),
        lambda: GymEnv("FrozenLake-v1"),
        lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")).append_transform(StepCounter(max_steps=4)),
        lambda: GymEnv("CartPole-v1", num_envs=2, vectorization="native"),
    ],
    ids=[
        "walk",
        "one",
        "pendulum",
        "acrobot",
        "bandit",
        "grid",
        "pixels",
        "game",
        "protocol",
        "gyms",
        "gym",
        "serial",
        "vector",
    ],
)
def test_right_environments_pass(make, capsys):
    check_env(make(), steps=60)
    assert "FAULT" not in capsys.readouterr().out


def test_an_error_of_the_environment_is_a_fault(capsys):
    class Raising(CartPoleEnv):
        def _step_leaves(self, root):
            raise ZeroDivisionError("no mass")

    with pytest.raises(SpecError, match="step 1 raised ZeroDivisionError: no mass"):
        check_env(Raising())
    assert "reset and steps" in capsys.readouterr().out


def test_an_environment_without_any_observation_of_a_step_is_named():
    class Blind(Walk):
        def _outcome(self, td):
            kept = super()._outcome(td)
            return {name: kept[name] for name in ("reward", "done", "terminated", "truncated")}

        def _step(self, td):
            return super()._step(td)

    with pytest.raises(SpecError, match=r"2 faults:\n  \('next', 'place'\): expected .*got nothing"):
        check_env(Blind())


def test_a_number_of_steps_is_checked():
    with pytest.raises(ArgumentError, match="check_env: steps must be at least 1, got 0"):
        check_env(Walk(), steps=0)


def test_running_statistics_are_no_fault(capsys):
    env = GymEnv("CartPole-v1").append_transform(VecNorm(in_keys=["observation"]))
    check_env(env, steps=30)
    assert "FAULT" not in capsys.readouterr().out


class Worded(EnvBase):
    """An observation that is text."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(x=Unbounded(1), text=NonTensor(()))
        self.action_spec = Categorical(2)

    def _reset(self, td):
        return TensorDict(x=torch.zeros(1), text="hi")

    def _step(self, td):
        return TensorDict(
            x=torch.zeros(1), text="there", reward=torch.ones(1), terminated=torch.zeros(1, dtype=torch.bool)
        )

    def _set_seed(self, seed):
        pass


class Wordless(Worded):
    def _step(self, td):
        return super()._step(td).exclude("text")


def test_text_passes_the_check_and_its_absence_does_not():
    check_env_specs(Worded(), seed=0)
    with pytest.raises(SpecError, match=r"'text': expected .*got nothing"):
        check_env_specs(Wordless())


@pytest.mark.parametrize(
    "spec",
    [
        torch.stack([Composite(o=Unbounded(2)), Composite(o=Unbounded(3))]),
        torch.stack([Composite(o=Unbounded(2)), Composite(p=Unbounded(2))]),
        torch.stack([Unbounded(2), Unbounded(3)]),
    ],
    ids=["groups", "keys", "leaves"],
)
def test_ragged_specs_are_refused_when_they_are_assigned(spec):
    with pytest.raises(SpecError, match=r"the elements of 'agents' differ in keys or shapes.*Pad them to one shape"):
        Worded().observation_spec = Composite(agents=spec)


def test_check_env_without_rl_testing_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rl.testing", None)  # an import of it fails
    with pytest.raises(MissingExtraError, match=r"pip install rl-testing$"):
        check_env(Walk())
