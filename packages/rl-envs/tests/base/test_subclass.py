"""What an author of an environment may do by mistake."""

import copy

import gymnasium
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import RLError, SpecError, UnknownComponentError
from rl.core.specs import Composite, Unbounded
from rl.envs import EnvBase, GymEnv, GymWrapper, LeafEnvBase, PendulumEnv, SerialEnv, StepCounter, TransformedEnv


class Short(EnvBase):
    """Uses names that lie at hand."""

    def __init__(self):
        super().__init__()
        self.observation_spec, self.action_spec = Composite(observation=Unbounded(1)), Unbounded(1)
        self._flags, self._specs, self._advance, self._wrap, self._rules = 3, {"a": 1}, "b", None, None
        self._check_step = self._reset_checked = self._reset_rows = self._leaf = None

    def _reset(self, td):
        return TensorDict(observation=torch.zeros(1))

    def _step(self, td):
        return TensorDict(observation=td["action"], reward=torch.ones(1), terminated=td["action"] > 9)


def test_short_names_are_the_authors():
    assert Short().rollout(4, break_when_any_done=False)["next", "reward"].sum() == 4
    assert TransformedEnv(SerialEnv(2, Short), StepCounter(2)).rollout(4).shape == (2, 2)


def test_private_names_of_the_base_classes_are_the_hooks_and_one_reserved_name():
    hooks = {"_reset", "_step", "_reset_leaves", "_step_leaves", "_reset_rows", "_step_together", "_set_seed", "_close"}
    hooks |= {"_set_state", "_set_state_leaves", "_set_options", "_play_leaves"}
    names = {name for kind in LeafEnvBase.__mro__[:-1] for name in vars(kind)} | set(vars(Short.__base__()))
    private = {name for name in names if name.startswith("_") and not name.startswith(("__", "_EnvBase__"))}
    assert private - hooks == {"_rl"}


def test_a_constructor_that_does_not_call_the_base_is_told_so():
    class Early(Short):
        def __init__(self):
            self.observation_spec = Composite(observation=Unbounded(1))

    class Never(Short):
        def __init__(self):
            self.speed = 1

    with pytest.raises(RLError, match=r"Early was used before.*super\(\).__init__"):
        Early()
    with pytest.raises(RLError, match=r"Never was used before"):
        Never().reset()


class TenTimes(GymEnv):
    def _step_leaves(self, root):
        out = super()._step_leaves(root)
        return {**out, "reward": 10 * out["reward"]}


class Far(GymEnv):
    def _reset_leaves(self, mask):
        return {**super()._reset_leaves(mask), "observation": torch.full((*self.batch_size, 4), 0.25)}


@pytest.mark.parametrize("num_envs", [None, 2])
def test_an_overridden_leaf_form_counts_everywhere(num_envs):
    for env in (
        TenTimes("CartPole-v1", num_envs=num_envs),
        TransformedEnv(TenTimes("CartPole-v1", num_envs=num_envs), StepCounter()),
        SerialEnv(2, lambda: TenTimes("CartPole-v1", num_envs=num_envs)),
    ):
        assert env.rollout(3)["next", "reward"].eq(10).all()
        leaf = env.lowered()
        assert leaf.step_leaves({**leaf.reset_leaves(), "action": env.action_spec.rand()})["reward"].eq(10).all()


@pytest.mark.parametrize(
    "make", [lambda: Far("CartPole-v1", num_envs=2), lambda: SerialEnv(2, lambda: Far("CartPole-v1"))]
)
def test_an_overridden_reset_counts_in_partial_resets(make):
    leaf = make().lowered()
    current = {key: torch.zeros_like(value) for key, value in leaf.reset_leaves().items()}
    fresh = leaf.reset_leaves(current, torch.tensor([[True], [False]]))
    assert fresh["observation"][:, 0].tolist() == [0.25, 0]


@pytest.mark.parametrize("base", [PendulumEnv, GymEnv, TransformedEnv, SerialEnv])
@pytest.mark.parametrize("name", ["_reset", "_step", "reset", "step", "step_and_maybe_reset"])
def test_overriding_a_derived_method_is_refused_when_the_class_is_created(base, name):
    with pytest.raises(RLError, match=f"Changed overrides {name}, which"):
        type("Changed", (base,), {name: lambda self, td: td})


def test_a_mixin_that_overrides_a_derived_method_is_refused():
    class Mixin:
        def step(self, td):
            return td

    with pytest.raises(RLError, match="overrides step"):
        type("Mixed", (Mixin, PendulumEnv), {})


@pytest.mark.parametrize("kwargs", [{}, {"frame_skip": 2}, {"num_envs": 2, "frame_skip": 2}])
def test_a_copy_steps_its_own_simulator(kwargs):
    env = GymEnv("CartPole-v1", **kwargs)
    env.set_seed(0)
    root = env.reset()
    action = env.full_action_spec.rand()
    copy.deepcopy(env).rollout(3)
    expected = GymEnv("CartPole-v1", **kwargs)
    expected.set_seed(0)
    one, other = env.step(root.update(action)), expected.step(expected.reset().update(action))
    assert torch.equal(one["next", "observation"], other["next", "observation"])


def _closed():
    env = GymEnv("CartPole-v1")
    root = env.rand_action(env.reset())
    env.close()
    return env.step(root)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_closed, "is closed; use a new one. The shutdown of a collector closes its environment"),
        (lambda: GymWrapper([gymnasium.make("CartPole-v1")] * 2), "one environment several times"),
        (lambda: SerialEnv(2, [PendulumEnv().__enter__] * 2), "create a new one each time"),
        (lambda: SerialEnv(2, PendulumEnv()), "takes a function"),
        (lambda: GymWrapper("CartPole-v1"), "gymnasium.make"),
        (lambda: GymWrapper(PendulumEnv()), "wraps a Gymnasium environment"),
        (lambda: GymEnv("CartPole-v1").set_seed(-1), "seeds from 0 on"),
        (lambda: PendulumEnv(batch_size=3), r"such as \[\] or \[8\], got 3"),
        (lambda: PendulumEnv(batch_size=[-1]), "got"),
        (lambda: StepCounter(max_steps=2.5), "an integer"),
        (lambda: TransformedEnv(PendulumEnv(), StepCounter), r"write StepCounter\(\.\.\.\)"),
    ],
)
def test_mistakes_that_would_go_unseen(make, message):
    with pytest.raises(RLError, match=message):
        make()


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_an_id_that_gymnasium_withdrew():
    withdrawn = next((name for name in gymnasium.registry if name.startswith("Taxi-v")), "Taxi-v4")
    newest = int(withdrawn.rsplit("v", 1)[1])
    with pytest.raises(UnknownComponentError, match="Taxi"):
        GymEnv(f"Taxi-v{newest - 1}")


def test_an_info_entry_that_is_whole_at_a_reset_and_a_fraction_at_a_step():
    env = GymEnv("FrozenLake-v1", num_envs=2, info_keys=["prob"])
    env.set_seed(0)
    data = env.rollout(3)
    assert data["prob"][:, 0].eq(1).all()
    assert torch.allclose(data["next", "prob"], torch.tensor(1 / 3, dtype=torch.float64))


def test_an_info_entry_that_leaves_its_spec_is_named(counting_gym):
    env = GymWrapper(counting_gym([5]), info_keys={"twice": Unbounded((), dtype=torch.bool)})
    with pytest.raises(SpecError, match=r"info entry 'twice'.*info_keys="):
        env.rollout(3)
