"""`check_env` names each fault of an environment, and all of them in one error."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import SpecError
from rl.core.specs import Bounded, Categorical, Composite, Unbounded
from rl.core.testing import CountingEnv
from rl.envs import (
    AcrobotEnv,
    BanditEnv,
    CartPoleEnv,
    EnvBase,
    GridWorldEnv,
    GymEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TicTacToeEnv,
    VecNorm,
    check_env,
)


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


FAULTS = {
    "missing": (outcome(mark=None), "'next', 'mark'.*it is missing"),
    "extra": (outcome(speed=torch.zeros(2, 1)), "'next', 'speed'.*no spec has this entry"),
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
        lambda: TicTacToeEnv([2]),
        lambda: CountingEnv(length=3, batch_size=(2,)),
        lambda: GymEnv("CartPole-v1", num_envs=2),
        lambda: GymEnv("FrozenLake-v1"),
        lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")).append_transform(StepCounter(max_steps=4)),
        lambda: GymEnv("CartPole-v1", num_envs=2, vectorization="native"),
    ],
    ids=["walk", "one", "pendulum", "acrobot", "bandit", "grid", "game", "protocol", "gyms", "gym", "serial", "vector"],
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

    with pytest.raises(SpecError, match=r"2 faults:\n  \('next', 'place'\): it is missing"):
        check_env(Blind())


def test_a_number_of_steps_is_checked():
    with pytest.raises(SpecError, match="check_env: steps must be at least 1, got 0"):
        check_env(Walk(), steps=0)


def test_running_statistics_are_no_fault(capsys):
    env = GymEnv("CartPole-v1").append_transform(VecNorm(in_keys=["observation"]))
    check_env(env, steps=30)
    assert "FAULT" not in capsys.readouterr().out
