"""A plain environment, known to the registry as ``test/guess``, that knows nothing of any base class."""

import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.component import Component
from rl.core.mdp import FLAGS
from rl.core.registry import default
from rl.core.specs import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
from rl.envs import LeafEnvBase

LENGTH = 8


class GuessEnv:
    """Shows one of two pictures; naming the right one gives 1, the other 0. Episodes last eight steps.

    It draws from a generator of its own, and offers no more than the protocol asks for, and its state.
    """

    def __init__(self, num_envs=4, device="cpu"):
        self.batch_size = torch.Size([num_envs])
        self.device = torch.device(device)
        self.observation_spec = Composite(observation=Unbounded((num_envs, 2)), shape=(num_envs,))
        self.full_action_spec = Composite(action=Categorical(2, shape=(num_envs,)), shape=(num_envs,))
        self.full_reward_spec = Composite(reward=Unbounded((num_envs, 1)), shape=(num_envs,))
        flag = Binary(shape=(num_envs, 1), dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag, truncated=flag, shape=(num_envs,))
        self._generator = torch.Generator()
        self._steps = torch.zeros(num_envs, 1, dtype=torch.int64)

    def _picture(self):
        kind = torch.randint(2, (*self.batch_size,), generator=self._generator)
        return torch.nn.functional.one_hot(kind, 2).float()

    def _flags(self, done):
        return {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}

    def reset(self, tensordict=None):
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self._steps = torch.where(torch.ones_like(self._steps).bool() if mask is None else mask, 0, self._steps)
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return TensorDict({"observation": self._picture(), **self._flags(done)}, batch_size=self.batch_size)

    def step(self, tensordict):
        self._steps = self._steps + 1
        right = tensordict["observation"].argmax(-1) == tensordict["action"]
        outcome = {"observation": self._picture(), "reward": right.float().unsqueeze(-1)}
        outcome |= self._flags(self._steps >= LENGTH)
        return tensordict.set("next", TensorDict(outcome, batch_size=self.batch_size))

    def step_and_maybe_reset(self, tensordict):
        stepped = self.step(tensordict)
        following = stepped["next"].exclude("reward").clone()
        done = following["done"]
        if done.any():
            fresh = self.reset(TensorDict({"_reset": done}, batch_size=self.batch_size))
            for key in fresh.keys():
                following[key] = torch.where(done, fresh[key], following[key])
        return stepped, following

    def set_seed(self, seed):
        self._generator.manual_seed(seed)
        return seed + 1

    def close(self):
        pass

    def state_dict(self):
        return {"generator": self._generator.get_state(), "steps": self._steps}

    def load_state_dict(self, state):
        self._generator.set_state(state["generator"])
        self._steps = state["steps"].clone()


class RecallEnv(GuessEnv):
    """Shows the picture at the first of four steps only, and pays for naming it at each."""

    _kind = None

    def _picture(self):
        fresh = torch.randint(2, (*self.batch_size,), generator=self._generator)
        begins = self._steps[..., 0] == 0
        self._kind = fresh if self._kind is None else torch.where(begins, fresh, self._kind)
        return torch.nn.functional.one_hot(self._kind, 2).float() * begins.unsqueeze(-1)

    def _flags(self, done):
        return super()._flags(self._steps >= 4)

    def reset(self, tensordict=None):
        root = super().reset(tensordict)
        return root.update(GuessEnv._flags(self, torch.zeros_like(self._steps, dtype=torch.bool)))

    def step(self, tensordict):
        right = (self._kind == tensordict["action"]).float().unsqueeze(-1)
        out = super().step(tensordict)
        out["next", "reward"] = right
        return out

    def state_dict(self):
        return super().state_dict() | {"kind": self._kind}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self._kind = state["kind"].clone()


class EndlessEnv(GuessEnv):
    """Episodes never end, and its state cannot be saved."""

    state_dict = None
    load_state_dict = None

    def _flags(self, done):
        return super()._flags(torch.zeros_like(done))


class OneGuessEnv(GuessEnv):
    """A single environment without a batch dimension."""

    def __init__(self):
        super().__init__(1)
        self.batch_size = torch.Size([])
        for name in ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec"):
            setattr(self, name, getattr(self, name)[0])
        self._steps = self._steps[0]


