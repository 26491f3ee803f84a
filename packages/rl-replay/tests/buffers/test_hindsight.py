"""Hindsight experience replay: goals of samples against a list of the episodes that were written."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError
from rl.replay import (
    HERReplayBuffer,
    HindsightStrategy,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    SliceSampler,
)

STORAGES = {"tensor": LazyTensorStorage, "list": ListStorage, "envs": lambda n: LazyTensorStorage(n, ndim=2)}


def reached(achieved, desired):
    return (achieved == desired).all(-1).float() - 1


class World:
    """Environments whose achieved goal is the number of the step; episodes have 3, 4, 5, 3, 4, 5 ... steps."""

    def __init__(self, envs, nested=False):
        self.envs, self.nested = envs, nested
        self.episode, self.step, self.clock = [0] * envs, [0] * envs, 0
        self.steps = []  # (environment, episode, next achieved goal), in the order of writing

    def batch(self, steps):
        found = []
        for env in range(self.envs):
            for _ in range(steps):
                number = 1000 * env + 20 * self.episode[env] + self.step[env]
                done = self.step[env] == 2 + self.episode[env] % 3
                found.append((env, self.episode[env], number, number + 1, done))
                self.step[env] = 0 if done else self.step[env] + 1
                self.episode[env] += done
        self.steps += [(env, episode, after) for env, episode, _, after, _ in found]
        now, after = (torch.tensor([step[i] for step in found]).unsqueeze(-1) for i in (2, 3))
        ids = torch.tensor([1000 * env + episode for env, episode, *_ in found])
        wanted = torch.full_like(now, -1)

        def goals(place):
            entries = {"achieved_goal": place, "desired_goal": wanted.clone()}
            return TensorDict({"observation": entries} if self.nested else entries, batch_size=[len(ids)])

        data = goals(now).set(("collector", "traj_ids"), ids).set("next", goals(after))
        data["next", "reward"] = -torch.ones(len(ids), 1)
        data["next", "done"] = torch.tensor([step[4] for step in found]).unsqueeze(-1)
        return data.reshape(self.envs, steps)


def filled(kind, steps=7, batches=9, size=40, nested=False, **options):
    world = World(2 if kind == "envs" else 1, nested)
    buffer = HERReplayBuffer(
        reached, storage=STORAGES[kind](size), generator=torch.Generator().manual_seed(0), **options
    )
    for _ in range(batches):
        batch = world.batch(steps)
        buffer.extend(batch if kind == "envs" else batch.reshape(-1))
    return buffer, world.steps[-len(buffer) :]


def allowed(strategy, steps, env, episode, after):
    same = [goal for other, number, goal in steps if (other, number) == (env, episode)]
    return {
        "future": {goal for goal in same if goal >= after},
        "final": {max(same)},
        "episode": set(same),
        "random": {goal for *_, goal in steps},
    }[strategy]


@pytest.mark.parametrize("strategy", list(HindsightStrategy))
@pytest.mark.parametrize(("kind", "size"), [("tensor", 200), ("tensor", 31), ("list", 31), ("envs", 28)])
def test_goals_are_those_of_the_strategy_also_where_the_ring_wraps(kind, size, strategy):
    buffer, steps = filled(kind, size=size, strategy=strategy, her_ratio=0.7)
    known = {after: (env, episode) for env, episode, after in steps}
    seen = {}
    for _ in range(20):
        sample = buffer.sample(200)
        for key in (("next", "desired_goal"), "desired_goal"):
            assert torch.equal(sample[key], sample["desired_goal"])
        expected = reached(sample["next", "achieved_goal"], sample["desired_goal"])
        assert torch.equal(sample["next", "reward"].squeeze(-1), expected)
        kept = sample["goal_index"] == -1
        assert (sample["desired_goal"][kept] == -1).all()
        goals = zip(
            sample["next", "achieved_goal"][~kept].tolist(), sample["desired_goal"][~kept].tolist(), strict=True
        )
        for (after,), (goal,) in goals:
            seen.setdefault(after, []).append(goal)
        assert torch.equal(buffer[:]["desired_goal"], torch.full((len(buffer), 1), -1))
    assert seen.keys() == known.keys()  # every stored row, and no other
    for after, goals in seen.items():
        options = allowed(strategy, steps, *known[after], after)
        assert set(goals) <= options
        if strategy != "random":
            assert set(goals) == options
    counts = torch.tensor([len(goals) for goals in seen.values()], dtype=torch.float)
    assert abs(counts.sum() / 4000 - 0.7) < 0.03


def test_nested_observations_as_of_gymnasium_robotics():
    buffer, _ = filled("tensor", nested=True, strategy="final", her_ratio=1.0)
    sample = buffer.sample(64)
    assert torch.equal(sample["observation", "desired_goal"], sample["next", "observation", "desired_goal"])
    assert (sample["observation", "desired_goal"] >= sample["next", "observation", "achieved_goal"]).all()


def test_other_keys_and_dtypes_and_rewards_of_numpy():
    def far(achieved, desired):
        return -abs(achieved.numpy() - desired.numpy()).max(-1)

    buffer = HERReplayBuffer(
        far, her_ratio=1.0, strategy="final", achieved_goal_key="at", desired_goal_key=("goal", "at"),
        reward_key="gain", end_key=("next", "end"), storage=LazyTensorStorage(10),
    )  # fmt: skip
    after = TensorDict(at=torch.rand(5, 2).double(), gain=torch.zeros(5), end=torch.arange(5) == 4, batch_size=[5])
    buffer.extend(
        TensorDict({"at": torch.rand(5, 2).double(), ("goal", "at"): torch.zeros(5, 2), "next": after}, batch_size=[5])
    )
    sample = buffer.sample(20)
    assert sample["goal", "at"].dtype == torch.float32
    assert torch.equal(sample["goal", "at"], after["at"][4].float().expand(20, 2))
    expected = -(sample["next", "at"] - sample["goal", "at"]).abs().amax(-1)
    assert torch.allclose(sample["next", "gain"], expected.float())


def test_a_reward_function_that_returns_terminated():
    def both(achieved, desired):
        hit = (achieved == desired).all(-1)
        return hit.float(), hit

    def batch(truncated):
        place = torch.arange(4).unsqueeze(-1)
        flags = {"terminated": torch.tensor([0, 0, 1, 0]), "truncated": torch.tensor([0, 0, 0, truncated])}
        flags = {key: value.bool().unsqueeze(-1) for key, value in flags.items()}
        goals = {"achieved_goal": place + 1, "desired_goal": place * 0, "reward": torch.zeros(4, 1)}
        after = TensorDict({**goals, **flags, "done": flags["terminated"] | flags["truncated"]}, batch_size=[4])
        return TensorDict(achieved_goal=place, desired_goal=place * 0, next=after, batch_size=[4])

    buffer = HERReplayBuffer(both, her_ratio=1.0, strategy="random", storage=LazyTensorStorage(4))
    buffer.extend(batch(truncated=1))
    sample = buffer.sample(200)
    hit = sample["next", "achieved_goal"] == sample["desired_goal"]
    last = sample["index"].unsqueeze(-1) == 3
    assert torch.equal(sample["next", "terminated"], hit)
    assert torch.equal(sample["next", "done"], hit | last)
    assert torch.equal(sample["next", "reward"], hit.float())
    assert buffer[2]["next", "terminated"]


def test_ratio_zero_is_the_plain_buffer_and_prefetch_changes_no_sample():
    plain, _ = filled("tensor", her_ratio=0.0)
    assert (plain.sample(100)["goal_index"] == -1).all()
    one, _ = filled("tensor", batch_size=16)
    two, _ = filled("tensor", batch_size=16, prefetch=3)
    for _ in range(6):
        first, second = one.sample(), two.sample()
        assert (first == second).all()


@pytest.mark.parametrize("kind", STORAGES)
def test_goals_are_of_the_same_episode_after_rows_are_replaced(kind):
    buffer, steps = filled(kind, size=42, her_ratio=1.0)
    buffer[:] = buffer[:]
    buffer[3] = buffer[3]
    sample = buffer.sample(200)
    episode_of = {after: (env, episode) for env, episode, after in steps}
    goals, own = (sample[key].flatten().tolist() for key in ("desired_goal", ("next", "achieved_goal")))
    assert [episode_of[goal] for goal in goals] == [episode_of[goal] for goal in own]


def test_slices_get_one_goal_from_after_their_last_step():
    buffer, steps = filled("envs", size=28, sampler=SliceSampler(slice_len=3), her_ratio=0.5)
    known = {after: (env, episode) for env, episode, after in steps}
    sample = buffer.sample(300).reshape(-1, 3)
    assert (sample["goal_index"] == -1).equal(sample["desired_goal"].squeeze(-1) == -1)
    goals, after = sample["desired_goal"].squeeze(-1), sample["next", "achieved_goal"].squeeze(-1)
    assert (goals == goals[:, :1]).all()
    assert 0 < (goals[:, 0] == -1).sum() < 100
    for (goal, *_), (*_, last) in zip(goals.tolist(), after.tolist(), strict=True):
        assert goal == -1 or goal in allowed("future", steps, *known[last], last)
    padded, _ = filled("tensor", sampler=SliceSampler(slice_len=5, strict_length=False, pad_output=True), her_ratio=1.0)
    sample = padded.sample(50)
    goals = sample["desired_goal"]
    assert goals.shape == (10, 5, 1)
    assert (goals == goals[:, :1]).all()
    assert padded[sample["goal_index"].flatten()]["next", "achieved_goal"].view(10, 5, 1).equal(goals)


def test_priorities_and_states(tmp_path):
    def make():
        return filled("envs", size=28, sampler=PrioritizedSampler(28, 1.0, 1.0, backend="torch"), batches=4)[0]

    one, two = (
        make(),
        HERReplayBuffer(
            reached,
            storage=LazyTensorStorage(28, ndim=2),
            sampler=PrioritizedSampler(28, 1.0, 1.0, backend="torch"),
            generator=torch.Generator(),
        ),
    )
    sample = one.sample(8)
    one.update_tensordict_priority(sample.set("td_error", torch.arange(8.0)))
    one.dumps(tmp_path)
    two.loads(tmp_path)
    world = World(2)
    for _ in range(3):
        assert (one.sample(8) == two.sample(8)).all()
        batch = world.batch(7)
        for buffer in (one, two):
            buffer.extend(batch)
    state = one.state_dict()
    state["trajectories"]["table"]["clock"] += 1
    with pytest.raises(CheckpointError):
        two.load_state_dict(state)
    one.empty()
    one.extend(World(2).batch(7))
    assert one.sample(4)["goal_index"].shape == (4,)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"her_ratio": 1.5}, "her_ratio"),
        ({"strategy": "past"}, "'future', 'final', 'episode' or 'random'"),
        ({"reward_fn": 3}, "reward_fn"),
    ],
)
def test_arguments_are_checked(options, text):
    with pytest.raises(ArgumentError, match=text):
        HERReplayBuffer(**{"reward_fn": reached, **options})


@pytest.mark.parametrize("key", ["achieved_goal", "desired_goal", ("next", "achieved_goal"), ("next", "reward")])
def test_rows_without_goals_are_refused(key):
    buffer = HERReplayBuffer(reached, storage=LazyTensorStorage(20))
    with pytest.raises(ContractError, match=r"achieved_goal_key="):
        buffer.extend(World(1).batch(4).reshape(-1).exclude(key))
    assert len(buffer) == 0
    with pytest.raises(ContractError, match="trajectories end"):
        buffer.extend(World(1).batch(4).reshape(-1).exclude("collector", ("next", "done")))
    assert len(buffer) == 0


def test_goals_and_rewards_of_other_shapes_are_refused():
    wrong = HERReplayBuffer(lambda achieved, desired: achieved[:1], her_ratio=1.0, storage=LazyTensorStorage(20))
    wrong.extend(World(1).batch(6).reshape(-1))
    with pytest.raises(ShapeError, match="reward_fn returned"):
        wrong.sample(4)
    mixed = HERReplayBuffer(reached, her_ratio=1.0, storage=LazyTensorStorage(20))
    batch = World(1).batch(6).reshape(-1)
    mixed.extend(batch.set("desired_goal", torch.zeros(6, 2)).exclude(("next", "desired_goal")))
    with pytest.raises(ShapeError, match="same shape"):
        mixed.sample(4)
