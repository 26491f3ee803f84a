"""A loaded state goes to the device of the object that loads it, wherever the state was saved.

A file has every tensor on the CPU. The device ``meta`` stands in for a GPU where no values are read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.collectors import Collector
from rl.core.errors import CheckpointError
from rl.core.state import load, pack, save, set_generator, unpack
from rl.envs import (
    AutoResetTransform,
    CatFrames,
    Compose,
    DeviceCastTransform,
    ObservationNorm,
    ParallelEnv,
    PendulumEnv,
    RandomTruncationTransform,
    RewardNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
    VecNorm,
)
from rl.replay import LazyTensorStorage, ReplayBuffer
from rl.replay.samplers import ConsumingSampler, PrioritizedSampler, SamplerWithoutReplacement, SliceSampler
from rl.replay.transforms import MultiStepTransform
from rl.replay.writers import RoundRobinWriter

META = torch.device("meta")


class Case(NamedTuple):
    """An object on the other device, the state to load, and where its tensors are afterwards."""

    owner: Any
    state: Any
    held: Callable[[], Any]


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, TensorDictBase):
        return [leaf for leaf in value.values(include_nested=True, leaves_only=True) if isinstance(leaf, Tensor)]
    if isinstance(value, dict):
        return tensors([*value.values()])
    return [leaf for part in value for leaf in tensors(part)] if isinstance(value, (list, tuple)) else []


def moved(value: Any, device: Any) -> Any:
    """A state with each tensor on `device`, as ``torch.load(..., map_location=device)`` returns it."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(part, device) for part in value)
    return value


def env_on(device: Any, *transforms: Any) -> TransformedEnv:
    """The transforms on `device`, after a simulator on the CPU; observations without bounds, which would be read."""
    inner = (StepCounter(3), VecNorm(["observation"]), DeviceCastTransform(device))
    return TransformedEnv(PendulumEnv([2], seed=0), Compose(*inner, *transforms))


def collector_on(device: Any, **kwargs: Any) -> Collector:
    env = env_on(device, RewardSum())
    return Collector(env, None, frames_per_batch=8, total_frames=-1, track_traj_ids=True, **kwargs)


def collector(**kwargs: Any) -> Case:
    before = collector_on("cpu", **kwargs)
    before.collect()
    after = collector_on(META, **kwargs)
    return Case(after, before.state_dict(), lambda: (after._runner.root, after._ids))


def trajectories(**kwargs: Any) -> Case:
    before, after = (collector_on(device, trajs_per_batch=1, **kwargs) for device in ("cpu", META))
    before.collect()
    return Case(after, before.state_dict(), lambda: (after._whole._parts, after._whole._ended))


def transform(make: Callable[[], Any], attributes: str) -> Case:
    """A transform that has run on the CPU, and another one after a cast to the other device."""
    before, after = make(), make()
    env_on("cpu", before).rollout(4, break_when_any_done=False)
    env_on(META, after)
    return Case(after, before.state_dict(), lambda: [getattr(after, name) for name in attributes.split()])


def before_a_cast() -> Case:
    """Frames of the simulator, which stays on the CPU where the caller does not."""
    before, after = (CatFrames(2, -1, ["observation"]) for _ in range(2))
    env = TransformedEnv(PendulumEnv([2], seed=0), before)
    env.rollout(2)
    TransformedEnv(PendulumEnv([2], seed=0), Compose(after, DeviceCastTransform(META)))

    def held() -> Any:
        assert {frame.device.type for frame in tensors(after._frames)} == {"cpu"}
        return moved(after._frames, META)

    return Case(after, before.state_dict(), held)


def auto_reset() -> Case:
    after = AutoResetTransform(replace=False)
    env_on(META, after)
    keys = [*after._observed, *after._flags]
    state = {"begun": [torch.zeros(2, 1) for _ in keys], "waiting": torch.zeros(2, 1, dtype=torch.bool)}
    return Case(after, state, lambda: (after._begun, after._waiting))


def unattached() -> Case:
    before, after = VecNorm(["observation"]), VecNorm(["observation"])
    env_on("cpu", before).rollout(2)

    def held() -> Any:
        env_on(META, after)
        return after._stats["observation"].tensors

    return Case(after, before.state_dict(), held)


