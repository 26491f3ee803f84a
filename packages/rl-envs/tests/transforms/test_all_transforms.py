"""Every transform against the rules of transforms: in environments of any batch, as a copy, pickled, on a batch."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, lazy_stack
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, RLError
from rl.envs import (
    ActionChunkTransform,
    ActionClipping,
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
    FlattenTensorDict,
    Hash,
    InitTracker,
    LineariseRewards,
    ModuleTransform,
    NextStateReconstructor,
    ObservationIndices,
    ObservationNorm,
    PendulumEnv,
    PermuteTransform,
    RemoveEmptySpecs,
    RenameTransform,
    RewardClipping,
    RewardNorm,
    RewardScaling,
    RewardSum,
    RNDTransform,
    SelectTransform,
    SignTransform,
    SqueezeTransform,
    Stack,
    StepCounter,
    SuccessReward,
    TargetReturn,
    TicTacToeEnv,
    TransformedEnv,
    UnaryTransform,
    UnsqueezeTransform,
    VecNorm,
)
from rl.testing import check_transform

F32, F64 = torch.float32, torch.float64


def doubled(x):
    return x.repeat_interleave(2, -1)


def halved(x):
    return x[..., ::2]


def scale(*prefix):
    return TensorDictModule(nn.Softsign(), [(*prefix, "observation")], [(*prefix, "scaled")])


def nested(*keys):
    return [("nested", key) for key in keys]


PENDULUM = {
    "action-clipping": ActionClipping,
    "action-clipping-renamed": lambda: ActionClipping(["action"], ["unbounded"]),
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
    "hash": lambda: Hash(["observation"], ["hash"]),
    "module": lambda: ModuleTransform(module=scale(), no_grad=True),
    "observation-indices": lambda: ObservationIndices([2, 0]),
    "observation-norm": lambda: ObservationNorm(1.0, 2.0, standard_normal=True),
    "observation-norm-inverse": lambda: ObservationNorm(1.0, 2.0, in_keys_inv=["action"]),
    "permute": lambda: Compose(UnsqueezeTransform(-1), PermuteTransform([-1, -2])),
    "remove-empty": RemoveEmptySpecs,
    "rnd": lambda: RNDTransform(nn.Linear(3, 4), nn.Linear(3, 4)).freeze(),
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
    "target": lambda: TargetReturn(3.0),
    "target-constant": lambda: TargetReturn(3.0, "constant", ["reward"], ["goal"]),
    "unary": lambda: UnaryTransform(["observation"], ["more"], fn=doubled),
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
BOTH_WAYS = {
    "action-scaling-both": lambda: ActionScaling(in_keys=["action"], loc=1.0, scale=2.0),
    "dtype-both": lambda: DTypeCastTransform(F32, F64, ["observation"], None, ["observation"]),
    "observation-norm-both": lambda: ObservationNorm(1.0, 2.0, ["observation"], None, ["observation"]),
    "rename-both": lambda: RenameTransform(["observation"], ["obs"], ["observation"], ["obs"]),
    "squeeze-both": lambda: SqueezeTransform(-1, ["action"], None, ["action"]),
    "unary-both": lambda: UnaryTransform(["observation"], ["x"], ["observation"], ["x"], fn=doubled, inv_fn=halved),
    "unsqueeze-both": lambda: UnsqueezeTransform(-1, ["observation"], None, ["observation"]),
}
NESTED = {
    "action-scaling-both": lambda: ActionScaling(nested("action"), None, nested("action"), loc=1.0, scale=2.0),
    "binarize": lambda: BinarizeReward(nested("reward")),
    "cat": lambda: CatTensors(nested("th", "thdot"), *nested("both"), unsqueeze_if_oor=True, del_keys=False),
    "clip": lambda: ClipTransform(nested("observation"), low=-0.5, high=0.5),
    "dtype": lambda: DTypeCastTransform(F32, F64, nested("observation"), None, nested("action")),
    "exclude": lambda: ExcludeTransform(*nested("observation")),
    "expand": lambda: ExpandAs(*nested("reward", "observation", "rewards")),
    "flatten": lambda: Compose(
        UnsqueezeTransform(-1, nested("observation")), FlattenObservation(-2, -1, nested("observation"))
    ),
    "hash": lambda: Hash(nested("observation"), nested("hash")),
    "module": lambda: ModuleTransform(module=scale("nested"), no_grad=True),
    "linearise": lambda: LineariseRewards(nested("reward"), weights=[2.0]),
    "observation-norm": lambda: ObservationNorm(1.0, 2.0, nested("observation"), standard_normal=True),
    "permute": lambda: Compose(
        UnsqueezeTransform(-1, nested("observation")), PermuteTransform([-1, -2], nested("observation"))
    ),
    "rename-both": lambda: RenameTransform(*2 * [nested("observation"), nested("obs")]),
    "rename-copy": lambda: RenameTransform(nested("done", "reward"), nested("over", "pay"), create_copy=True),
    "reward-clipping": lambda: RewardClipping(-1, 1, nested("reward")),
    "reward-scaling": lambda: RewardScaling(1.0, 0.1, nested("reward"), standard_normal=True),
    "sign": lambda: SignTransform(nested("reward", "observation"), nested("reward", "signs")),
    "squeeze": lambda: Compose(
        UnsqueezeTransform(-1, nested("observation")), SqueezeTransform(-1, nested("observation"))
    ),
    "stack": lambda: Stack(nested("th", "thdot"), *nested("both"), del_keys=False),
    "success": lambda: SuccessReward(*nested("done", "reward")),
    "unary": lambda: UnaryTransform(nested("observation"), nested("more"), fn=doubled),
}
CHUNK_KEYS = {"action": ("action",), "chunk": ("vla_action", "chunk"), "pad": ("action_is_pad",)}
NESTED_DONE = ("next", "nested", "done")
SEQUENCES = {
    "action-chunk": lambda: ActionChunkTransform(3),
    "next-state": lambda: NextStateReconstructor(traj_key=None, fill_value=0.0),
}
NESTED |= {
    "action-chunk": lambda: ActionChunkTransform(
        3, **{f"{name}_key": ("nested", *key) for name, key in CHUNK_KEYS.items()}, done_key=("nested", "done")
    ),
    "next-state": lambda: NextStateReconstructor(
        nested("observation"), traj_key=None, done_key=NESTED_DONE, fill_value=0.0
    ),
}
READS_VALUES = {"finite", "hash"}
REFUSED_ON_BATCHES = {"init-tracker", "step-counter", "vec-norm", "vec-norm-every", "reward-norm"}
REFUSED_ON_BATCHES |= {"target", "target-constant", "rnd"}
BATCHES = {
    name: make for name, make in {**PENDULUM, **BOTH_WAYS, **SEQUENCES}.items() if name not in REFUSED_ON_BATCHES
}
NEEDS_BOUNDS = {"action-clipping", "action-discretizer", "action-discretizer-one-hot", "action-scaling"}


def rollout():
    """A batch [2, 5] of Pendulum-v1."""
    torch.manual_seed(0)
    return PendulumEnv([2], seed=0).rollout(5)


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


@pytest.mark.parametrize("name", BATCHES)
def test_it_keeps_the_rules_on_a_batch(name):
    other = NESTED[name]() if name in NESTED else None
    check_transform(BATCHES[name](), rollout(), nested=other, compiles=name not in READS_VALUES)


@pytest.mark.parametrize("name", sorted(set(BATCHES) - {"device"}))
def test_a_call_writes_what_it_returns_into_the_batch(name):
    torch.manual_seed(0)
    batch, transform = rollout(), BATCHES[name]()
    below, expected = batch["next"], transform.forward(batch.copy())
    out = transform(batch)
    assert out is batch
    assert out["next"] is below
    assert set(batch.keys(True, True)) == set(expected.keys(True, True))
    assert all(torch.equal(batch[key], expected[key]) for key in expected.keys(True, True))


@pytest.mark.parametrize("stack", [torch.stack, lazy_stack])
def test_a_call_writes_texts_and_ragged_entries_into_the_batch(stack):
    def row(number):
        return TensorDict(x=torch.ones(1), group=TensorDict(place=torch.ones(2 + number), batch_size=[2 + number]))

    def later(td):
        td["text"] = NonTensorStack(*(text + "!" for text in td["text"]))
        td["group"] = lazy_stack([one.apply(lambda place: place + 1) for one in td["group"].unbind(0)])
        return td

    batch = stack([row(0).exclude("group"), row(1).exclude("group")])
    batch["group"] = lazy_stack([row(0)["group"], row(1)["group"]])
    batch["text"] = NonTensorStack("a", "b")
    assert Compose(later, SignTransform(["x"]))(batch) is batch
    assert batch["text"] == ["a!", "b!"]
    assert [one["place"].tolist() for one in batch["group"].unbind(0)] == [[2.0] * 2, [2.0] * 3]


def test_a_call_that_changes_the_device_or_batch_size_returns_a_new_batch():
    for transform in (DeviceCastTransform("cpu"), FlattenTensorDict(inverse=False)):
        batch, before = rollout(), rollout()
        out = transform(batch)
        assert out is not batch
        assert (batch == before).all()
        assert (batch.batch_size, batch.device) == (before.batch_size, before.device)


def test_rows_of_a_buffer_keep_their_values_where_a_transform_writes_into_samples():
    replay = pytest.importorskip("rl.replay")
    buffer = replay.ReplayBuffer(storage=replay.ListStorage(1), batch_size=1, collate_fn=lambda rows: rows[0])
    buffer.append_transform(RewardScaling(0.0, 2.0))
    buffer.add(rollout())
    assert (buffer.sample()["next", "reward"] == buffer.sample()["next", "reward"]).all()


@pytest.mark.parametrize("name", sorted(NEEDS_BOUNDS))
def test_without_an_environment_the_bounds_of_an_action_are_missing(name):
    with pytest.raises(RLError, match=r"^Action\w+ has no bounds.*append it to an environment"):
        PENDULUM[name]().inv(rollout())


@pytest.mark.parametrize("name", sorted(set(BATCHES) - NEEDS_BOUNDS))
def test_in_a_buffer_it_does_what_it_does_on_a_batch(name):
    replay = pytest.importorskip("rl.replay")
    transform, batch = BATCHES[name](), rollout().reshape(-1)
    buffer = replay.TensorDictReplayBuffer(storage=replay.LazyTensorStorage(50), batch_size=20)
    buffer.append_transform(transform)
    buffer.extend(batch)
    torch.manual_seed(0)
    sample = buffer.sample()
    torch.manual_seed(0)
    stored = transform.inv(batch) if transform.has_inverse() else batch
    index = buffer.sampler.sample(buffer.storage, 20)[0]
    expected = BATCHES[name]()(stored[index].set("index", index))
    assert (sample == expected).all()
    assert set(sample.keys(True)) == set(expected.keys(True))


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


def test_a_transform_of_a_buffer_is_refused_by_an_environment():
    replay = pytest.importorskip("rl.replay")
    with pytest.raises(ArgumentError, match=r"MultiStepTransform has an inverse.*append it to the replay buffer"):
        TransformedEnv(PendulumEnv(), replay.MultiStepTransform(3, 0.9))


def test_a_flat_buffer_of_multi_step_transitions():
    replay = pytest.importorskip("rl.replay")
    buffer = replay.TensorDictReplayBuffer(storage=replay.LazyTensorStorage(50), batch_size=4)
    buffer.append_transform(FlattenTensorDict()).append_transform(replay.MultiStepTransform(2, 0.5))
    batch = rollout()
    assert buffer.extend(batch).tolist() == list(range(6))
    reward = batch["next", "reward"]
    torch.testing.assert_close(buffer[:]["next", "reward"].view(2, 3, 1), (reward[:, :-1] + reward[:, 1:] / 2)[:, :3])