class TeamEnv(LeafEnvBase):
    """Two groups, of two and one agents, each of which sees one of two pictures and is paid for naming its own.

    In `floats` the action is a number in [-1, 1] instead, whose sign is the name. The second agent of the first group
    leaves after half of an episode, if `leaves`. The mean reward is that of all if `shared`. Wrong names are illegal
    if `strict`. Only the first step of an episode shows the pictures, which stay for all of it, if `brief`.
    """

    def __init__(
        self,
        num_envs=4,
        floats=False,
        groups=("pair", "single"),
        leaves=False,
        shared=False,
        strict=False,
        one_hot=False,
        brief=False,
    ):
        super().__init__(batch_size=(num_envs,))
        self._shared, self._strict, self._one_hot, self._brief = shared, strict, one_hot, brief
        self._sizes = {name: 2 if name == "pair" else 1 for name in groups}
        self._floats, self._leaves = floats, leaves
        self._generator = torch.Generator()
        self._steps = torch.zeros(num_envs, 1, dtype=torch.int64)
        self._kinds = {name: torch.zeros(num_envs, n, dtype=torch.int64) for name, n in self._sizes.items()}
        seen, acts, rewards = Composite({}), Composite({}), Composite({})
        done = Composite({name: Binary(shape=(1,), dtype=torch.bool) for name in FLAGS})
        for name, n in self._sizes.items():
            seen[name, "observation"], rewards[name, "reward"] = Unbounded((n, 2)), Unbounded((n, 1))
            if strict:
                seen[name, "action_mask"] = Binary(shape=(n, 2), dtype=torch.bool)
            acts[name, "action"] = Bounded(-1, 1, shape=(n, 1)) if floats else Categorical(2, shape=(n,))
            if one_hot:
                acts[name, "action"] = OneHot(2, shape=(n, 2), dtype=torch.int64)
            if leaves:
                seen[name, "mask"] = Binary(shape=(n,), dtype=torch.bool)
                for flag in FLAGS:
                    done[name, flag] = Binary(shape=(n, 1), dtype=torch.bool)
        rewards = Composite(reward=Unbounded((1,))) if shared else rewards
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = seen, acts, rewards, done

    def _look(self):
        over = self._steps >= LENGTH
        leaves = {"done": over.clone(), "terminated": over.clone(), "truncated": torch.zeros_like(over)}
        for name, n in self._sizes.items():
            kind = torch.randint(2, (*self.batch_size, n), generator=self._generator)
            begins = self._steps == 0
            self._kinds[name] = torch.where(begins, kind, self._kinds[name]) if self._brief else kind
            seen = torch.nn.functional.one_hot(self._kinds[name], 2).float()
            leaves[name, "observation"] = seen * begins.unsqueeze(-1) if self._brief else seen
            if self._strict:
                leaves[name, "action_mask"] = leaves[name, "observation"].bool()
            if self._leaves:
                gone = over.unsqueeze(-1).expand(-1, n, 1).clone()
                if n == 2:
                    gone[:, 1] |= self._steps >= LENGTH // 2
                leaves[name, "mask"] = ~gone[..., 0]
                leaves |= {
                    (name, "done"): gone,
                    (name, "terminated"): gone.clone(),
                    (name, "truncated"): torch.zeros_like(gone),
                }
        return leaves

    def _reset_leaves(self, mask):
        self._steps = torch.zeros_like(self._steps) if mask is None else self._steps.masked_fill(mask, 0)
        return self._look()

    def _step_leaves(self, root):
        self._steps = self._steps + 1
        paid = {}
        for name in self._sizes:
            action = root[name, "action"]
            named = (action[..., 0] > 0).long() if self._floats else action.argmax(-1) if self._one_hot else action
            right = (self._kinds[name] == named).float()
            assert not self._strict or right.all()
            if self._leaves:
                right = right * root[name, "mask"]
            paid[name, "reward"] = right.unsqueeze(-1)
        if self._shared:
            paid = {"reward": torch.cat(list(paid.values()), -2).mean(-2)}
        return {**self._look(), **paid}

    def _set_seed(self, seed):
        self._generator.manual_seed(seed)

    def state_dict(self):
        return {
            "restorable": True,
            "generator": self._generator.get_state(),
            "steps": self._steps,
            "kinds": dict(self._kinds),
        }

    def load_state_dict(self, state):
        self._generator.set_state(state["generator"])
        self._steps, self._kinds = state["steps"].clone(), dict(state["kinds"])
        return True


class FakeEnv:
    """Specs, and nothing behind them."""

    def __init__(self, action, observation=None, batch=3):
        self.batch_size = torch.Size([batch])
        observation = Unbounded((4,)) if observation is None else observation
        observations = observation if isinstance(observation, dict) else {"observation": observation}
        self.observation_spec = Composite(
            {k: v.expand(batch, *v.shape) for k, v in observations.items()}, shape=(batch,)
        )
        self.full_action_spec = Composite(action=action.expand(batch, *action.shape), shape=(batch,))


