from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl.core.specs import Composite, Unbounded
from rl.core.testing import CountingEnv, check_env, check_env_specs, check_transform


class WrongShape(CountingEnv):
    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(3))


class WrongKey(CountingEnv):
    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observations=Unbounded(1))


class Forgotten(CountingEnv):
    """Writes an entry of which no spec tells."""

    def step_leaves(self, root):
        return super().step_leaves(root) | {"extra": torch.zeros(1)}


class Contradiction(CountingEnv):
    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"done": ~out["done"]}


class Overwriting(CountingEnv):
    """Its reset writes into the tensors of the last step."""

    def reset(self, tensordict=None):
        if tensordict is not None and tensordict.get("_reset", None) is not None:
            tensordict["observation"].masked_fill_(tensordict["_reset"], 0.0)
            tensordict = tensordict.clone()
        return super().reset(tensordict)


class Careless(CountingEnv):
    """Resets everything, whatever was asked for."""

    def reset(self, tensordict=None):
        out = super().reset(tensordict)
        return out.set("observation", torch.zeros_like(out["observation"]))


class Unseeded(CountingEnv):
    def reset_leaves(self, current=None, mask=None):
        out = super().reset_leaves(current, mask)
        return out | {"observation": out["observation"] + torch.rand(())}


class OwnReturn(CountingEnv):
    def step(self, tensordict):
        return super().step(tensordict.copy())


class Diverging(CountingEnv):
    """Its leaf form pays more."""

    def lowered(self):
        other = CountingEnv(self._length, tuple(self.batch_size))
        plain = other.step_leaves
        other.step_leaves = lambda root: (out := plain(root)) | {"reward": out["reward"] + 1}
        return other


class Sharing(CountingEnv):
    def step_leaves(self, root):
        out = super().step_leaves(root)
        return out | {"terminated": out["done"]}


class NoSeedReturned(CountingEnv):
    def set_seed(self, seed):
        return None


class CutAtReset(CountingEnv):
    def reset_leaves(self, current=None, mask=None):
        fresh = super().reset_leaves(current, mask)
        return fresh | {"truncated": torch.ones_like(fresh["done"])}


class RewardAtRoot(CountingEnv):
    def step_and_maybe_reset(self, tensordict):
        stepped, root = super().step_and_maybe_reset(tensordict)
        return stepped, root.set("reward", torch.zeros(*self.batch_size, 1))


class ClosesOnce(CountingEnv):
    def close(self):
        assert not self.closed
        super().close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(WrongShape, r"'observation': expected .*\(3,\), got .*\(1,\)", id="shape"),
        pytest.param(WrongKey, r"'observations': expected float32 \[1\], got nothing \(is 'observation' it", id="key"),
        pytest.param(Forgotten, r"'extra': expected nothing, got float32 \[1\]", id="unknown-entry"),
        pytest.param(Contradiction, "not the union of terminated and truncated", id="flags"),
        pytest.param(Overwriting, "the last observation is lost", id="last-observation"),
        pytest.param(lambda: Careless([4, 2, 3], (3,)), "changed 'observation' of others", id="careless"),
        pytest.param(Unseeded, "start differently", id="seed"),
        pytest.param(OwnReturn, "must return its input", id="return"),
        pytest.param(Diverging, "step and step_leaves differ: 'reward' differs", id="leaf-form"),
        pytest.param(Sharing, "shares its memory", id="sharing"),
        pytest.param(CutAtReset, r"CutAtReset.reset\(\): 'done' is not the union", id="flags-at-reset"),
        pytest.param(RewardAtRoot, "left .'reward'. in the root of the following step", id="reward-at-root"),
        pytest.param(ClosesOnce, "called a second time, raised AssertionError", id="close-twice"),
        pytest.param(NoSeedReturned, "must return the next seed", id="next-seed"),
    ],
)
def test_what_is_broken_is_named(make, message):
    with pytest.raises(AssertionError, match=message):
        check_env(make)


def test_something_else_is_no_environment():
    class Nothing:
        batch_size = torch.Size([])

        def close(self):
            pass

    with pytest.raises(AssertionError, match=r"no rl\.core\.interfaces\.Env; it lacks .*'reset'"):
        check_env(Nothing)


def test_what_is_right_passes():
    check_env(lambda: CountingEnv([2, 5, 3], (3,)))
    check_env_specs(CountingEnv(), steps=5)


def in_place(td):
    td["x"].add_(1)
    return td


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        pytest.param(in_place, "in place changed 'x'|in_place changed 'x'", id="in-place"),
        pytest.param(lambda td: None, "must return a TensorDict, got NoneType", id="nothing"),
        pytest.param(lambda td: td[:2], r"batch size \(2,\)", id="batch"),
    ],
)
def test_a_transform_that_is_broken_is_named(transform, message):
    with pytest.raises(AssertionError, match=message):
        check_transform(transform, TensorDict(x=torch.zeros(3), batch_size=[3]))


def test_a_transform_needs_something_to_run_on():
    with pytest.raises(AssertionError, match="needs a batch"):
        check_transform(lambda td: td)


def test_a_transform_within_an_environment():
    class Around(CountingEnv):
        def __init__(self, transform):
            super().__init__()
            self.transform = transform

    check_transform(lambda td: td, wrap=Around)
