"""Each package, alone with rl-core in a fresh environment, does its smallest real job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fresh_env import CORE_NEEDS, FreshEnv, fresh_env

SMALLEST_USE = {
    "core": """
from rl.core import Bounded, Composite
spec = Composite(action=Bounded(-1.0, 1.0, (2,))).expand(3)
assert spec.is_in(spec.rand())
""",
    "envs": """
from rl.envs import PendulumEnv, StepCounter, TransformedEnv
rollout = TransformedEnv(PendulumEnv(), StepCounter(max_steps=5)).rollout(8)
assert rollout.batch_size == (5,) and rollout["next", "truncated"][-1]
""",
    "modules": """
import torch
from tensordict import TensorDict
from rl.core import Categorical
from rl.modules import MLP, QValueActor
actor = QValueActor(MLP(in_features=4, out_features=2, num_cells=[8]), in_keys=["observation"], spec=Categorical(2))
td = actor(TensorDict(observation=torch.zeros(3, 4), batch_size=[3]))
assert td["action"].shape == (3,) and td["chosen_action_value"].shape == (3, 1)
""",
    "collectors": """
from rl.testing import CountingEnv
from rl.collectors import Collector
collector = Collector(CountingEnv(length=3), frames_per_batch=4, total_frames=8)
batches = list(collector)
assert [tuple(b.batch_size) for b in batches] == [(4,), (4,)]
""",
    "replay": """
import torch
from tensordict import TensorDict
from rl.replay import LazyTensorStorage, ReplayBuffer
buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
buffer.extend(TensorDict(observation=torch.arange(20.0)[:, None], batch_size=[20]))
assert buffer.sample()["observation"].shape == (8, 1)
""",
    "objectives": """
import torch
from rl.objectives.value.functional import generalized_advantage_estimate
zeros, done = torch.zeros(1, 3, 1), torch.tensor([[[False], [False], [True]]])
advantage, target = generalized_advantage_estimate(0.5, 1.0, zeros, zeros, torch.ones(1, 3, 1), done)
assert advantage.flatten().tolist() == [1.75, 1.5, 1.0]
""",
    "llm": """
import torch
from rl.llm import DAPOLoss, Rollout, Segment, TokenScorer, padded
prompt, answer = Segment.given([1, 2], role="user"), Segment.sampled([3, 0], [-1.609, -1.609], version=0)
loss = DAPOLoss(TokenScorer(torch.nn.Embedding(5, 5, _weight=torch.zeros(5, 5))))
out = loss(padded([Rollout.of([prompt, answer])], advantage=torch.ones(1, 1)))
assert out["loss_objective"].shape == ()
""",
    "native": """
import torch
from rl.core.registry import discovered
from rl.native import NativePriorityTree, why_not
cpu = {"capacity": 100, "device": torch.device("cpu"), "dtype": torch.float32}
tree = discovered().answer("rl_priority_tree", **cpu).value if not why_not() else None
if tree is not None:
    tree.update(torch.tensor([3, 5]), torch.tensor([1.0, 0.0]))
    assert isinstance(tree, NativePriorityTree) and tree.sample(4)[0].tolist() == [3, 3, 3, 3]
else:
    assert "python -m rl.native._build" in why_not()
""",
    "prio_cuda": """
import torch
from rl.core.registry import discovered
from rl.prio_cuda import CudaPriorityTree, why_not
found = discovered().answer("rl_priority_tree", capacity=100, device=torch.device("cuda"), dtype=torch.float32)
if torch.cuda.is_available() and not why_not(torch.cuda.current_device()):
    tree = found.value
    tree.update(torch.tensor([3, 5], device="cuda"), torch.tensor([1.0, 0.0], device="cuda"))
    assert isinstance(tree, CudaPriorityTree) and tree.sample(4)[0].tolist() == [3, 3, 3, 3]
elif not torch.cuda.is_available():
    assert found is None and "rl-prio-cuda" in why_not()
""",
    "recurrent_triton": """