def measured() -> Case:
    before = ObservationNorm(loc=torch.zeros(3), scale=torch.ones(3))
    after = ObservationNorm(loc=torch.zeros(3), scale=torch.ones(3))
    after.to(META)
    return Case(after, before.state_dict(), lambda: (after.loc, after.scale))


def steps(device: Any = "cpu") -> TensorDict:
    done = torch.tensor([False, False, True, False]).reshape(1, 4, 1)
    after = TensorDict({"reward": torch.ones(1, 4, 1), "done": done, "terminated": done, "x": torch.ones(1, 4)}, [1, 4])
    return TensorDict({"x": torch.zeros(1, 4), "next": after}, [1, 4]).to(device)


def held_back() -> Case:
    before, after = MultiStepTransform(n_steps=2, gamma=0.9), MultiStepTransform(n_steps=2, gamma=0.9)
    before.inv(steps())
    return Case(after, before.state_dict(), lambda: after._joined(steps(META)))


def storage() -> Case:
    before, after = (LazyTensorStorage(4, device=device) for device in ("cpu", META))
    before.set(torch.arange(4), TensorDict({"x": torch.zeros(4, 2)}, [4]))
    return Case(after, before.state_dict(), lambda: list(after._cells.values()))


def prefetched() -> Case:
    before, after = (
        ReplayBuffer(storage=LazyTensorStorage(4, device=device), batch_size=2, prefetch=1) for device in ("cpu", META)
    )
    before.extend(TensorDict({"x": torch.zeros(4, 2)}, [4]))
    before.sample()
    return Case(after, before.state_dict(), lambda: [batch[0] for batch, _ in after._flight.results()])


CASES: dict[str, Callable[[], Case]] = {
    "a collector": collector,
    "the storing device of a collector": partial(collector, storing_device="meta"),
    "complete trajectories": trajectories,
    "CatFrames": partial(transform, lambda: CatFrames(2, -1, ["observation"]), attributes="_frames"),
    "CatFrames before a cast": before_a_cast,
    "RandomTruncationTransform": partial(
        transform, lambda: RandomTruncationTransform(2, 3), attributes="_horizon _episode"
    ),
    "AutoResetTransform": auto_reset,
    "RewardNorm": partial(transform, RewardNorm, attributes="_returns"),
    "a VecNorm that is appended later": unattached,
    "ObservationNorm": measured,
    "MultiStepTransform": held_back,
    "a storage": storage,
    "prefetched batches": prefetched,
}


@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_to_the_device_of_what_loads_it(name, tmp_path):
    case = CASES[name]()
    save(tmp_path / "x.safetensors", pack(case.state, "state"))
    case.owner.load_state_dict(unpack(load(tmp_path / "x.safetensors"), "state"))
    found = tensors(case.held())
    assert found
    assert {leaf.device for leaf in found} == {META}


def test_the_root_of_a_worker_is_where_its_environments_are():
    # it lives in a worker process, where no second device can be pretended
    from rl.envs.batched._chunk import Chunk

    after = Chunk([partial(env_on, "cpu")], 0, None)
    state = {**after.state_dict(), "root": {"observation": torch.zeros(1, 2, 3)}}
    after.env = SimpleNamespace(device=META, load_state_dict=lambda _: True)  # specs on meta cannot be compared
    after.load_state_dict(state)
    assert {leaf.device for leaf in tensors(after._root)} == {META}


@pytest.mark.parametrize("device", [None, torch.device("meta")])
def test_a_tensordict_that_was_on_a_gpu_loads_without_one(device):
    packed = pack(TensorDict({"x": torch.ones(2)}, [2], device="cpu"), "a batch")
    packed["device"] = "cuda:99"
    found = unpack(packed, "a batch", device)
    assert found.device == found["x"].device == (device or torch.device("cpu"))


class Elsewhere:
    """What this test needs of a generator on another kind of device: a state of another size."""

    device = "cuda:0"

    def get_state(self) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, state: Tensor) -> None:
        raise RuntimeError("RNG state is wrong size")


