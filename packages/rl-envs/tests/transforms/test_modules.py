"""Transforms that run networks, against plain calls of them."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs import (
    Compose,
    EnvBase,
    ModuleTransform,
    PendulumEnv,
    RNDTransform,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    get_primers_from_module,
)
from rl.testing import check_transform


def networks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(3, 8)


def around(*transforms, batch=(4,)):
    return TransformedEnv(PendulumEnv(batch, seed=0), Compose(*transforms, StepCounter(6)))


def rnd(**options):
    return RNDTransform(*networks(), **options)


def error(observation):
    target, predictor = networks()
    with torch.no_grad():
        return (predictor(observation) - target(observation)).square().mean(-1, keepdim=True)


@pytest.mark.parametrize("batch", [(), (4,)], ids=str)
def test_the_intrinsic_reward_is_the_error_of_the_predictor(batch):
    data = around(rnd(normalize_obs=False, normalize_reward=False), batch=batch).rollout(5)
    torch.testing.assert_close(data["next", "intrinsic_reward"], error(data["next", "observation"]))
    assert "intrinsic_reward" not in data.keys()
    assert not data["next", "intrinsic_reward"].requires_grad


def test_observations_and_rewards_are_normalized_by_all_so_far():
    torch.manual_seed(0)
    data = around(rnd(obs_clip=1.5, reward_clip=2.0)).rollout(12, break_when_any_done=False)
    seen = [torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)]

    def scale(index, value):
        """Mean and deviation, with a start weight of 1e-4 for mean 0 and variance 1."""
        seen[index] = torch.cat([seen[index], value.double()])
        total = len(seen[index]) + 1e-4
        mean = seen[index].sum(0) / total
        square = (seen[index] - mean).square().sum(0) + 1e-4 * (1 + mean.square())
        return mean, (square / total).sqrt()

    for t in range(12):
        observation = data["next", "observation"][:, t]
        mean, deviation = scale(0, observation)
        raw = error(((observation - mean) / deviation).float().clamp(-1.5, 1.5))
        _, deviation = scale(1, raw[:, 0])
        expected = (raw / deviation).float().clamp(-2.0, 2.0)
        torch.testing.assert_close(data["next", "intrinsic_reward"][:, t], expected)


def test_elements_that_do_not_step_are_not_counted():
    transform = rnd()
    env = around(transform)
    moved = torch.tensor([[True], [False], [False], [False]])
    td = env.step(env.reset().update({"action": torch.ones(4, 1), "_step": moved}))
    state = transform.state_dict()["stats"]["obs"]
    torch.testing.assert_close(state["count"], torch.tensor(1.0001, dtype=torch.float64))
    torch.testing.assert_close(state["mean"].float(), td["next", "observation"][0] / 1.0001)


def test_the_predictor_can_be_trained_while_clones_and_states_keep_it():
    target, predictor = networks()
    transform = RNDTransform(target, predictor, normalize_obs=False, normalize_reward=False)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    copied = transform.clone()
    assert copied.predictor_network is predictor
    nn.init.zeros_(predictor.weight)
    data = around(copied).rollout(3)
    expected = (predictor.bias - target(data["next", "observation"])).square().mean(-1, keepdim=True)
    torch.testing.assert_close(data["next", "intrinsic_reward"], expected.detach())
    fresh = RNDTransform(*(nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(3, 8)))
    fresh.load_state_dict(rnd().state_dict())
    assert torch.equal(fresh.predictor_network.bias, networks()[1].bias)


def test_statistics_that_are_loaded_first_move_to_the_device_of_the_environment():
    target, predictor = networks()
    transform = RNDTransform(target, predictor)
    source = rnd()
    around(source).rollout(2)
    transform.load_state_dict(source.state_dict())
    for network in (target, predictor):
        network.to("meta")

    class Elsewhere(EnvBase):
        def __init__(self):
            super().__init__(device="meta")
            self.observation_spec = Composite(observation=Unbounded(3))
            self.action_spec = Unbounded(1)

    TransformedEnv(Elsewhere(), transform)
    assert all(one["mean"].is_meta for one in transform.state_dict()["stats"].values())


def test_intrinsic_rewards_keep_the_rules():
    check_transform(rnd().freeze(), wrap=lambda t: around(t, batch=(3,)))
    frozen = rnd().freeze()
    around(frozen).rollout(3)
    assert frozen.state_dict()["stats"]["obs"]["count"] == 1e-4
    with pytest.raises(RLError, match="append it to the environment"):
        rnd()(PendulumEnv([2]).rollout(2))
    with pytest.raises(ArgumentError, match="reads one observation and writes one reward"):
        rnd(in_keys=["th", "thdot"])
    with pytest.raises(SpecError, match=r"'obs'.*does not write.*'observation'"):
        around(rnd(in_keys=["obs"]))


def encoder(out="features"):
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(3, 2), ["observation"], [out])


@pytest.mark.parametrize("out", ["features", "observation", ("agent", "seen")])
def test_a_module_runs_on_what_an_environment_writes(out):
    torch.manual_seed(0)
    plain = PendulumEnv([4], seed=0)
    raw = plain.rollout(4)
    env = TransformedEnv(PendulumEnv([4], seed=0), ModuleTransform(module=encoder(out), no_grad=True))
    torch.manual_seed(0)
    data = env.rollout(4)
    with torch.no_grad():
        for got, given in ((data, raw), (data["next"], raw["next"])):
            torch.testing.assert_close(got.get(out), encoder().module(given["observation"]))
    assert env.observation_spec[out] == Unbounded((4, 2))
    transform = ModuleTransform(module_factory=lambda: encoder(out), no_grad=True)
    mapped = transform(raw.copy())
    assert torch.equal(mapped.get(out), data.get(out))
    assert torch.equal(mapped["next"].get(out), data["next"].get(out))
    check_transform(transform, raw, wrap=lambda t: TransformedEnv(PendulumEnv([3]), t), picklable=False)


def test_a_module_in_a_buffer_gives_what_it_gives_on_a_batch():
    replay = pytest.importorskip("rl.replay")
    buffer = replay.TensorDictReplayBuffer(storage=replay.LazyTensorStorage(9), batch_size=5)
    buffer.append_transform(ModuleTransform(module=encoder(), no_grad=True))
    buffer.extend(PendulumEnv([3]).rollout(3).reshape(-1))
    sample = buffer.sample()
    assert torch.equal(sample["features"], encoder().module(sample["observation"]).detach())
    assert not sample["features"].requires_grad
    buffer = replay.TensorDictReplayBuffer(storage=replay.LazyTensorStorage(9), batch_size=5)
    buffer.append_transform(ModuleTransform(module=encoder()))
    buffer.extend(PendulumEnv([3]).rollout(3).reshape(-1))
    assert buffer.sample()["features"].requires_grad


def test_a_module_moves_with_its_transform_unless_it_has_a_device_of_its_own():
    assert ModuleTransform(module=encoder()).to("meta").module.module.weight.is_meta
    assert not ModuleTransform(module=encoder(), device="cpu").to("meta").module.module.weight.is_meta


def test_a_module_reads_rewards_and_takes_specs():
    penalty = TensorDictModule(lambda reward, th: reward - th.abs().unsqueeze(-1), ["reward", "th"], ["reward"])
    narrow = Composite(reward=Bounded(-99.0, 0.0, (1,)))
    env = around(ModuleTransform(module=penalty, reward_spec_transform=narrow))
    torch.manual_seed(0)
    data = env.rollout(3)
    torch.manual_seed(0)
    raw = around().rollout(3)
    torch.testing.assert_close(data["next", "reward"], raw["next", "reward"] - raw["next", "th"].abs().unsqueeze(-1))
    assert env.full_reward_spec["reward"] == Bounded(-99.0, 0.0, (4, 1))


def test_a_module_maps_actions():
    brake = TensorDictModule(lambda push, thdot: push - thdot.unsqueeze(-1), ["push", "thdot"], ["action"])

    def pushes(spec):
        return Composite(push=Unbounded(spec["action"].shape))

    env = around(ModuleTransform(module=brake, inverse=True, action_spec_transform=pushes))
    assert set(env.full_action_spec.keys()) == {"push"}
    root = env.reset()
    push = torch.full((4, 1), 0.5)
    following = env.step(root.clone().set("push", push))["next"]
    plain = PendulumEnv([4], seed=0)
    expected = plain.step(plain.reset().set("action", push - root["thdot"].unsqueeze(-1)))
    torch.testing.assert_close(following["reward"], expected["next", "reward"])
    with pytest.raises(SpecError, match="reads 'push', which has no spec: pass action_spec_transform="):
        around(ModuleTransform(module=brake, inverse=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "takes either module= or module_factory="),
        ({"module": encoder(), "module_factory": encoder}, "takes either"),
        ({"module": nn.Linear(3, 2)}, r"got Linear: wrap it in tensordict.nn.TensorDictModule"),
        ({"module": encoder(), "use_ray_service": True}, "runs in the process of the environment"),
    ],
)
def test_what_is_no_module_is_refused(options, message):
    with pytest.raises(RLError, match=message):
        ModuleTransform(**options)
    assert ModuleTransform(module=encoder(), use_ray_service=False, num_gpus=None).in_keys == ["observation"]


class Memory(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def make_tensordict_primer(self):
        return TensorDictPrimer({self.name: Unbounded(2)}, default_value=float(len(self.name)))


def test_primers_of_all_parts_of_a_policy_start_their_states():
    policy = nn.Sequential(Memory("h"), nn.ModuleDict({"inner": nn.Sequential(Memory("cell"), nn.Linear(2, 2))}))
    root = around(get_primers_from_module(policy)).reset()
    assert root["h"].tolist() == [[1.0, 1.0]] * 4
    assert root["cell"].tolist() == [[4.0, 4.0]] * 4
    assert isinstance(get_primers_from_module(policy[0]), TensorDictPrimer)
    with pytest.warns(UserWarning, match="Linear has no part with make_tensordict_primer"):
        assert get_primers_from_module(nn.Linear(1, 1)) is None
    assert get_primers_from_module(nn.Linear(1, 1), warn=False) is None