import os
os.environ["TRITON_INTERPRET"] = "1"  # on tensors of the CPU
import torch
from torch import nn
from rl.core.registry import discovered
from rl.recurrent_triton import TritonBackend, why_not
if not why_not("cpu"):
    gru, x, mask = nn.GRU(3, 4, batch_first=True), torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.bool)
    asked = {"cell": "gru", "name": "triton", "device": torch.device("cpu")}
    backend = discovered().answer("rl_recurrent_backend", **asked).value
    out, _ = backend(gru, x, (torch.zeros(2, 1, 4),), mask)
    assert isinstance(backend, TritonBackend) and torch.allclose(out, gru(x)[0], atol=1e-6)
else:
    assert "needs Triton" in why_not("cpu")
""",
    "torchrl": """
import rl.torchrl
rl.torchrl.install()
from torchrl.data import Composite, UnboundedContinuousTensorSpec
assert Composite(a=UnboundedContinuousTensorSpec((3,)), b=None).rand()["a"].shape == (3,)
try:
    from torchrl.envs import GymEnv
except ImportError as error:
    assert "pip install rl-collectors rl-replay rl-envs" in str(error), error
""",
    "testing": """
import warnings
from rl.testing import CountingEnv, check_env
warnings.simplefilter("ignore")  # what was not exercised is in the report
assert check_env(lambda: CountingEnv(length=3, batch_size=(2,)), steps=10).owner == "CountingEnv"
""",
}
COMPANIONS = {"collectors": ("rl-testing",)}
"""Packages of ours that the smallest job of a package needs in addition to it."""
MORE_NEEDS = {"recurrent_triton": ("triton",)}
"""Dependencies of a package in addition to rl-core."""
SIBLINGS = sorted([*SMALLEST_USE, "trainers"])


def distribution(name: str) -> str:
    """The distribution that brings ``rl.NAME``."""
    return "rl-" + name.replace("_", "-")


@pytest.fixture(scope="module", params=sorted(SMALLEST_USE))
def alone(request, wheels: Path, tmp_path_factory) -> tuple[str, FreshEnv]:
    """The name of a package and an environment that holds it, rl-core and rl-core's needs."""
    env = fresh_env(tmp_path_factory.mktemp(request.param), (*CORE_NEEDS, *MORE_NEEDS.get(request.param, ())))
    env.install(wheels, distribution(request.param), *COMPANIONS.get(request.param, ()))
    return request.param, env


def test_it_does_its_smallest_job(alone):
    name, env = alone
    env.script(SMALLEST_USE[name])


def test_it_lists_its_components_and_no_others(alone):
    name, env = alone
    done = env.rl("plugins", "--json")
    assert done.returncode == 0, done.stderr
    plugins = {record["distribution"]: record for record in json.loads(done.stdout)}
    declares = name not in ("core", "testing")
    assert set(plugins) == ({distribution(name)} if declares else set())
    if declares:
        assert plugins[distribution(name)]["state"] == "loaded"
        assert plugins[distribution(name)]["components"] or name == "torchrl"  # which has a command


def test_no_sibling_and_no_simulator_came_along(alone):
    name, env = alone
    installed = env.script("from importlib.metadata import distributions as d; print(*(x.name for x in d()))").split()
    ours = {dist for dist in installed if dist.startswith("rl-")}
    assert ours == {"rl-core", distribution(name), *COMPANIONS.get(name, ())}
    assert not {"gymnasium", "pytest", "rich", "jsonargparse"} & set(installed)


def test_doctor_is_content(alone):
    _, env = alone
    done = env.rl("doctor")
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_it_imports_no_torch(alone):
    name, env = alone
    env.script(f"import rl.{name}, sys; assert 'torch' not in sys.modules")


def test_a_missing_simulator_is_named_with_its_install_line(wheels, tmp_path):
    env = fresh_env(tmp_path / "env", CORE_NEEDS)
    env.install(wheels, "rl-envs")
    done = env.run("-c", "from rl.core import load; load('env', 'gym')")
    assert done.returncode == 1
    assert 'pip install "rl-envs[gym]"' in done.stderr
