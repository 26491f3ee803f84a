"""Multi-step transitions against a naive loop over each stream."""

import copy
import pickle

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError, SpecError
from rl.replay import LazyTensorStorage, MultiStep, MultiStepTransform, ReplayBuffer, TensorDictReplayBuffer
from rl.testing import check_transform

GAMMA = 0.9


def stream(*batch, seed=0, ends=0.25):
    """Steps [*B, T] whose trajectories end at random, terminated or truncated."""
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(*batch, *shape, generator=random)

    terminated, truncated = draw(1) < ends / 2, draw(1) < ends / 2
    return TensorDict(
        {
            "obs": draw(3),
            "agents": {"obs": draw(2, 3)},
            "next": {
                "obs": draw(3),
                "agents": {"obs": draw(2, 3), "reward": draw(2, 1)},
                "reward": draw(1),
                "terminated": terminated,
                "truncated": truncated,
                "done": terminated | truncated,
            },
        },
        batch_size=batch,
    )


def naive(td, n, reward_keys=("reward",)):
    """All steps of one stream [T], in a loop; the last ones as if the stream ended with it."""
    out = []
    for t in range(len(td)):
        row, k = td[t].clone(), 1
        while k < n and not td["next", "done"][t + k - 1] and t + k < len(td):
            k += 1
        after = td["next"][t + k - 1].clone()
        for key in reward_keys:
            parts = (key,) if isinstance(key, str) else key
            original = td["next"][t].get(key)
            after[parts] = sum(GAMMA**i * td["next"].get(key)[t + i] for i in range(k))
            after[(*parts[:-1], f"original_{parts[-1]}")] = original
        row["next"] = after
        row["steps_to_next_obs"], row["gamma"] = torch.tensor([k]), torch.tensor([GAMMA**k])
        row["nonterminal"] = ~td["next", "done"][t]
        out.append(row)
    return torch.stack(out)


def same(one, two):
    assert set(one.keys(include_nested=True)) == set(two.keys(include_nested=True))
    assert one.batch_size == two.batch_size
    for key in two.keys(include_nested=True, leaves_only=True):
        torch.testing.assert_close(one[key], two[key])


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("cuts", [[40], [10] * 4, [1] * 40, [2, 1, 30, 7], [39, 1]], ids=str)
def test_stored_steps_equal_a_loop_however_the_stream_is_cut(n, cuts):
    data, buffer = stream(40), ReplayBuffer(storage=LazyTensorStorage(50), transform=MultiStepTransform(n, GAMMA))
    index = torch.cat([buffer.extend(part) for part in data.split(cuts)])
    assert index.tolist() == list(range(40 - n))
    same(buffer[:], naive(data, n)[: 40 - n])
    same(data, stream(40))


def test_ten_steps_in_are_seven_stored():
    transform = MultiStepTransform(3, GAMMA)
    assert transform.inv(stream(10)).batch_size == (7,)
    assert transform.held == 3
    assert transform.inv(stream(10, seed=1)).batch_size == (10,)


@pytest.mark.parametrize("batch", [(2,), (2, 3)], ids=str)
def test_each_element_of_a_batch_is_a_stream(batch):
    data, transform = stream(*batch, 12, seed=1), MultiStepTransform(3, GAMMA)
    parts = [transform.inv(part) for part in data.split([2, 6, 4], dim=len(batch))]
    assert parts[0] is None
    out = torch.cat(parts[1:], len(batch))
    for found, given in zip(out.reshape(-1, 9), data.reshape(-1, 12), strict=True):
        same(found, naive(given, 3)[:9])


def test_rewards_of_groups():
    keys = ["reward", ("agents", "reward")]
    data, transform = stream(20, seed=2), MultiStepTransform(4, GAMMA, reward_keys=keys)
    same(transform.inv(data), naive(data, 4, keys)[:16])
    other = MultiStepTransform(4, GAMMA, reward_keys=[("agents", "reward")]).inv(data)
    same(other["next"], naive(data, 4, [("agents", "reward")])["next"][:16])


def test_a_flag_can_be_named_and_rewards_after_an_end_do_not_matter():
    data = stream(6, ends=0.0)
    data["next", "over"] = torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.bool)
    data["next", "reward"][3:] = torch.nan
    for options in ({"done_key": "over"}, {"done_keys": ["over", "done"]}):
        out = MultiStepTransform(3, GAMMA, **options).inv(data)
        assert out["steps_to_next_obs"].flatten().tolist() == [3, 2, 1]
        assert out["next", "reward"].isfinite().all()


def test_rewards_of_agents_that_do_not_act_count_as_zero():
    data, keys = stream(20, seed=2), ["reward", ("agents", "reward")]
    mask = torch.rand(20, 2, generator=torch.Generator().manual_seed(0)) < 0.6
    data["agents", "mask"] = mask
    other = data.clone()
    other["next", "agents", "reward"][~mask] = 0.0
    expected = naive(other, 4, keys)[:16]
    data["next", "agents", "reward"][~mask] = torch.nan
    out = MultiStepTransform(4, GAMMA, reward_keys=keys).inv(data)
    for key in keys:
        torch.testing.assert_close(out["next"].get(key), expected["next"].get(key))
    data["agents", "mask"] = mask.unsqueeze(-1)
    with pytest.raises(ShapeError, match=r"expected bool \[20, 2\]: true for agents that act"):
        MultiStepTransform(4, GAMMA, reward_keys=keys).inv(data)