class TargetEnv(gymnasium.Env):
    """Eight steps, each of which pays 1 for an action that is the target, and nothing for the worst one."""

    def __init__(self, action_space, distance):
        self.action_space, self._distance = action_space, distance
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._steps += 1
        return np.ones(2, np.float32), 1 - float(self._distance(action)), self._steps == LENGTH, False, {}


def doubles(**kwargs):
    return TargetEnv(gymnasium.spaces.Box(-1, 1, (2,), np.float64), lambda a: np.abs(a - [0.5, -0.5]).mean(), **kwargs)


def choices(**kwargs):
    return TargetEnv(gymnasium.spaces.MultiDiscrete([2, 4]), lambda a: (a != [1, 2]).mean(), **kwargs)


def bits(**kwargs):
    return TargetEnv(gymnasium.spaces.MultiBinary(3), lambda a: (a != [1, 0, 1]).mean(), **kwargs)


class SeenEnv(gymnasium.Env):
    """Shows random observations for eight steps, each of which pays 1."""

    def __init__(self, observation_space=None, action_space=None, shape=None):
        image = None if shape is None else gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)
        self.observation_space = observation_space or image
        self.action_space = action_space or gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps == LENGTH, False, {}


spaces = gymnasium.spaces
VECTOR = spaces.Box(-1, 1, (2,), np.float32)
SEEN = {
    "Seen-v0": {},
    "SeenDiscrete-v0": {"observation_space": spaces.Discrete(5, start=3)},
    "SeenChoices-v0": {"observation_space": spaces.MultiDiscrete([2, 4])},
    "SeenBits-v0": {"observation_space": spaces.MultiBinary(3)},
    "SeenDouble-v0": {"observation_space": spaces.Box(-1e9, 1e9, (2,), np.float64)},
    "SeenImage-v0": {"observation_space": spaces.Box(0, 255, (40, 36, 3), np.uint8)},
    "SeenTuple-v0": {"observation_space": spaces.Tuple((VECTOR, spaces.Discrete(3)))},
    "Dict-v0": {
        "observation_space": spaces.Dict(
            vector=spaces.Box(-1, 1, (2,), np.float64),
            image=spaces.Box(0, 255, (12, 12, 3), np.uint8),
            index=spaces.Discrete(3),
            bits=spaces.MultiBinary(3),
        )
    },
    "Text-v0": {"observation_space": spaces.Dict(vector=VECTOR, said=spaces.Text(5))},
    "NestedText-v0": {"observation_space": spaces.Dict(a=spaces.Dict(vector=VECTOR, said=spaces.Text(5)))},
    "Matrix-v0": {"action_space": spaces.Box(-1, 1, (2, 3), np.float32)},
    "Scalar-v0": {"action_space": spaces.Box(-1, 1, (), np.float32)},
    "One-v0": {"action_space": spaces.Box(-1, 1, (1,), np.float32)},
    "Several-v0": {"action_space": spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(3))},
    "HalfOpen-v0": {"action_space": spaces.Box(0, np.inf, (2,), np.float32)},
    "Integers-v0": {"action_space": spaces.Box(0, 5, (2,), np.int64)},
}


def seen(**kwargs):
    return SeenEnv(**{**({} if "shape" in kwargs else {"observation_space": VECTOR}), **kwargs})


gym_module = ModuleType("rl_trainers_test_gym")
sys.modules[gym_module.__name__] = gym_module
for name, make in (("Doubles-v0", doubles), ("Choices-v0", choices), ("Bits-v0", bits)):
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=make)
for name, kwargs in SEEN.items():
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=seen, kwargs=kwargs)

module = ModuleType("rl_trainers_test_envs")
module.FakeEnv = FakeEnv
module.GuessEnv = GuessEnv
module.EndlessEnv = EndlessEnv
module.RecallEnv = RecallEnv
module.OneGuessEnv = OneGuessEnv
module.TeamEnv = TeamEnv
module.of_id = lambda name, num_envs=1: GuessEnv(num_envs)
sys.modules[module.__name__] = module
if not any(component.name == "test/guess" for component in default().components("env")):
    default().add(Component("env", "test/guess", f"{module.__name__}:GuessEnv"))
    default().add(Component("env", "test/one-guess", f"{module.__name__}:OneGuessEnv"))
    default().add(Component("env", "test/team", f"{module.__name__}:TeamEnv"))
    default().add(Component("env", "test/recall", f"{module.__name__}:RecallEnv"))
    default().add(Component("env", "test/endless", f"{module.__name__}:EndlessEnv"))


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
