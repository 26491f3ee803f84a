"""What a reader of TorchRL's first pages types, with our package names: it must run and mean the same."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn

from rl.collectors import Collector
from rl.core import Categorical
from rl.envs import Compose, GymEnv, PendulumEnv, StepCounter, TransformedEnv
from rl.modules import MLP, ConvNet, NormalParamExtractor, QValueActor, TanhNormal
from rl.objectives import DQNLoss
from rl.replay import LazyTensorStorage, ReplayBuffer


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def lazy_policy():
    net = nn.Sequential(nn.LazyLinear(64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())
    return TensorDictModule(net, in_keys=["observation"], out_keys=["action"])


class TestDataModel:
    """The overview and the page about the data model."""

    def test_a_rollout_is_one_tensordict(self):
        env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=200))
        rollout = env.rollout(max_steps=32, policy=lazy_policy())
        assert rollout.batch_size == torch.Size([32])
        assert rollout["next", "reward"].shape[:1] == torch.Size([32])
        assert rollout["observation"].shape == (32, 3)
        assert rollout["step_count"].flatten().tolist() == list(range(32))
        assert rollout.names == ["time"]

    def test_a_critic_reads_the_observations_of_a_rollout(self):
        rollout = TransformedEnv(PendulumEnv(), StepCounter(max_steps=200)).rollout(max_steps=4)
        net = nn.Sequential(nn.LazyLinear(256), nn.Tanh(), nn.Linear(256, 1))
        critic = TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])
        assert critic(rollout)["state_value"].shape == (4, 1)

    def test_batches_behave_like_tensors(self):
        rollout = PendulumEnv().rollout(max_steps=6)
        batch = torch.stack([rollout, rollout], dim=0).reshape(-1)
        assert batch.batch_size == (12,)
        assert [len(batch[i : i + 4]) for i in range(0, len(batch), 4)] == [4, 4, 4]


class TestIntroduction:
    """The introduction, part by part."""

    def test_quick_start(self):
        env = GymEnv("CartPole-v1")
        features = env.observation_spec["observation"].shape[-1]
        net = MLP(in_features=features, out_features=2, num_cells=[64, 64])
        actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
        rollout = env.rollout(max_steps=200, policy=actor)
        assert rollout["next", "reward"].sum().item() == rollout.shape[0]

    def test_specs_print_what_they_allow(self):
        env = GymEnv("Pendulum-v1")
        assert repr(env.action_spec) == (
            "BoundedContinuous(\n"
            "    shape=torch.Size([1]),\n"
            "    space=ContinuousBox(\n"
            "        low=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True),\n"
            "        high=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True)),\n"
            "    device=cpu,\n"
            "    dtype=torch.float32,\n"
            "    domain=continuous)"
        )
        text = repr(env.observation_spec)
        assert text.startswith("Composite(\n    observation: BoundedContinuous(\n        shape=torch.Size([3]),")
        assert text.endswith("    device=None,\n    shape=torch.Size([]),\n    data_cls=None)")

    def test_reset_and_step(self):
        env = GymEnv("Pendulum-v1")
        td = env.reset()
        assert set(td.keys()) == {"observation", "done", "terminated", "truncated"}
        td["action"] = env.action_spec.rand()
        stepped = env.step(td)
        assert stepped is td
        assert set(td["next"].keys()) == {"observation", "reward", "done", "terminated", "truncated"}
        assert td["next", "reward"].shape == (1,)

    def test_transforms_print(self):
        env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(max_steps=200)))
        flat = "".join(repr(env).split())
        assert flat == (
            "TransformedEnv(env=GymEnv(env=Pendulum-v1,batch_size=torch.Size([]),device=None),"
            "transform=Compose(StepCounter(out_keys=['step_count'])))"
        )

    def test_a_module_adds_a_key(self):
        module = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["action"])
        td = TensorDict(observation=torch.randn(4, 3), batch_size=[4])
        module(td)
        assert td["action"].shape == (4, 2)

    def test_networks(self):
        assert MLP(in_features=64, out_features=10, num_cells=[128, 128])(torch.randn(4, 64)).shape == (4, 10)
        cnn = ConvNet(num_cells=[32, 64], kernel_sizes=[8, 4], strides=[4, 2])
        assert cnn(torch.randn(4, 3, 84, 84)).shape == (4, 5184)

    def test_a_stochastic_policy(self):
        net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 4), NormalParamExtractor())
        policy = ProbabilisticTensorDictSequential(
            TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
            ProbabilisticTensorDictModule(
                in_keys=["loc", "scale"], out_keys=["action"], distribution_class=TanhNormal, return_log_prob=True
            ),
        )
        td = TensorDict(observation=torch.randn(4, 3), batch_size=[4])
        policy(td)
        assert td["action"].shape == (4, 2)
        assert td["action"].abs().max() <= 1
        assert td["action_log_prob"].shape == (4,)

    def test_the_old_name_of_the_collector_works_and_says_so(self):
        from rl.collectors import SyncDataCollector

        actor = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
        with pytest.warns(DeprecationWarning, match="Collector"):
            collector = SyncDataCollector(
                create_env_fn=lambda: GymEnv("Pendulum-v1"), policy=actor, frames_per_batch=200, total_frames=1000
            )
        shapes = [tuple(batch.shape) for batch in collector]
        collector.shutdown()
        assert shapes == [(200,)] * 5

    def test_a_buffer(self):
        buffer = ReplayBuffer(storage=LazyTensorStorage(max_size=10000))
        buffer.extend(TensorDict(obs=torch.randn(100, 4), action=torch.randn(100, 2), batch_size=[100]))
        assert buffer.sample(32).batch_size == (32,)

    def test_a_loss(self):
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
        qnet = TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])
        loss_fn = DQNLoss(QValueActor(qnet, in_keys=["observation"], spec=Categorical(n=2)), action_space="categorical")
        flags = {"done": torch.zeros(32, 1, dtype=torch.bool), "terminated": torch.zeros(32, 1, dtype=torch.bool)}
        outcome = TensorDict(
            {"observation": torch.randn(32, 4), "reward": torch.randn(32, 1), **flags}, batch_size=[32]
        )
        batch = TensorDict(
            observation=torch.randn(32, 4), action=torch.randint(0, 2, (32,)), next=outcome, batch_size=[32]
        )
        loss = loss_fn(batch)["loss"]
        loss.backward()
        assert loss.shape == ()
        assert all(parameter.grad is not None for parameter in net.parameters())

    @pytest.mark.filterwarnings(
        "ignore:DQNLoss was called 10 times.*nothing has moved:UserWarning"
    )  # the example has no updater
    def test_the_whole_loop_learns_something(self):
        env = GymEnv("CartPole-v1")
        net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
        qnet = TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"])
        policy = QValueActor(qnet, in_keys=["observation"], spec=env.action_spec)
        collector = Collector(
            create_env_fn=lambda: GymEnv("CartPole-v1"), policy=policy, frames_per_batch=100, total_frames=2000
        )
        buffer = ReplayBuffer(storage=LazyTensorStorage(max_size=10000))
        loss_fn = DQNLoss(policy, action_space=env.action_spec)
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
        before = [parameter.clone() for parameter in policy.parameters()]
        for batch in collector:
            buffer.extend(batch)
            loss = loss_fn(buffer.sample(64))
            optimizer.zero_grad()
            loss["loss"].backward()
            optimizer.step()
            assert torch.isfinite(loss["loss"])
        collector.shutdown()
        env.close()
        assert len(buffer) == 2000
        assert all(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