@pytest.mark.parametrize("stays", [False, True], ids=["starts again", "waits for the others"])
def test_windows_end_where_an_agent_ends(stays):
    """Against a loop over agents: rewards of an episode of each, and the state after as many steps for all."""
    n, steps, key = 4, 30, ("agents", "done")
    random = torch.Generator().manual_seed(3)
    data = stream(steps, seed=4).exclude(*[("next", name) for name in ("done", "terminated", "truncated")])
    over, before, now = [], [], torch.zeros(2, 1, dtype=torch.bool)
    for _ in range(steps):
        before.append(now)
        over.append(now | (torch.rand(2, 1, generator=random) < 0.15))
        now = over[-1] & ~over[-1].all() if stays else now
    data[key], data["next", "agents", "done"] = torch.stack(before), torch.stack(over)
    out = MultiStep(GAMMA, n, reward_keys=[("agents", "reward")], done_key=key)(data)
    rewards, k = data["next", "agents", "reward"], out["steps_to_next_obs"].flatten().tolist()
    for t in range(steps):
        inside = range(t, t + k[t])
        ends = [bool((over[i] & ~before[i]).any()) for i in inside]
        assert not any(ends[:-1])
        assert ends[-1] or k[t] == min(n, steps - t)
        torch.testing.assert_close(
            out["next", "agents", "reward"][t], sum(GAMMA ** (i - t) * rewards[i] for i in inside)
        )
        assert torch.equal(out["next", "agents", "done"][t], over[inside[-1]])
    assert any(k[t] == n for t in range(5, steps))


def test_padding_is_marked_and_not_crossed():
    data = stream(1, 8, ends=0.0)
    data["collector", "mask"] = torch.arange(8).expand(1, 8) < 4
    with pytest.raises(ContractError, match="last one before padding"):
        MultiStepTransform(3, GAMMA).inv(data)
    data["next", "done"][0, 3] = data["next", "truncated"][0, 3] = True
    out = MultiStepTransform(3, GAMMA).inv(data)
    assert out["nonterminal"].flatten().tolist() == [True] * 3 + [False] * 2
    assert out["steps_to_next_obs"].flatten().tolist() == [3, 3, 2, 1, 1]


def test_steps_of_another_trajectory_without_an_end_are_refused():
    data, transform = stream(10, ends=0.0), MultiStepTransform(3, GAMMA)
    data["collector", "traj_ids"] = torch.zeros(10, dtype=torch.int64)
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), transform=transform)
    buffer.extend(data)
    other = data.clone()
    other["collector", "traj_ids"] += 1
    with pytest.raises(ContractError, match=r"traj_ids.*jumps"):
        buffer.extend(other)
    buffer.extend(data)
    assert len(buffer) == 17


@pytest.mark.parametrize("disk", [False, True])
def test_a_resumed_buffer_continues_the_stream(disk, tmp_path):
    def make():
        transform = MultiStepTransform(3, GAMMA)
        return TensorDictReplayBuffer(storage=LazyTensorStorage(50), batch_size=4, transform=transform)

    data, first, second = stream(30), make(), make()
    data["text"] = NonTensorStack(*[f"step {i}" for i in range(30)])
    first.extend(data[:14])
    if disk:
        first.dumps(tmp_path)
        second.loads(tmp_path)
    else:
        second.load_state_dict(first.state_dict())
    first.empty()
    second.extend(data[14:])
    expected = naive(data.exclude("text"), 3)[:27]
    same(second[:].exclude("text"), expected)
    assert second[:].get("text").tolist() == [f"step {i}" for i in range(27)]
    first.extend(data[14:])
    same(first[:].exclude("text"), expected[14:])


def test_samples_are_not_changed():
    check_transform(MultiStepTransform(3, GAMMA), stream(10))


def test_copies_hold_their_own_steps():
    data, transform = stream(20), MultiStepTransform(3, GAMMA)
    transform.inv(data[:10])
    for other in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        same(other.inv(data[10:]), naive(data, 3)[7:17])
    data["obs"][9] = 0.0  # what is held back is a copy
    assert transform.inv(data[10:])["obs"][2].any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda td: td.exclude(("next", "reward")), ContractError, "reward"),
        (lambda td: td.exclude("next"), ContractError, "done"),
        (lambda td: td.exclude("obs"), ContractError, "misses 'obs'"),
        (lambda td: td.set("obs", td["obs"].double()), SpecError, "'obs' was float32"),
        (lambda td: td.reshape(2, 5), ShapeError, "empty the buffer first"),
        (lambda td: td[0], ShapeError, "at least one step"),
        (lambda td: td[:0], ShapeError, "at least one step"),
        (lambda td: td.set(("next", "done"), torch.zeros(10, 2, 1) > 0), ShapeError, "done"),
    ],
    ids=["reward", "flags", "key", "dtype", "streams", "single", "empty", "group flag"],
)
def test_wrong_input_is_named_and_changes_nothing(change, error, message):
    transform = MultiStepTransform(3, GAMMA)
    data = stream(10)
    transform.inv(data)
    before = transform.state_dict()
    with pytest.raises(error, match=message):
        transform.inv(change(stream(10, seed=3)))
    same(transform.inv(data[:1]), naive(data, 3)[7:8])
    transform.load_state_dict(before)
    assert transform.held == 3


