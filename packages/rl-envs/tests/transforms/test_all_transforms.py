"""Every transform against the rules of transforms: in environments of any batch, as a copy, pickled, on a batch."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict

from rl.core.testing import check_transform
from rl.envs import (
    ActionDiscretizer,
    ActionMask,
    ActionScaling,
    BinarizeReward,
    CartPoleEnv,
    CatTensors,
    ClipTransform,
    Compose,
    DeviceCastTransform,
    DiscreteActionProjection,
    DoubleToFloat,
    DTypeCastTransform,
    ExcludeTransform,
    ExpandAs,
    FiniteTensorDictCheck,
    FlattenObservation,
    InitTracker,
    LineariseRewards,
    ObservationNorm,
    PendulumEnv,
    PermuteTransform,
    RemoveEmptySpecs,
    RenameTransform,
    RewardClipping,
    RewardNorm,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SignTransform,
    SqueezeTransform,
    Stack,
    StepCounter,
    SuccessReward,
    TicTacToeEnv,
    TransformedEnv,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
)

F32, F64 = torch.float32, torch.float64
PENDULUM = {
    "action-discretizer": lambda: ActionDiscretizer(5),
    "action-discretizer-one-hot": lambda: ActionDiscretizer([5], sampling="low", categorical=False),
    "action-scaling": ActionScaling,
    "action-scaling-unit": lambda: ActionScaling(["action"], ["scaled"], standard_normal=False),
    "binarize": BinarizeReward,
    "cat": lambda: CatTensors(["th", "thdot"], "both", unsqueeze_if_oor=True, del_keys=False),
    "clip": lambda: ClipTransform(["observation"], low=-0.5, high=0.5),
    "clip-inverse": lambda: ClipTransform(in_keys_inv=["action"], low=-1.0),
    "device": lambda: DeviceCastTransform("cpu"),
    "dtype": lambda: DTypeCastTransform(F32, F64, ["observation"], None, ["action"]),
    "dtype-every": lambda: DTypeCastTransform(F32, F64),
    "double-to-float": DoubleToFloat,
    "exclude": lambda: ExcludeTransform("observation"),
    "expand": lambda: ExpandAs("reward", "observation", "rewards"),
    "finite": FiniteTensorDictCheck,
    "flatten": lambda: Compose(UnsqueezeTransform(-1), FlattenObservation(-2, -1)),
    "init-tracker": InitTracker,
    "linearise": lambda: LineariseRewards(["reward"], weights=[2.0]),
    "observation-norm": lambda: ObservationNorm(1.0, 2.0, standard_normal=True),
    "observation-norm-inverse": lambda: ObservationNorm(1.0, 2.0, in_keys_inv=["action"]),
    "permute": lambda: Compose(UnsqueezeTransform(-1), PermuteTransform([-1, -2])),
    "remove-empty": RemoveEmptySpecs,
    "rename": lambda: RenameTransform(["observation"], [("agent", "obs")], ["action"], [("agent", "torque")]),
    "rename-copy": lambda: RenameTransform(["done", "reward"], ["over", "pay"], create_copy=True),
    "reward-clipping": lambda: RewardClipping(-1, 1),
    "reward-norm": lambda: RewardNorm().freeze(),
    "reward-scaling": lambda: RewardScaling(1.0, 0.1, standard_normal=True),
    "reward-sum": RewardSum,
    "select": lambda: SelectTransform("observation"),
    "sign": lambda: SignTransform(["reward", "observation"], ["reward", "signs"]),
    "squeeze": lambda: Compose(UnsqueezeTransform(-1), SqueezeTransform(-1)),
    "stack": lambda: Stack(["th", "thdot"], "both", del_keys=False),
    "step-counter": lambda: StepCounter(7),
    "success": lambda: SuccessReward("done"),
    "unary": lambda: UnaryTransform(["observation"], ["more"], fn=lambda x: x.repeat_interleave(2, -1)),
    "vec-norm": lambda: VecNorm(["observation", "reward"]).freeze(),
    "vec-norm-every": lambda: VecNorm(decay=1.0).freeze(),
}
DISCRETE = {
    "mask": (ActionMask, TicTacToeEnv),
    "projection": (lambda: DiscreteActionProjection(2, 5), CartPoleEnv),
    "projection-integers": (
        lambda: DiscreteActionProjection(2, 5),
        lambda batch, seed: CartPoleEnv(batch, seed=seed, categorical_action_encoding=True),
    ),
}
REFUSED_ON_BATCHES = {"init-tracker", "step-counter", "vec-norm", "vec-norm-every", "reward-norm"}


def around(make, env=PendulumEnv, batch=()):
    return TransformedEnv(env(batch, seed=0), Compose(make(), StepCounter(9, step_count_key="clock")))


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("name", PENDULUM)
def test_it_keeps_the_rules_in_an_environment(name, batch):
    check_transform(PENDULUM[name](), wrap=lambda t: around(lambda: t, batch=batch))


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("name", DISCRETE)
def test_it_keeps_the_rules_with_discrete_actions(name, batch):
    make, env = DISCRETE[name]
    check_transform(make(), wrap=lambda t: around(lambda: t, env=env, batch=batch))


@pytest.mark.parametrize("name", PENDULUM)
def test_copies_do_the_same_and_are_independent(name):
    if name == "unary":
        pytest.skip("a lambda cannot be pickled")
    one = around(PENDULUM[name], batch=[2])
    one.set_seed(1)
    one.rollout(5)
    transform = one.transform
    for other in (
        transform.clone(),
        copy.deepcopy(one).transform.clone(),
        pickle.loads(pickle.dumps(transform.clone())),
    ):
        twin = TransformedEnv(PendulumEnv([2], seed=0), other)
        assert repr(twin.transform) == repr(transform)
        other.load_state_dict(transform.state_dict())
        results = []
        for env in (one, twin):
            state = transform.state_dict()
            env.set_seed(3)
            torch.manual_seed(3)
            results.append(env.rollout(6))
            one.transform.load_state_dict(state)
        assert (results[0] == results[1]).all(), name


@pytest.mark.parametrize("name", sorted(set(PENDULUM) - REFUSED_ON_BATCHES))
def test_a_batch_of_the_environment_is_transformed_as_its_steps(name):
    plain = PendulumEnv([2], seed=0)
    torch.manual_seed(0)
    raw = plain.rollout(5)
    transform = PENDULUM[name]()
    env = around(lambda: transform, batch=[2])
    env.set_seed(0)
    plain.set_seed(0)
    if transform.in_keys_inv or name.startswith(("action", "dtype-every", "reward-sum")):
        assert transform.clone()(raw).batch_size == raw.batch_size
        return
    torch.manual_seed(0)
    plain.set_seed(5)
    torch.manual_seed(0)
    raw = plain.rollout(5)
    env.set_seed(5)
    torch.manual_seed(0)
    expected = env.rollout(5)
    got = transform.clone()(raw)
    for key in transform.out_keys:
        if key in ("pay", "over", "reward", "rewards"):
            torch.testing.assert_close(got["next", key], expected["next", key])
        else:
            torch.testing.assert_close(got.get(key), expected.get(key))
            torch.testing.assert_close(got["next"].get(key), expected["next"].get(key))


def test_an_unknown_key_is_named_with_the_nearest_and_the_transform():
    with pytest.raises(
        Exception, match=r"RewardScaling\(in_keys=\['rewards'\]\) has the key 'rewards'.*did you mean 'reward'"
    ):
        TransformedEnv(PendulumEnv(), RewardScaling(0.0, 1.0, ["rewards"]))


def test_a_failing_transform_names_itself_and_the_entry():
    env = TransformedEnv(PendulumEnv(), UnaryTransform(["observation"], ["x"], fn=lambda x: x[..., :2]))
    env.transform.fn = lambda x: x.view(7)
    with pytest.raises(Exception, match=r"UnaryTransform\(.*failed on 'observation', torch.float32 \(3,\)"):
        env.reset()


def test_a_missing_key_of_a_batch_is_named():
    with pytest.raises(Exception, match="reads 'reward', which the batch has neither at the root nor under 'next'"):
        RewardScaling(0.0, 2.0)(TensorDict({"x": torch.zeros(2)}, [2]))