@pytest.mark.parametrize(
    ("generator", "state"),
    [(Elsewhere(), torch.Generator().get_state()), (torch.Generator(), Elsewhere().get_state())],
    ids=["saved on the CPU", "saved on CUDA"],
)
def test_a_generator_of_another_kind_of_device_is_refused(generator, state):
    with pytest.raises(CheckpointError, match="another kind of device"):
        set_generator(generator, state, "Sampler")


def test_a_buffer_refuses_the_generator_of_another_kind_of_device():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, generator=torch.Generator())
    state = buffer.state_dict() | {"generator": Elsewhere().get_state()}
    with pytest.raises(CheckpointError, match="another kind of device"):
        buffer.load_state_dict(state)


@pytest.mark.parametrize("batched", [False, True])
def test_an_environment_keeps_its_own_generator_instead_of_that_of_another_kind_of_device(batched):
    env = TransformedEnv(PendulumEnv([2], seed=0)) if batched else PendulumEnv([2], seed=0)
    generator = (env.base_env if batched else env)._generator
    before, state = generator.get_state(), env.state_dict()
    (state["env"] if batched else state)["generator"] = Elsewhere().get_state()
    with pytest.warns(UserWarning, match="another kind of device"):
        assert env.load_state_dict(state) is False
    assert torch.equal(generator.get_state(), before)


# ---- on a GPU


def buffer_of(sampler: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(8), sampler=sampler, batch_size=2, writer=RoundRobinWriter(track_generations=True)
    )
    done = torch.arange(8).remainder(4).eq(3).unsqueeze(-1)
    buffer.extend(TensorDict({"x": torch.zeros(8, 2), ("next", "done"): done}, [8]))
    buffer.sample()
    return buffer


def stepped(env: Any) -> Any:
    env.rollout(2)
    return env


MOVED: dict[str, Callable[[], Any]] = {
    "PendulumEnv": lambda: stepped(PendulumEnv([2], seed=0)),
    "RandomTruncationTransform": lambda: stepped(env_on("cpu", RandomTruncationTransform(2, 3))),
    "ParallelEnv": lambda: stepped(ParallelEnv(1, partial(PendulumEnv, seed=0))),
    "a collector": lambda: collector_on("cpu"),
    "SamplerWithoutReplacement": lambda: buffer_of(SamplerWithoutReplacement()),
    "ConsumingSampler": lambda: buffer_of(ConsumingSampler(3)),
    "PrioritizedSampler": lambda: buffer_of(PrioritizedSampler(8, 0.6, 0.4)),
    "SliceSampler": lambda: buffer_of(SliceSampler(num_slices=1, end_key=("next", "done"))),
}


def use(owner: Any) -> None:
    if isinstance(owner, ReplayBuffer):
        owner.sample()
    elif isinstance(owner, Collector):
        owner.collect()


@pytest.mark.gpu
@pytest.mark.parametrize("name", MOVED)
def test_a_state_that_was_moved_to_a_gpu_loads_on_the_cpu(name):
    owner = MOVED[name]()
    state = owner.state_dict()
    owner.load_state_dict(moved(state, "cuda"))
    assert {leaf.device.type for leaf in tensors(owner.state_dict())} <= {"cpu"}
    use(owner)


@pytest.mark.gpu
@pytest.mark.parametrize(("one", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_collector_continues_on_another_device(one, other, tmp_path):
    def made(device: str) -> Collector:
        chain = Compose(StepCounter(3), CatFrames(2, -1, ["observation"]))
        env = TransformedEnv(PendulumEnv([2], device, seed=0), chain)
        return Collector(env, None, frames_per_batch=8, total_frames=-1, track_traj_ids=True, trajs_per_batch=1)

    before, after = made(one), made(other)
    before.collect()
    save(tmp_path / "x.safetensors", before.state_dict())
    for state in (before.state_dict(), load(tmp_path / "x.safetensors")):
        with pytest.warns(UserWarning, match="another kind of device"):
            after.load_state_dict(state)
        assert {leaf.device.type for leaf in tensors(after.collect())} == {other}
