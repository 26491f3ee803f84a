"""Masks of legal actions of the environments in a batch: random actions of the batch are legal."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.core.errors import SpecError
from rl.core.specs import Binary, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from rl.envs import (
    ActionMask,
    AsyncEnvPool,
    Compose,
    LeafEnvBase,
    ModuleTransform,
    ParallelEnv,
    RandomPolicy,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

ACTIONS = {
    "categorical": lambda: Categorical(8),
    "one-hot": lambda: OneHot(8),
    "multi": lambda: MultiCategorical([3, 5]),
}


class Narrow(LeafEnvBase):
    """One action is legal, another one at every step. The reward is 1 for it, and 0 for the others.

    Args:
        first: Number of the first legal action, which differs between environments.
        action: Name of the action spec.
    """

    def __init__(self, first=0, action="categorical"):
        super().__init__()
        self.first = first
        self.action_spec = ACTIONS[action]()
        self.observation_spec = Composite(action_mask=Binary(8, dtype=torch.bool), place=Unbounded(1))

    def _look(self):
        choice = (self.first + 3 * self.count) % 8
        mask = torch.arange(8) == choice
        if self.action_spec.shape == (2,):  # two choices, of 3 and of 5
            mask[:3], mask[3:] = torch.arange(3) == choice % 3, torch.arange(5) == choice % 5
        return {"action_mask": mask, "place": torch.tensor([float(self.first)])}

    def _reset_leaves(self, mask):
        self.count = 0
        return self._look()

    def _step_leaves(self, root):
        chosen, legal = self.action_spec.to_one_hot(root["action"]).flatten(), self._look()["action_mask"]
        self.count += 1
        over = torch.tensor([self.count == 6])
        return {**self._look(), "reward": (chosen == legal).all().float().reshape(1), "terminated": over}

    def _set_seed(self, seed):
        pass


def makers(action, *others):
    return [lambda n=n: TransformedEnv(Narrow(n, action), Compose(ActionMask(), *others)) for n in range(3)]


BATCHES = {
    "serial": lambda makers: SerialEnv(3, makers),
    "processes": lambda makers: ParallelEnv(3, makers, processes=2),
    "messages": lambda makers: ParallelEnv(3, makers, processes=2, shared_memory=False),
    "pool": AsyncEnvPool,
    "pool, messages": lambda makers: AsyncEnvPool(makers, shared_memory=False),
    "threads": lambda makers: AsyncEnvPool(makers, backend="threading"),
    "view": lambda makers: SerialEnv(3, makers)[1:],
    "view of one": lambda makers: ParallelEnv(3, makers, processes=2)[1],
    "nested": lambda makers: ParallelEnv(2, [lambda: SerialEnv(3, makers)] * 2, processes=2),
    "transformed": lambda makers: TransformedEnv(SerialEnv(3, makers), StepCounter(max_steps=4)),
}


@pytest.fixture(params=BATCHES)
def batch(request):
    made = []

    def make(makers):
        made.append(BATCHES[request.param](makers))
        return made[-1]

    yield make
    for env in made:
        getattr(env, "_parent", env).close()


@pytest.mark.parametrize(("action", "form"), [("categorical", []), ("one-hot", [lambda td: td]), ("multi", [])])
def test_random_actions_of_a_batch_are_legal(batch, action, form):
    env = batch(makers(action, *form))
    env.reset()
    for policy in (None, RandomPolicy(env.full_action_spec)):
        assert env.rollout(20, policy, break_when_any_done=False)["next", "reward"].all()
    root = env.reset()
    for _ in range(8):
        stepped, root = env.step_and_maybe_reset(env.rand_action(root))
        assert stepped["next", "reward"].all()
    leaf = env.lowered()
    assert leaf is None or not form
    if leaf is not None:
        leaves = leaf.reset_leaves()
        for _ in range(8):
            leaves.update(leaf.step_leaves({**leaves, "action": env.action_spec.rand()}))
            assert leaves["reward"].all()
            leaves.update(leaf.reset_leaves(leaves, leaves["done"]))


def test_illegal_actions_of_a_batch_are_refused_at_the_first_step(batch):
    env = batch(makers("categorical"))
    root = env.reset()
    root["action"] = torch.full(env.batch_size, 7)
    with pytest.raises(SpecError, match=r"'action' .* expected int64 .* of Categorical\(8\) that its mask allows"):
        env.step(root)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_random_actions_for_some_environments_of_a_pool_are_legal(shared_memory):
    pool = AsyncEnvPool(makers("one-hot"), shared_memory=shared_memory)
    pool.async_reset_send()
    root = pool.async_reset_recv(3)
    for step in range(12):
        rows = root[[2 - step % 2, 0]]
        pool.async_step_and_maybe_reset_send(pool.rand_action(rows))
        stepped, following = pool.async_step_and_maybe_reset_recv(2)
        assert stepped["next", "reward"].all()
        root[following["env_index"]] = following.select(*root.keys(True, True))
    pool.async_step_send(pool.rand_action(root[1]))
    pool.async_step_recv(1)
    pool.close()


def test_masks_are_those_of_the_environments_own_choices():
    fewer = TensorDictModule(lambda choice: choice * 2, ["action"], ["action"])
    halves = ModuleTransform(module=fewer, inverse=True, action_spec_transform=Composite(action=Categorical(4)))
    env = TransformedEnv(SerialEnv(2, makers("categorical")[:2]), halves)
    env.reset()
    assert env.action_spec.mask is None


@pytest.mark.parametrize("leaves", [False, True])
def test_the_mask_of_an_environment_that_does_not_step_stays(leaves):
    env = TransformedEnv(SerialEnv(3, [lambda n=n: Narrow(n) for n in range(3)]), ActionMask())
    leaf = env.lowered()
    root = leaf.reset_leaves() if leaves else env.reset()
    root["action"], root["_step"] = env.action_spec.rand(), torch.tensor([[True], [False], [True]])
    (leaf.step_leaves if leaves else env.step)(root)
    assert env.action_spec.rand().tolist() == [3, 1, 5]


def test_environments_with_and_without_a_mask_are_one_batch():
    for kind in (SerialEnv, ParallelEnv):
        env = kind(2, [lambda: Narrow(0), lambda: TransformedEnv(Narrow(1), ActionMask())])
        legal = env.rollout(200, break_when_any_done=False)["next", "reward"].squeeze(-1)
        assert legal[1].all()
        assert 0 < legal[0].mean() < 0.5
        env.close()


class Levers(LeafEnvBase):
    """Two choices; the mask of the second one allows nothing at every other step."""

    def __init__(self, one_hot):
        super().__init__()
        self.action_spec = MultiOneHot([2, 3]) if one_hot else MultiCategorical([2, 3])
        self.observation_spec = Composite(action_mask=Binary(5, dtype=torch.bool))

    def _look(self):
        mask = torch.tensor([self.count % 2, 1 - self.count % 2, *[0] * 3], dtype=torch.bool)
        mask[2 + self.count % 3] = self.count % 2 == 0
        return {"action_mask": mask}

    def _reset_leaves(self, mask):
        self.count = 0
        return self._look()

    def _step_leaves(self, root):
        self.count += 1
        return {**self._look(), "reward": torch.zeros(1), "terminated": torch.tensor([False])}

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_choice_without_a_legal_class_leaves_the_mask_of_the_others(one_hot, batched):
    torch.manual_seed(0)
    env = SerialEnv(2, lambda: Levers(one_hot)) if batched else Levers(one_hot)
    env = TransformedEnv(env, ActionMask())
    data = env.rollout(60)
    action = data["action"] if one_hot else MultiCategorical([2, 3]).to_one_hot(data["action"])
    taken = action.reshape(-1, 60, 5)
    mask = data["action_mask"].reshape(-1, 60, 5)
    mask[..., 2:] |= ~mask[..., 2:].any(-1, keepdim=True)
    assert not (taken.bool() & ~mask).any()
    assert (taken[:, 1::2, 2:].sum((0, 1)) > 0).all()  # all classes, where none is legal
