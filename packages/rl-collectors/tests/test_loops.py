"""The three inner loops against each other and against what the environment is known to do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl.collectors import Collector
from rl.collectors import _loops as recorded  # a recording needs CUDA: a double takes its place
from rl.collectors._loops import LeafLoop
from rl.core.errors import ContractError

PATHS = ("leaves", "leaves, TensorDict policy", "tensordict")

lengths = st.integers(1, 3).flatmap(
    lambda n: st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=n, max_size=n)
)


def collect(make, policy, path, rows, steps, batches, single=False, **options):
    env = make(rows, batch_size=None if single else [len(rows)], fast=path != "tensordict")
    acting = policy
    if path == PATHS[1] and policy is not None:  # hide what a policy could be lowered by
        acting = lambda td: policy(td)  # noqa: PLW0108
    torch.manual_seed(0)
    collector = Collector(env, acting, frames_per_batch=steps * len(rows), **options)
    if policy is not None:
        assert collector.path == path
    return [collector.collect() for _ in range(batches)]


def assert_equal(one, other):
    left, right = (dict(td.items(True, True)) for td in (one, other))
    assert left.keys() == right.keys()
    assert one.names == other.names
    for key, value in left.items():
        assert value.dtype == right[key].dtype
        assert torch.equal(value, right[key]), key


@settings(max_examples=25, deadline=None)
@given(rows=lengths, steps=st.integers(1, 9), random=st.integers(0, 12), reset=st.booleans(), cut=st.booleans())
def test_three_loops_give_the_same_batches(counting_env, make_policy, rows, steps, random, reset, cut):
    options = {"init_random_frames": random, "reset_at_each_iter": reset, "set_truncated": cut}
    policy = make_policy()
    runs = [collect(counting_env, policy, path, rows, steps, 3, **options) for path in PATHS]
    for batches in zip(*runs, strict=True):
        assert_equal(batches[0], batches[1])
        assert_equal(batches[0], batches[2])


@settings(max_examples=25, deadline=None)
@given(rows=lengths, steps=st.integers(1, 9), batches=st.integers(1, 4))
def test_steps_follow_the_episodes_that_were_laid_down(counting_env, make_policy, rows, steps, batches):
    found = collect(counting_env, make_policy(), "leaves", rows, steps, batches)
    whole = torch.cat(found, -1)
    seen = {}
    for i, row in enumerate(rows):
        expected = [(j, k, row[j % len(row)]) for j in range(40) for k in range(row[j % len(row)])]
        for t, (episode, count, length) in enumerate(expected[: steps * batches]):
            step = whole[i, t]
            assert step["observation"][:3].tolist() == [i, episode, count]
            assert step["next", "observation"][:3].tolist() == [i, episode, count + 1]  # never the reset one
            assert not step["done"]
            last = count + 1 == length
            assert step["next", "done"].item() == last
            assert step["next", "terminated"].item() == (last and episode % 2 == 0)
            assert step["next", "truncated"].item() == (last and episode % 2 == 1)
            number = step["collector", "traj_ids"].item()
            assert seen.setdefault(number, (i, episode)) == (i, episode)
    assert sorted(seen) == list(range(len(seen))) or len(rows) > 1
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("path", PATHS)
def test_shape_names_and_keys(counting_env, make_policy, path):
    (batch,) = collect(counting_env, make_policy(), path, [[3], [2]], 4, 1)
    assert batch.shape == (2, 4)
    assert batch.names == [None, "time"]
    assert batch["next"].names == [None, "time"]
    assert set(batch.keys(True, True)) == {
        "observation", ("info", "double"), "done", "terminated", "truncated", "action", "scores",
        ("collector", "traj_ids"), ("next", "observation"), ("next", "info", "double"), ("next", "reward"),
        ("next", "done"), ("next", "terminated"), ("next", "truncated"),
    }  # fmt: skip
    assert batch["collector", "traj_ids"].dtype == torch.int64
    assert batch["collector", "traj_ids"].shape == (2, 4)
    assert not any(value.requires_grad for value in batch.values(True, True))


@pytest.mark.parametrize("path", PATHS)
def test_one_environment_without_batch(counting_env, make_policy, path):
    (batch,) = collect(counting_env, make_policy(), path, [[3]], 5, 1, single=True)
    assert batch.shape == (5,)
    assert batch["observation"][:, 2].tolist() == [0, 1, 2, 0, 1]
    assert batch["next", "observation"][:, 2].tolist() == [1, 2, 3, 1, 2]
    assert batch["collector", "traj_ids"].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("path", PATHS)
def test_long_batches_cross_chunks(counting_env, make_policy, path):
    (batch,) = collect(counting_env, make_policy(), path, [[7], [5]], 150, 1)
    assert batch["observation"][0, :, 2].tolist() == [t % 7 for t in range(150)]
    assert batch["next", "observation"][1, :, 2].tolist() == [t % 5 + 1 for t in range(150)]


@pytest.mark.parametrize("path", PATHS)
def test_batches_are_fresh_memory(counting_env, make_policy, path):
    first, second = collect(counting_env, make_policy(), path, [[3], [2]], 4, 2)
    kept = second.clone()
    first.zero_()
    assert_equal(second, kept)
    pointers = [value.data_ptr() for value in second.values(True, True)]
    assert len(set(pointers)) == len(pointers)


class Carry(torch.nn.Module):
    """Counts its own calls in a state that goes through the environment."""

    def forward(self, observation, state):
        return torch.zeros(observation.shape[:-1], dtype=torch.int64), state + 1


@pytest.mark.parametrize("path", PATHS)
def test_what_a_policy_writes_under_next_reaches_the_following_root(counting_env, path):
    from rl.core.specs import Unbounded

    module = TensorDictModule(Carry(), in_keys=["observation", "state"], out_keys=["action", ("next", "state")])

    class Primed(counting_env):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.full_state_spec = self.observation_spec.clone()
            self.full_state_spec["state"] = Unbounded((2, 1))

        def reset_leaves(self, current=None, mask=None):
            out = super().reset_leaves(current, mask)
            start = torch.zeros(2, 1)
            out["state"] = start if mask is None else torch.where(mask, start, current["state"])
            return out

    (batch,) = collect(Primed, module, path, [[3], [2]], 5, 1)
    assert batch["state"][0, :, 0].tolist() == [0, 1, 2, 0, 1]
    assert batch["next", "state"][0, :, 0].tolist() == [1, 2, 3, 1, 2]
    assert batch["state"][1, :, 0].tolist() == [0, 1, 0, 1, 0]


def returns_actions_alone(td):
    return TensorDict({"action": torch.ones(td.batch_size, dtype=torch.int64)}, batch_size=td.batch_size)


def remembers_at_the_root(td):
    count = td.get("count", None)
    td["count"] = torch.zeros(td.batch_size) if count is None else count + 1
    return returns_actions_alone(td).update(td.select("count"))


@pytest.mark.parametrize("policy", [returns_actions_alone, remembers_at_the_root])
def test_what_a_function_returns_lies_over_the_root_in_every_loop(counting_env, policy):
    rows = [[2, 3], [4, 1]]
    runs = [collect(counting_env, policy, path, rows, 5, 2) for path in PATHS[1:]]
    for one, other in zip(*runs, strict=True):
        assert_equal(one, other)
        assert "observation" in one.keys()
    if policy is remembers_at_the_root:
        assert [batch["count"][0].tolist() for batch in runs[0]] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


class Reusing(torch.nn.Module):
    """Writes its outputs into the same memory every time, as a CUDA graph does."""

    def __init__(self):
        super().__init__()
        self.action, self.copy = torch.zeros(2, dtype=torch.int64), torch.zeros(2)

    def forward(self, observation):
        self.copy.copy_(observation[..., 2])
        return self.action, self.copy


@pytest.mark.parametrize("path", PATHS)
def test_a_policy_that_reuses_its_memory_is_copied(counting_env, path):
    module = TensorDictModule(Reusing(), in_keys=["observation"], out_keys=["action", "seen"])
    for batch in collect(counting_env, module, path, [[3], [4]], 6, 2):
        assert torch.equal(batch["seen"], batch["observation"][..., 2])


def test_an_environment_that_reuses_its_memory_is_copied_or_refused(counting_env, make_policy):
    env = counting_env([[3], [4]], batch_size=[2], fast=False, reuse=True)
    batch = Collector(env, make_policy(), frames_per_batch=12).collect()
    assert batch["observation"][0, :, 2].tolist() == [0, 1, 2, 0, 1, 2]

    class Careless(counting_env):
        def step_leaves(self, root):
            return {key: self._shared(key, leaf) for key, leaf in super().step_leaves(root).items()}

    with pytest.raises(KeyError, match=r"Careless.step_leaves returned .*'observation'.* new tensors"):
        Collector(Careless([[3]]), make_policy(), frames_per_batch=6).collect()


def test_other_entries_than_tensors_are_kept(counting_env):
    class Talking(counting_env):
        def reset(self, tensordict=None):
            return super().reset(tensordict).set_non_tensor("say", "hello")

        def step(self, tensordict):
            stepped = super().step(tensordict)
            stepped["next"].set_non_tensor("say", f"step {stepped['next', 'observation'][2]:.0f}")
            return stepped

    batch = Collector(Talking([[9]], fast=False), frames_per_batch=3).collect()
    assert batch["say"] == ["hello", "step 1", "step 2"]
    assert batch["next", "say"] == ["step 1", "step 2", "step 3"]


def test_lists_of_leaves_survive_a_round_trip_through_tensordicts():
    # a collected batch shows one direction of the conversion only
    from rl.collectors._loops import leaves_of, tensordict_of

    leaves = {"a": torch.ones(2), ("b", "c", "d"): torch.zeros(2, 1), ("b", "e"): torch.ones(2)}
    td = tensordict_of(leaves, [2], {})
    assert isinstance(td, TensorDict)
    assert leaves_of(td).keys() == leaves.keys()


@pytest.mark.parametrize("form", ["lowered", "lowered with next", "opaque"])
def test_a_policy_elsewhere_gives_the_same_numbers(counting_env, make_policy, form):
    # a collector copies to the policy's device only if it is another one, and here is but the CPU
    from rl.collectors._loops import lowered_policy, opaque_act, opaque_policy
    from rl.core.tensor_functions import TensorFunction, as_function

    here = torch.device("cpu")  # a hop from the CPU to the CPU: the same calls as to another device
    policy = make_policy()
    module = as_function(policy)
    if form == "lowered with next":
        module = TensorFunction(lambda obs: (obs[..., 0], obs + 1), ["observation"], ["action", ("next", "seen")])

    def act(device):
        if form == "opaque":
            return opaque_policy(opaque_act(policy, device, here), torch.Size([]), {})
        return lowered_policy(module, device, here)

    outcomes = []
    for device in (None, here):
        torch.manual_seed(0)
        root = counting_env().reset_leaves()
        extra = act(device)(root)
        outcomes.append({**root, **{("next", key): leaf for key, leaf in (extra or {}).items()}})
    assert outcomes[0].keys() == outcomes[1].keys()
    assert all(torch.equal(leaf, outcomes[1][key]) for key, leaf in outcomes[0].items())


def test_the_toy_environment_of_core(make_policy):
    from rl.testing import CountingEnv

    batch = Collector(CountingEnv([2, 3], (2,)), frames_per_batch=8, debug=True).collect()
    assert batch["observation"][..., 0].tolist() == [[0, 1, 0, 1], [0, 1, 2, 0]]
    assert batch["next", "observation"][..., 0].tolist() == [[1, 2, 1, 2], [1, 2, 3, 1]]


@pytest.mark.parametrize(
    ("change", "message"), [({"height": torch.zeros(1)}, "has 'height'"), (None, r"lacks \('info', 'double'\)")]
)
def test_a_recorded_step_refuses_a_root_with_other_entries(monkeypatch, counting_env, change, message):
    monkeypatch.setattr(recorded, "record", lambda call, *_: (call(), lambda: None))
    env = counting_env([[5]])
    loop = recorded.RecordedLoop(LeafLoop(env, ["reward"], reads_done=False), torch.device("cpu"), (), "CountingEnv")

    def act(root):
        root["action"] = torch.tensor(0)

    step = env.step_leaves
    for _ in range(3):
        loop.run(2, act, step, [], [])
    before = dict(loop.root)
    loop.root = {**before, **change} if change else {key: leaf for key, leaf in before.items() if "info" not in key}
    with pytest.raises(ContractError, match=message):
        loop.run(2, act, step, [], [])
    loop.root = before
    loop.run(2, act, step, [], [])
