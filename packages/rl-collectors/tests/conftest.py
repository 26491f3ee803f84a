"""A small environment whose every number can be foretold, in each of the forms that a collector meets."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.specs import Bounded, Categorical, Composite, Unbounded

NO_LEAVES = "no leaf form"


class CountingEnv:
    """Element i's episode j lasts ``lengths[i][j % len]`` steps; odd episodes are truncated, even ones terminated.

    The observation is (element, episode, step, noise); the reward is the step plus a tenth of the action.
    """

    def __init__(self, lengths=((3,),), batch_size=None, fast=True, reuse=False, spec=None):
        self.lengths = [list(row) for row in lengths]
        self.batch_size = torch.Size([] if batch_size is None else batch_size)
        n = self.batch_size.numel()
        assert len(self.lengths) == n
        self.fast, self.reuse = fast, reuse
        self.closed = 0
        self.episode, self.count = [-1] * n, [0] * n
        self.generator = torch.Generator().manual_seed(0)
        b = self.batch_size
        self.observation_spec = Composite(
            {"observation": Unbounded((*b, 4)), "info": Composite({"double": Unbounded((*b, 1))}, shape=b)}, shape=b
        )
        self.full_action_spec = Composite({"action": spec or Categorical(2, shape=b)}, shape=b)
        self.full_reward_spec = Composite({"reward": Unbounded((*b, 1))}, shape=b)
        flag = lambda: Categorical(2, shape=(*b, 1), dtype=torch.bool)
        self.full_done_spec = Composite({k: flag() for k in ("done", "terminated", "truncated")}, shape=b)
        self._buffers = {}

    def lowered(self):
        return self if self.fast else None

    def _observe(self):
        rows = [
            [i, self.episode[i], self.count[i], torch.rand((), generator=self.generator).item()]
            for i in range(len(self.count))
        ]
        obs = torch.tensor(rows, dtype=torch.float32).reshape(*self.batch_size, 4)
        return {"observation": obs, ("info", "double"): 2 * obs[..., 2:3], "_private": obs[..., :1].clone()}

    def reset_leaves(self, current=None, mask=None):
        chosen = [True] * len(self.count) if mask is None else mask.reshape(-1).tolist()
        for i, yes in enumerate(chosen):
            if yes:
                self.episode[i] += 1
                self.count[i] = 0
        out = self._observe()
        no = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        out.update(done=no, terminated=no.clone(), truncated=no.clone())
        if mask is not None:
            for key, value in out.items():
                wide = mask.expand_as(value)
                out[key] = torch.where(wide, value, current[key])
        return out

    def step_leaves(self, root):
        action = root["action"].reshape(len(self.count), -1)[:, 0].float()
        over, cut = [], []
        for i in range(len(self.count)):
            self.count[i] += 1
            row = self.lengths[i]
            ended = self.count[i] >= row[self.episode[i] % len(row)]
            over.append(ended and self.episode[i] % 2 == 0)
            cut.append(ended and self.episode[i] % 2 == 1)
        out = self._observe()
        shape = (*self.batch_size, 1)
        out["reward"] = (torch.tensor(self.count).float() + 0.1 * action).reshape(shape)
        out["terminated"] = torch.tensor(over).reshape(shape)
        out["truncated"] = torch.tensor(cut).reshape(shape)
        out["done"] = out["terminated"] | out["truncated"]
        return out

    # ---- TensorDict form

    def _td(self, leaves):
        td = TensorDict({}, self.batch_size)
        for key, leaf in leaves.items():
            td.set(key, self._shared(key, leaf) if self.reuse else leaf)
        return td

    def _shared(self, key, leaf):
        if key not in self._buffers:
            self._buffers[key] = leaf.clone()
        return self._buffers[key].copy_(leaf)

    def reset(self, tensordict=None):
        if tensordict is None:
            return self._td(self.reset_leaves())
        leaves = dict(tensordict.items(True, True))
        return self._td(self.reset_leaves(leaves, leaves["_reset"]))

    def step(self, tensordict):
        nxt = self._td(self.step_leaves(dict(tensordict.items(True, True))))
        given = tensordict.get("next", None)
        tensordict.set("next", nxt if given is None else given.update(nxt))
        return tensordict

    def step_and_maybe_reset(self, tensordict):
        stepped = self.step(tensordict)
        root = stepped["next"].exclude("reward")
        for key in tensordict.exclude("next").keys(True, True):
            if key not in stepped["next"].keys(True, True):
                root.set(key, tensordict.get(key))
        if root["done"].any():
            done = root["done"].clone()
            leaves = {k: v.clone() for k, v in root.items(True, True)}
            fresh = self.reset_leaves(leaves, done)
            stepped = stepped.clone()
            root.update(self._td(fresh))
        return stepped, root

    def set_seed(self, seed):
        self.generator.manual_seed(seed)
        self.episode = [-1] * len(self.episode)
        return seed + 1

    def close(self):
        self.closed += 1

    def state_dict(self):
        return {
            "episode": list(self.episode),
            "count": list(self.count),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state):
        self.episode, self.count = list(state["episode"]), list(state["count"])
        self.generator.set_state(state["generator"])


class Choose(nn.Module):
    """Two outputs: an action drawn with torch's generator, and the number that it was drawn from."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, observation):
        scores = self.linear(observation)
        return (scores + torch.rand_like(scores)).argmax(-1), scores


class NoStateEnv:
    """What is left of an environment without optional methods."""

    def __init__(self, inner):
        self._inner = inner
        for name in ("batch_size", "observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec",
                     "reset", "step", "step_and_maybe_reset", "set_seed", "close"):  # fmt: skip
            setattr(self, name, getattr(inner, name))


@pytest.fixture(scope="session")
def counting_env():
    return CountingEnv


@pytest.fixture(scope="session")
def bare_env():
    return lambda *args, **kwargs: NoStateEnv(CountingEnv(*args, fast=False, **kwargs))


@pytest.fixture(scope="session")
def box_env():
    def make(low=-1.0, high=1.0, **kwargs):
        return CountingEnv(spec=Bounded(low, high, shape=(1,)), **kwargs)

    return make


@pytest.fixture(scope="session")
def make_policy():
    def make(seed=0):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return TensorDictModule(Choose(), in_keys=["observation"], out_keys=["action", "scores"])

    return make