def test_a_flat_group_flag_a_flat_reward_and_an_absent_flag_are_refused_at_the_first_batch():
    data = stream(10)
    data["next", "agents", "done"] = torch.zeros(10, 2, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"expected bool \[10, 1\], or \[10, n_agents, 1\] in a group"):
        MultiStepTransform(3, GAMMA, done_key=("agents", "done")).inv(data)
    with pytest.raises(ContractError, match="over"):
        MultiStepTransform(3, GAMMA, done_keys=["done", "over"]).inv(data)
    with pytest.raises(ShapeError, match=r"floating-point reward \[10, 1\]"):
        MultiStepTransform(3, GAMMA).inv(data.set(("next", "reward"), torch.zeros(10)))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n_steps": 0}, ArgumentError),
        ({"n_steps": 2.0}, ArgumentError),
        ({"gamma": 1.1}, ArgumentError),
        ({"reward_keys": []}, ArgumentError),
        ({"done_key": "done", "done_keys": ["done"]}, ArgumentError),
    ],
)
def test_wrong_arguments(arguments, error):
    with pytest.raises(error, match="MultiStepTransform"):
        MultiStepTransform(**{"n_steps": 3, "gamma": 0.9, **arguments})


def test_a_damaged_state_changes_nothing():
    transform = MultiStepTransform(3, GAMMA)
    transform.inv(stream(10))
    for state in ({}, {"held": 3}):
        with pytest.raises(CheckpointError):
            transform.load_state_dict(state)
    assert transform.held == 3


@pytest.mark.parametrize("gamma", [GAMMA, 1.0])
def test_the_target_of_dqn_equals_a_loop(gamma):
    objectives = pytest.importorskip("rl.objectives")
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    loss = objectives.DQNLoss(net, action_space="categorical", gamma=0.5)  # the batch says how the value is discounted
    data, n = stream(30, seed=4), 3
    data = data.exclude("agents", ("next", "agents")).rename_key_("obs", "observation")
    data["next"].rename_key_("obs", "observation")
    data["action"] = torch.randint(2, (30,))
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), transform=MultiStepTransform(n, gamma))
    buffer.extend(data)
    stored = buffer[:]
    loss(stored)
    with torch.no_grad():
        for t in range(30 - n):
            target, k = 0.0, 0
            while True:
                target += gamma**k * data["next", "reward"][t + k].item()
                k += 1
                if k == n or data["next", "done"][t + k - 1]:
                    break
            if not data["next", "terminated"][t + k - 1]:
                target += gamma**k * net(data["next", "observation"][t + k - 1]).max().item()
            chosen = net(data["observation"][t])[data["action"][t]].item()
            assert stored["td_error"][t].item() == pytest.approx(abs(target - chosen), abs=1e-5)


@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("batch", [(20,), (2, 9), (2, 3, 5)], ids=str)
def test_windows_of_a_collected_batch_end_with_it(n, batch):
    td = stream(*batch)
    before = td.clone()
    found = MultiStep(GAMMA, n).to("cpu")(td)
    assert found.batch_size == td.batch_size
    rows = zip(found.reshape(-1, batch[-1]), td.reshape(-1, batch[-1]), strict=True)
    for row, collected in rows:
        torch.testing.assert_close(row, naive(collected, n))
    torch.testing.assert_close(td, before)


def test_a_collected_batch_without_steps_or_arguments_out_of_range_is_refused():
    assert MultiStep(GAMMA, 5)(stream(2, 1))["steps_to_next_obs"].tolist() == [[[1]], [[1]]]
    for wrong in (stream(3)[0], stream(2, 3)[:, :0]):
        with pytest.raises(ShapeError, match=r"MultiStep: expected a batch \[\*B, T\]"):
            MultiStep(GAMMA, 2)(wrong)
    with pytest.raises(ArgumentError, match="MultiStep: n_steps must be at least 1"):
        MultiStep(GAMMA, 0)
    with pytest.raises(ContractError, match=r"MultiStep reads .*'reward'"):
        MultiStep(GAMMA, 2)(stream(4).exclude(("next", "reward")))


@pytest.mark.parametrize("key", ["gamma", "steps_to_next_obs", "nonterminal"])
@pytest.mark.parametrize("make", [MultiStep, MultiStepTransform])
def test_an_observation_is_not_overwritten(make, key):
    td = stream(5)
    td[key] = td["next", key] = torch.rand(5, 1)
    part = make(n_steps=2, gamma=GAMMA)
    run = getattr(part, "inv", part)
    with pytest.raises(ContractError, match=f"writes '{key}', and the batch has"):
        run(td)
