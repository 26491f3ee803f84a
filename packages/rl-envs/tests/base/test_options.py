"""Options of environments: a given state, any batch, specs by example, other devices and dtypes, compiled steps."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError
from rl.core.specs import Binary, Composite, Unbounded
from rl.envs import (
    AcrobotEnv,
    BanditEnv,
    CartPoleEnv,
    CatFrames,
    EnvBase,
    GridWorldEnv,
    GymEnv,
    MountainCarEnv,
    ObservationNorm,
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
    StepCounter,
    TicTacToeEnv,
    TransformedEnv,
    VecNorm,
)

NATIVE = [AcrobotEnv, BanditEnv, CartPoleEnv, GridWorldEnv, MountainCarEnv, PendulumEnv, TicTacToeEnv]


# ---- a given state


@pytest.mark.parametrize("kind", NATIVE)
def test_a_reset_to_a_state_continues_as_the_episode_did(kind):
    env = kind([2], seed=0)
    td = env.rollout(4, break_when_any_done=False)[:, 3].exclude("next")
    root = env.reset(td.select(*env.state_keys), set_state=True)
    for key in env.observation_keys:
        assert (root[key] == td[key]).all(), key
    assert not root["done"].any()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda: PendulumEnv([3], seed=1),
        lambda: SerialEnv(3, lambda: PendulumEnv(seed=1)),
        lambda: ParallelEnv(3, lambda: PendulumEnv(seed=1), processes=2),
        lambda: ParallelEnv(3, lambda: PendulumEnv(seed=1), processes=2, shared_memory=False),
        lambda: TransformedEnv(PendulumEnv([3], seed=1), ObservationNorm(loc=1.0, scale=2.0)),
    ],
    ids=["native", "serial", "parallel", "messages", "transformed"],
)
def test_a_state_is_set_where_the_mask_says(wrap):
    env = wrap()
    td = env.rollout(3)[:, -1].exclude("next", "action")
    wanted = torch.tensor([0.1, 0.2, 0.3])
    given = td.clone().set("th", wanted).set("thdot", torch.zeros(3))
    given["_reset"] = torch.tensor([[True], [False], [True]])
    root = env.reset(given, set_state=True)
    assert (root["th"][[0, 2]] == wanted[[0, 2]]).all()
    assert root["th"][1] == wanted[1]  # as given: what is not reset stays
    assert (root["observation"][1] == td["observation"][1]).all()
    scale, loc = (2.0, 1.0) if type(env) is TransformedEnv else (1.0, 0.0)
    torch.testing.assert_close(root["observation"][[0, 2], 0], wanted[[0, 2]].cos() * scale + loc)
    env.close()


def test_what_cannot_be_set_is_refused():
    with pytest.raises(ContractError, match="'thdot'"):
        PendulumEnv().reset(TensorDict(th=torch.zeros(())), set_state=True)
    with pytest.raises(ContractError, match="lacks 'th', 'thdot'"):
        PendulumEnv().reset(set_state=True)
    with pytest.raises(ShapeError, match=r"'th' must be \[3\], got \[3, 2\]"):
        PendulumEnv().reset(TensorDict(th=torch.zeros(3, 2), thdot=torch.zeros(3), batch_size=[3]), set_state=True)
    with pytest.raises(RLError, match="has no state_keys"):
        GymEnv("CartPole-v1").reset(TensorDict(), set_state=True)


# ---- any batch


@pytest.mark.parametrize("kind", NATIVE)
def test_an_environment_without_a_batch_takes_any(kind):
    env = kind(seed=3)
    assert not env.batch_locked
    data = env.rollout(6, tensordict=TensorDict(batch_size=[4, 2]), break_when_any_done=False)
    assert data.batch_size == (4, 2, 6)
    td = env.rand_action(data[..., 0].exclude("next"))
    assert env.step(td)["next", "done"].shape == (4, 2, 1)
    assert env.step_and_maybe_reset(td)[1].batch_size == (4, 2)
    fixed = kind([4, 2], seed=3)
    with pytest.raises(SpecError, match="batch"):
        fixed.step(td[0])


def test_the_tutorial_of_the_pendulum_works_with_transforms():
    env = TransformedEnv(PendulumEnv(seed=0), StepCounter(max_steps=5))
    td = env.reset(TensorDict(batch_size=[10]))
    data = env.rollout(8, auto_reset=False, tensordict=td)
    assert data.batch_size == (10, 5)
    assert data["next", "truncated"][:, -1].all()
    normed = TransformedEnv(PendulumEnv(), VecNorm(in_keys=["observation"]))
    with pytest.raises(SpecError, match="batch_size=\\[10\\]"):
        normed.reset(TensorDict(batch_size=[10]))


def test_copies_share_the_random_numbers():
    env = PendulumEnv(seed=0)
    one, two = (env.reset(TensorDict(batch_size=[2])) for _ in range(2))
    assert not (one["th"] == two["th"]).any()
    env.set_seed(5)
    three = env.reset(TensorDict(batch_size=[2]))
    env.set_seed(5)
    assert (env.reset(TensorDict(batch_size=[2]))["th"] == three["th"]).all()


# ---- specs


class Plain(EnvBase):
    """Declares nothing."""

    def _reset(self, td):
        del td
        return TensorDict(place=torch.zeros(2, 3), flag=torch.zeros(2, 2, dtype=torch.bool), batch_size=[2])

    def _step(self, td):
        new = {"place": td["place"] + td["push"], "flag": td["flag"], "reward": torch.ones(2, 1)}
        return TensorDict({**new, "terminated": torch.zeros(2, 1, dtype=torch.bool)}, batch_size=[2])

    def _set_seed(self, seed):
        del seed


def test_specs_are_inferred_from_a_step():
    policy = TensorDictModule(lambda place: place * 0 + 1, ["place"], ["push"])
    env = Plain(batch_size=[2]).auto_specs_(policy, action_key="push")
    assert env.observation_spec_unbatched == Composite(place=Unbounded(3), flag=Binary(2, dtype=torch.bool))
    assert env.action_key == "push"
    assert env.action_spec.shape == (2, 3)
    assert env.reward_spec.shape == (2, 1)
    assert set(env.done_keys) == {"done", "terminated"}
    assert env.rollout(4)["place"].shape == (2, 4, 3)
    env.check_env_specs()


def test_specs_that_cannot_be_inferred():
    with pytest.raises(ArgumentError, match="pass a policy"):
        Plain(batch_size=[2]).auto_specs_()
    policy = TensorDictModule(lambda place: place, ["place"], ["push"])
    with pytest.raises(SpecError, match="'pushes' is not written"):
        Plain(batch_size=[2]).auto_specs_(policy, action_key="pushes")
    with pytest.raises(SpecError, match="reward_key"):
        Plain(batch_size=[2]).auto_specs_(policy, action_key="push", reward_key="gain")


def test_truncated_is_added():
    env = PendulumEnv([2]).add_truncated_keys()
    data = env.rollout(3, set_truncated=True)
    assert data["next", "truncated"][..., 0].tolist() == [[False, False, True]] * 2


def test_all_specs_by_name():
    env = PendulumEnv([2])
    assert env.specs["input_spec", "full_action_spec"] == env.full_action_spec
    assert env.specs["output_spec"] == env.output_spec
    assert env.output_spec["full_done_spec"].shape == (2,)
    assert set(env.input_spec.keys()) == {"full_action_spec", "full_state_spec"}


def test_all_actions():
    assert CartPoleEnv([3]).all_actions()["action"].tolist() == [[[1, 0]] * 3, [[0, 1]] * 3]
    td = CartPoleEnv([3], seed=0).reset()
    every = CartPoleEnv([3]).all_actions(td)
    assert (every["state"] == td["state"]).all()
    assert CartPoleEnv([3]).step(every[1])["next", "reward"].shape == (3, 1)
    with pytest.raises(SpecError, match="'action' is continuous, float32"):
        PendulumEnv().all_actions()


# ---- rollouts


def test_given_actions_are_played():
    actions = torch.linspace(-1, 1, 5).reshape(5, 1)
    env = PendulumEnv(seed=0)
    data = env.rollout(10, actions=actions)
    assert (data["action"] == actions).all()
    by_key = PendulumEnv(seed=0).rollout(10, actions=TensorDict(action=actions, batch_size=[5]))
    assert (by_key == data).all()
    assert PendulumEnv([2]).rollout(3, actions=actions.expand(2, 5, 1)).batch_size == (2, 3)
    with pytest.raises(ShapeError, match="must be"):
        PendulumEnv([3]).rollout(3, actions=actions.expand(2, 5, 1))
    with pytest.raises(RLError, match="both"):
        env.rollout(3, lambda td: td, actions=actions)


def test_given_actions_of_several_keys_are_played():
    class Arm(EnvBase):
        def __init__(self):
            super().__init__()
            self.observation_spec = Composite(place=Unbounded(2))
            self.action_spec = Composite(move=Unbounded(2), grip=Unbounded(1))

        def _reset(self, td):
            return TensorDict(place=torch.zeros(2))

        def _step(self, td):
            return TensorDict(place=td["place"] + td["move"] * td["grip"], reward=torch.zeros(1))

    actions = TensorDict(move=torch.randn(3, 2), grip=torch.randn(3, 1), batch_size=[3])
    data = Arm().rollout(9, actions=actions)
    torch.testing.assert_close(data["next", "place"], (actions["move"] * actions["grip"]).cumsum(0))


def test_a_rollout_is_written_into_memory_that_is_there():
    env = PendulumEnv([2], seed=0)
    out = torch.empty_like(env.rollout(6))
    env.set_seed(1)
    found = env.rollout(4, out=out)
    env.set_seed(1)
    assert found.batch_size == (2, 4)
    assert found["th"].data_ptr() == out["th"].data_ptr()
    assert (out["next", "th"][:, 0] == found["next", "th"][:, 0]).all()
    assert (found["th"][:, 0] == env.reset()["th"]).all()
    with pytest.raises(ShapeError, match="as many steps"):
        env.rollout(7, out=out)
    with pytest.raises(ContractError, match="'th'"):
        env.rollout(2, out=out.exclude("th"))


def test_storing_device_and_policy_device():
    env = PendulumEnv([2])
    policy = TensorDictModule(torch.nn.Linear(3, 1), ["observation"], ["action"])
    data = env.rollout(3, policy, auto_cast_to_device=True, storing_device="cpu")
    assert data.device == torch.device("cpu")


# ---- devices, dtypes, compilation, copies


def test_entries_are_converted_to_a_dtype():
    env = PendulumEnv([2], seed=0).to(torch.float64)
    data = env.rollout(3)
    assert {data[key].dtype for key in ("observation", "action", ("next", "reward"))} == {torch.float64}
    assert env.base_env.action_spec.dtype == torch.float32
    assert GymEnv("Pendulum-v1").to(torch.float32).observation_spec["observation"].dtype == torch.float32


@pytest.mark.parametrize(
    "make",
    [
        lambda: GridWorldEnv([2], seed=0),
        lambda: SerialEnv(2, PendulumEnv),
        lambda: GymEnv("CartPole-v1", num_envs=2),
        lambda: GymEnv("CartPole-v1"),
        lambda: TransformedEnv(PendulumEnv([2]), ObservationNorm(loc=torch.zeros(3), scale=torch.ones(3))),
    ],
    ids=["native", "serial", "gym", "gym-single", "transformed"],
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_an_environment_moves(make, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    env = make()
    assert env.to(device) is env
    data = env.rollout(5, break_when_any_done=False)
    assert data.device.type == device
    assert env.observation_spec.device.type == device
    assert data["next", "reward"].device.type == device


def test_a_compiled_step_gives_the_same():
    env = TransformedEnv(CartPoleEnv([3], seed=0), StepCounter())
    actions = env.rollout(10, break_when_any_done=False)["action"]
    env.set_seed(2)
    plain = env.rollout(10, actions=actions, break_when_any_done=False)
    env.set_seed(2)
    assert env.compile(backend="aot_eager", fullgraph=True) is env
    compiled = env.rollout(10, actions=actions, break_when_any_done=False)
    torch.testing.assert_close(compiled["observation"], plain["observation"])
    assert env.base_env._rl.compiled is not None
    stepped = env.rand_step()
    assert stepped["next", "step_count"].flatten().tolist() == [1, 1, 1]
    assert env.eager().base_env._rl.compiled is None
    with pytest.raises(RLError, match="cannot be compiled"):
        GymEnv("CartPole-v1").compile()


@pytest.mark.parametrize(
    "make",
    [
        lambda: PendulumEnv([2], seed=0),
        lambda: GymEnv("CartPole-v1", num_envs=2),
        lambda: GymEnv("FrozenLake-v1"),
        lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")),
        lambda: TransformedEnv(GymEnv("CartPole-v1"), CatFrames(N=2, dim=-1, in_keys=["observation"])),
        lambda: GymEnv("CartPole-v1").append_transform(VecNorm(in_keys=["observation"])),
    ],
    ids=["native", "gyms", "gym", "serial", "transformed", "norm"],
)
@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_are_independent_and_continue_alike(make, how):
    env = make()
    env.set_seed(1)
    env.rollout(3, break_when_any_done=False)
    other = pickle.loads(pickle.dumps(env)) if how == "pickle" else copy.deepcopy(env)
    assert other is not env
    assert repr(other) == repr(env)
    env.set_seed(2)
    torch.manual_seed(0)
    one = env.rollout(20, break_when_any_done=False)
    other.set_seed(2)
    torch.manual_seed(0)
    two = other.rollout(20, break_when_any_done=False)
    assert (one == two).all()
    env.close()
    other.rollout(2)


def test_integers_are_no_dtype_of_an_environment():
    with pytest.raises(ArgumentError, match=r"takes a floating-point dtype, got torch\.int64"):
        PendulumEnv().to(torch.int64)
