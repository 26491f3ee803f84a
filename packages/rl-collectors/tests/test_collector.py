"""What a collector promises besides the batches' content."""

import threading
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type
from torch import nn

import rl.collectors
from rl.collectors import Collector, MultiSyncCollector, SyncDataCollector
from rl.core.errors import ArgumentError, CheckpointError, ContractError, RLError, ShapeError, SpecError
from rl.core.specs import Binary, Categorical, Composite, OneHot, Unbounded
from rl.testing import CountingEnv


def test_every_exported_name_resolves():
    for name in rl.collectors.__all__:
        assert getattr(rl.collectors, name) is not None


def test_what_is_declared_is_there():
    from rl.core.component import CONTRACTS
    from rl.plugins.collectors import rl_components

    (component,) = rl_components()
    assert (component.kind, component.name, component.contract) == ("collector", "collector", CONTRACTS["collector"][1])
    module, _, name = component.target.partition(":")
    assert getattr(import_module(module), name) is Collector


def test_iteration_ends_at_total_frames(counting_env):
    collector = Collector(counting_env, frames_per_batch=4, total_frames=12)
    assert [batch.shape for batch in collector] == [torch.Size([4])] * 3
    assert collector.collected_frames == 12
    assert list(collector) == []


def test_without_total_frames_it_never_ends(counting_env):
    iterator = iter(Collector(counting_env, frames_per_batch=1))
    assert [next(iterator).shape[0] for _ in range(20)] == [1] * 20


def test_rounded_frames_are_a_warning_at_the_line_of_the_caller(counting_env):
    rows = [[3]] * 3
    with pytest.warns(
        UserWarning, match=r"frames_per_batch=4 is no multiple of the 3 .* each batch has 6 frames; total"
    ) as found:
        collector = Collector(counting_env(rows, [3]), frames_per_batch=4, total_frames=7)
    assert found[0].filename == __file__
    assert [batch.shape for batch in collector] == [torch.Size([3, 2])] * 2
    with pytest.warns(UserWarning, match="12 frames will be collected"):
        Collector(counting_env, frames_per_batch=4, total_frames=10)


def test_an_environment_a_function_and_a_class_will_do(counting_env, bare_env):
    for given_ in (counting_env(), lambda: counting_env([[2]]), counting_env, bare_env()):
        assert Collector(given_, frames_per_batch=2).collect().shape == (2,)


@pytest.mark.parametrize("wrong", [3, lambda: "env", None], ids=["number", "function", "none"])
def test_anything_else_is_refused(wrong):
    with pytest.raises(
        ArgumentError, match=r"create_env_fn returned (int|str|NoneType), expected an environment.*lacks batch"
    ):
        Collector(wrong, frames_per_batch=2)


@pytest.mark.parametrize(
    "options",
    [
        {"frames_per_batch": 0},
        {"frames_per_batch": 1, "total_frames": 0},
        {"frames_per_batch": 1, "init_random_frames": -2},
        {"frames_per_batch": 2.5},
        {"frames_per_batch": True},
        {"frames_per_batch": "4"},
        {"frames_per_batch": 1, "total_frames": 2.5},
        {"frames_per_batch": 1, "init_random_frames": "none"},
    ],
)
def test_senseless_counts_are_refused(counting_env, options):
    with pytest.raises(ArgumentError, match=list(options)[-1]):
        Collector(counting_env, **options)


@pytest.mark.parametrize("none", [None, -1])
@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector])
def test_no_random_frames_in_either_spelling(counting_env, kind, none):
    always = TensorDictModule(lambda obs: torch.full(obs.shape[:-1], 1), ["observation"], ["action"])
    env = counting_env if kind is Collector else [counting_env] * 2
    collector = kind(env, always, frames_per_batch=10, init_random_frames=none)
    assert (collector.collect()["action"] == 1).all()
    collector.shutdown()


# ---- actions


def test_without_policy_actions_are_random_and_in_spec(counting_env):
    torch.manual_seed(0)
    batch = Collector(counting_env, frames_per_batch=200).collect()
    assert set(batch["action"].tolist()) == {0, 1}


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_random_frames_come_first_and_the_policy_after_them(counting_env, fast):
    always = TensorDictModule(
        lambda obs: (torch.full(obs.shape[:-1], 1), obs[..., 2]), in_keys=["observation"], out_keys=["action", "seen"]
    )
    torch.manual_seed(0)
    env = counting_env([[9]] * 2, [2], fast=fast)
    collector = Collector(env, always, frames_per_batch=40, init_random_frames=59)
    first, second = collector.collect(), collector.collect()
    assert (first["action"] == 0).any()
    assert (second["action"][:, :10] == 0).any()
    assert (second["action"][:, 10:] == 1).all()  # 59 frames are 30 steps of two
    assert torch.equal(first["seen"], first["observation"][..., 2])  # the policy ran all the same


def test_random_frames_refuse_a_log_probability(counting_env):
    actor = TensorDictModule(
        lambda obs: (obs[..., 0].long(), obs[..., 0]), in_keys=["observation"], out_keys=["action", "action_log_prob"]
    )
    with pytest.raises(ArgumentError, match=r"'action_log_prob'.*return_log_prob=False"):
        Collector(counting_env, actor, frames_per_batch=2, init_random_frames=1)


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_exploration_is_random_unless_told_otherwise(counting_env, fast):
    seen = []

    def policy(td):
        seen.append(interaction_type())
        return td.set("action", torch.tensor(0))

    Collector(counting_env(fast=fast), policy, frames_per_batch=1).collect()
    Collector(counting_env(fast=fast), policy, frames_per_batch=1, exploration_type=InteractionType.MODE).collect()
    Collector(counting_env(fast=fast), policy, frames_per_batch=1, exploration_type=None).collect()
    assert seen == [InteractionType.RANDOM, InteractionType.MODE, None]


def test_a_policy_that_reads_an_absent_key_is_refused_at_construction(counting_env):
    policy = TensorDictModule(nn.Identity(), in_keys=["observatoin"], out_keys=["action"])
    with pytest.raises(ContractError, match=r"reads 'observatoin'.*Did you mean 'observation'"):
        Collector(counting_env, policy, frames_per_batch=2)


def test_a_policy_without_action_is_refused_at_construction(counting_env):
    policy = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["acton"])
    with pytest.raises(ContractError, match=r"CountingEnv.*reads 'action'"):
        Collector(counting_env, policy, frames_per_batch=2)


def test_a_class_of_policies_and_an_empty_batch_are_refused(counting_env):
    with pytest.raises(ArgumentError, match="is the class"):
        Collector(counting_env([[3]]), torch.nn.Linear, frames_per_batch=2)
    with pytest.raises(ArgumentError, match="nothing to collect"):
        Collector(counting_env([], batch_size=[0]), frames_per_batch=2)


def test_an_entry_with_the_name_of_the_ids_is_refused(counting_env):
    env = counting_env()
    env.observation_spec["collector"] = Unbounded((1,))
    with pytest.raises(SpecError, match=r"CountingEnv writes an entry 'collector'.*RenameTransform"):
        Collector(env, frames_per_batch=2)
    act = TensorDictModule(lambda o: (torch.tensor(0), o), in_keys=["observation"], out_keys=["action", "collector"])
    with pytest.raises(SpecError, match="TensorDictModule writes an entry 'collector'"):
        Collector(counting_env(), act, frames_per_batch=2)
    found = Collector(counting_env(), act, frames_per_batch=2, track_traj_ids=False).collect()
    assert torch.equal(found["collector"], found["observation"])


def test_a_bare_network_is_refused(counting_env):
    with pytest.raises(ContractError, match=r"Linear does not say what it reads.*TensorDictModule"):
        Collector(counting_env, nn.Linear(4, 2), frames_per_batch=2)


WRONG = {
    "missing": (lambda td: td, ContractError, r"reads 'action'.*must write it"),
    "shape": (
        lambda td: td.set("action", torch.tensor([0])),
        SpecError,
        r"'action' with shape \(1,\), expected \(\).*squeeze",
    ),
    "dtype": (lambda td: td.set("action", torch.tensor(0.0)), SpecError, r"'action' as float32, expected int64"),
    "domain": (
        lambda td: td.set("action", torch.tensor(2)),
        SpecError,
        r"'action' outside its spec: .*got.*QValueActor",
    ),
    "nothing": (lambda td: 3, ContractError, r"returned int, expected a TensorDict.*TensorDictModule"),
}


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
@pytest.mark.parametrize("case", list(WRONG))
def test_wrong_actions_are_named_before_the_environment_sees_them(counting_env, fast, case):
    policy, error, message = WRONG[case]
    env = counting_env(fast=fast)
    with pytest.raises(error, match=message):
        Collector(env, policy, frames_per_batch=2).collect()
    assert env.count == [0]


def test_an_action_out_of_bounds_is_refused(box_env):
    policy = TensorDictModule(lambda obs: 2 + obs[..., :1], in_keys=["observation"], out_keys=["action"])
    with pytest.raises(SpecError, match=r"policy \(TensorDictModule\) wrote 'action' outside its spec.*TanhNormal"):
        Collector(box_env(), policy, frames_per_batch=2).collect()


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_debug_checks_every_step(counting_env, fast):
    late = TensorDictModule(lambda obs: obs[..., 2].long(), in_keys=["observation"], out_keys=["action"])
    env = counting_env([[9]], fast=fast)
    with pytest.raises(SpecError, match="outside its spec"):
        Collector(env, late, frames_per_batch=9, debug=True).collect()
    assert env.count == [2]


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_an_environment_that_breaks_its_specs_is_named(counting_env, fast):
    class Wrong(counting_env):
        def step_leaves(self, root):
            out = super().step_leaves(root)
            out["reward"] = out["reward"].squeeze(-1)
            return out

    class Poor(counting_env):
        def step_leaves(self, root):
            out = super().step_leaves(root)
            del out["truncated"]
            return out

    with pytest.raises(
        SpecError, match=r"Wrong.step wrote \('next', 'reward'\) with shape \(\), expected \(1,\).*unsq"
    ):
        Collector(Wrong(fast=fast), frames_per_batch=2).collect()
    with pytest.raises(ContractError, match=r"Poor.step did not write \('next', 'truncated'\)"):
        Collector(Poor(fast=fast), frames_per_batch=2).collect()


def test_a_policy_output_without_the_batch_is_refused(counting_env):
    policy = TensorDictModule(
        lambda obs: (obs[..., 0].long() * 0, obs.sum()), in_keys=["observation"], out_keys=["action", "total"]
    )
    with pytest.raises(ShapeError, match=r"'total' has shape \(\).*batch size \(2,\)"):
        Collector(counting_env([[3], [3]], [2]), policy, frames_per_batch=4).collect()


def test_entries_that_come_or_go_are_refused(counting_env):
    def policy(td):
        td.set("action", torch.tensor(0))
        return td.set("a" if td["observation"][2] < 3 else "b", torch.tensor(0.0))

    with pytest.raises(ContractError, match="has 'b', which the first step of this collector had not"):
        Collector(counting_env([[9]]), policy, frames_per_batch=9).collect()


# ---- control


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_episodes_go_on_across_batches(counting_env, fast):
    collector = Collector(counting_env([[5]], fast=fast), frames_per_batch=3)
    whole = torch.cat([collector.collect() for _ in range(4)])
    assert whole["observation"][:, 2].tolist() == [t % 5 for t in range(12)]
    assert whole["collector", "traj_ids"].tolist() == [t // 5 for t in range(12)]


def test_reset_at_each_iter(counting_env):
    collector = Collector(counting_env([[5]]), frames_per_batch=3, reset_at_each_iter=True)
    whole = torch.cat([collector.collect() for _ in range(3)])
    assert whole["observation"][:, 2].tolist() == [0, 1, 2] * 3
    assert whole["collector", "traj_ids"].tolist() == [0] * 3 + [1] * 3 + [2] * 3


def test_reset_and_set_seed(counting_env):
    collector = Collector(counting_env([[5]]), frames_per_batch=3)
    assert collector.set_seed(3) == 4
    first = collector.collect()
    assert collector.set_seed(3) == 4
    again = collector.collect()
    assert torch.equal(first["observation"], again["observation"])
    collector.reset()
    assert collector.rollout()["collector", "traj_ids"].tolist() == [2, 2, 2]


def test_set_truncated_marks_the_last_step_only_in_the_batch(counting_env):
    collector = Collector(counting_env([[5]]), frames_per_batch=3, set_truncated=True)
    first, second = collector.collect(), collector.collect()
    assert first["next", "truncated"].flatten().tolist() == [False, False, True]
    assert first["next", "done"].flatten().tolist() == [False, False, True]
    assert not first["next", "terminated"].any()
    assert second["observation"][:, 2].tolist() == [3, 4, 0]
    assert second["collector", "traj_ids"].tolist() == [0, 0, 1]
    assert not second["done"].any()


def test_switches_without_the_flag_they_need(counting_env):
    env = counting_env()
    del env.full_done_spec["truncated"]
    with pytest.raises(SpecError, match=r"set_truncated=True needs 'truncated'"):
        Collector(env, frames_per_batch=1, set_truncated=True)


def test_no_trajectory_ids_when_switched_off(counting_env):
    batch = Collector(counting_env, frames_per_batch=2, track_traj_ids=False).collect()
    assert "collector" not in batch.keys()


def test_postproc_and_storing_device(counting_env):
    collector = Collector(counting_env, frames_per_batch=2, postproc=lambda td: td.reshape(2, 1), storing_device="meta")
    batch = collector.collect()
    assert batch.shape == (2, 1)
    assert batch["action"].device.type == "meta"


def test_shutdown_twice_closes_once_and_ends_collecting(counting_env):
    env = counting_env()
    with Collector(env, frames_per_batch=2) as collector:
        collector.collect()
    collector.shutdown()
    assert env.closed == 1
    with pytest.raises(RLError, match="shut down"):
        collector.collect()


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_after_an_interruption_collection_starts_from_a_reset(counting_env, fast):
    fail = []

    def policy(td):
        if td["observation"][2] == 3 and fail:
            raise KeyboardInterrupt
        return td.set("action", torch.tensor(0))

    collector = Collector(counting_env([[9]], fast=fast), policy, frames_per_batch=2)
    collector.collect()
    fail.append(1)
    with pytest.raises(KeyboardInterrupt):
        collector.collect()
    fail.clear()
    batch = collector.collect()
    assert batch["observation"][:, 2].tolist() == [0, 1]
    assert batch["collector", "traj_ids"].tolist() == [1, 1]


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_stats_say_where_time_went(counting_env, make_policy, fast):
    collector = Collector(counting_env(fast=fast), make_policy(), frames_per_batch=20, profile=True)
    collector.collect()
    stats = collector.stats
    assert stats["frames"] == 20
    assert min(stats["env"], stats["policy"], stats["rest"]) > 0
    assert Collector(counting_env, frames_per_batch=2).stats == {"frames": 0}


def test_the_old_name_warns_and_works(counting_env, make_policy):
    with pytest.warns(DeprecationWarning, match="use Collector") as caught:
        collector = SyncDataCollector(
            create_env_fn=counting_env, policy=make_policy(), frames_per_batch=4, total_frames=8
        )
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(list(collector)) == 2
    assert isinstance(collector, Collector)


# ---- weights


def test_weights_are_taken_over_in_place(counting_env, make_policy):
    policy, other = make_policy(0), make_policy(1)
    collector = Collector(counting_env, policy, frames_per_batch=1)
    weight = policy.module.linear.weight
    before = weight.clone()
    collector.update_policy_weights_()
    collector.update_policy_weights_(policy)
    assert torch.equal(weight, before)
    new = other.module.linear.weight
    for source in (other, other.state_dict(), TensorDict.from_module(other)):
        collector.update_policy_weights_(source)
        assert torch.equal(weight, new)
        assert weight.data_ptr() != new.data_ptr()
        weight.data.zero_()


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(counting_env, make_policy):
    policy = make_policy()
    before = policy.state_dict()["module.linear.bias"].clone()
    collector = Collector(counting_env, policy, frames_per_batch=1)
    wrong = {"module.linear.bias": torch.ones(2), "module.linear.weight": torch.ones(3, 4), "extra": torch.ones(1)}
    with pytest.raises(
        ArgumentError, match=r"extra is unknown, module.linear.weight has shape \(3, 4\) instead of \(2, 4\)"
    ):
        collector.update_policy_weights_(wrong)
    assert torch.equal(policy.state_dict()["module.linear.bias"], before)
    with pytest.raises(ArgumentError, match="no weights"):
        Collector(counting_env, frames_per_batch=1).update_policy_weights_(policy)
    with pytest.raises(ArgumentError, match="got int"):
        collector.update_policy_weights_(3)


def test_a_policy_on_another_device_than_asked_for(counting_env, make_policy):
    with pytest.raises(ArgumentError, match=r"parameters are on cpu.*policy.to\('meta'\)"):
        Collector(counting_env, make_policy(), frames_per_batch=1, device="meta")


# ---- exact continuation


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3),
    steps=st.integers(1, 6),
    before=st.integers(0, 3),
    fast=st.booleans(),
)
def test_a_loaded_state_continues_exactly(counting_env, make_policy, rows, steps, before, fast):
    def make():
        env = counting_env(rows, [len(rows)], fast=fast)
        return Collector(env, make_policy(), frames_per_batch=steps * len(rows), init_random_frames=5)

    torch.manual_seed(0)
    straight = make()
    for _ in range(before):
        straight.collect()
    state, generator = straight.state_dict(), torch.get_rng_state()
    expected = [straight.collect() for _ in range(3)]
    resumed = make()
    resumed.load_state_dict(state)
    torch.set_rng_state(generator)
    for batch in expected:
        found = resumed.collect()
        assert set(found.keys(True, True)) == set(batch.keys(True, True))
        assert all(torch.equal(found[key], batch[key]) for key in batch.keys(True, True))
    assert resumed.collected_frames == straight.collected_frames


def test_the_state_survives_torch_save_without_pickled_objects(counting_env, tmp_path):
    collector = Collector(counting_env, frames_per_batch=2)
    collector.collect()
    torch.save(collector.state_dict(), tmp_path / "state.pt")
    collector.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


def test_an_environment_without_state_is_reset_with_a_warning(bare_env):
    collector = Collector(bare_env([[5]]), frames_per_batch=3)
    collector.collect()
    with pytest.warns(UserWarning, match=r"NoStateEnv has no state_dict"):
        state = collector.state_dict()
    other = Collector(bare_env([[5]]), frames_per_batch=3)
    other.load_state_dict(state)
    batch = other.collect()
    assert batch["observation"][:, 2].tolist() == [0, 1, 2]
    assert batch["collector", "traj_ids"].tolist() == [1, 1, 1]
    assert other.collected_frames == 6


def test_an_environment_that_cannot_be_restored_is_reset(counting_env):
    class Forgetful(counting_env):
        def load_state_dict(self, state):
            return False

    collector = Collector(Forgetful([[5]]), frames_per_batch=3)
    collector.collect()
    collector.load_state_dict(collector.state_dict())
    assert collector.collect()["observation"][:, 2].tolist() == [0, 1, 2]


def test_states_that_do_not_fit_are_refused(counting_env):
    collector = Collector(counting_env([[5]] * 2, [2]), frames_per_batch=2)
    with pytest.raises(CheckpointError, match="no state of a collector: it lacks frames"):
        collector.load_state_dict({"x": 1})
    collector.collect()
    with pytest.raises(CheckpointError, match=r"batch size \(2,\), this collector has \(3,\)"):
        Collector(counting_env([[5]] * 3, [3]), frames_per_batch=3).load_state_dict(collector.state_dict())


def test_a_postproc_may_return_anything(counting_env):
    batch = Collector(counting_env, frames_per_batch=2, postproc=list).collect()
    assert isinstance(batch, list)
    assert len(batch) == 2


# ---- two threads


@pytest.mark.parametrize("call", ["collect", "reset", "state_dict", "set_seed", "load_state_dict"])
def test_a_second_thread_is_refused_while_a_batch_is_collected(counting_env, call):
    inside, go_on = threading.Event(), threading.Event()

    def policy(td):
        inside.set()
        assert go_on.wait(10)
        return td.set("action", torch.tensor(0))

    collector = Collector(counting_env(), policy, frames_per_batch=4)
    arguments = {"set_seed": (0,), "load_state_dict": (collector.state_dict(),)}.get(call, ())
    batches = []
    thread = threading.Thread(target=lambda: batches.append(collector.collect()))
    thread.start()
    assert inside.wait(10)
    try:
        with pytest.raises(RLError, match=rf"Collector\.{call} was called while .*give each thread a Collector"):
            getattr(collector, call)(*arguments)
    finally:
        go_on.set()
        thread.join()
    assert batches[0]["observation"][:, 2].tolist() == [0, 1, 2, 0]  # whole, and the next one continues it
    assert collector.collect()["observation"][:, 2].tolist() == [1, 2, 0, 1]


# ---- what an environment or a policy changes after the first steps


class Changing:
    """Passes on what an environment writes, and from a step on what `change` makes of it."""

    def __init__(self, inner, change, at=5):
        self._inner, self._change, self._at, self._count = inner, change, at, 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def lowered(self):
        return self if self._inner.fast else None

    def reset_leaves(self, current=None, mask=None):
        return self._inner.reset_leaves(current, mask)

    def _changed(self, entries):
        self._count += 1
        if self._count >= self._at:
            self._change(entries)
        return entries

    def step_leaves(self, root):
        return self._changed(self._inner.step_leaves(root))

    def step_and_maybe_reset(self, tensordict):
        stepped, root = self._inner.step_and_maybe_reset(tensordict)
        self._changed(stepped["next"])
        return stepped, root


CHANGES = {
    "dropped reward": (lambda e: e.pop("reward"), r"Changing\.step did not write \('next', 'reward'\)"),
    "shape": (
        lambda e: e.update({"observation": torch.zeros(5)}),
        r"Changing\.step wrote \('next', 'observation'\) with shape \(5,\), expected \(4,\)",
    ),
    "dtype": (
        lambda e: e.update({"observation": torch.zeros(4, dtype=torch.float64)}),
        r"Changing\.step wrote \('next', 'observation'\) as float64, expected float32",
    ),
}


@pytest.mark.parametrize("steps", [20, 200], ids=["one-chunk", "several-chunks"])
@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_late_change_of_the_environment_is_named(counting_env, change, fast, steps):
    make, message = CHANGES[change]
    collector = Collector(Changing(counting_env([[50]], fast=fast), make), frames_per_batch=steps)
    with pytest.raises(RLError, match=message):
        collector.collect()


def test_an_observation_that_becomes_none_is_named(counting_env, make_policy):
    env = Changing(counting_env([[50]]), lambda entries: entries.update(observation=None))
    message = r"Changing\.step wrote \('next', 'observation'\) as NoneType, expected a tensor float32 \(4,\)"
    for policy in (None, make_policy()):
        with pytest.raises(SpecError, match=message):
            Collector(env, policy, frames_per_batch=20).collect()


def test_a_change_between_two_batches_is_named(counting_env):
    collector = Collector(Changing(counting_env([[50]]), CHANGES["dtype"][0], at=21), frames_per_batch=20)
    collector.collect()
    with pytest.raises(SpecError, match="as float64, expected float32"):
        collector.collect()
    assert collector.state_dict()["root"] is None  # the next batch begins with a reset


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
@pytest.mark.parametrize("key", ["action", "scores"])
def test_a_late_change_of_the_policy_is_named(counting_env, key, fast):
    count = 0

    def policy(td):
        nonlocal count
        count += 1
        td["action"], td["scores"] = torch.tensor(1), torch.zeros(2)
        return td.set(key, torch.zeros(3, dtype=td[key].dtype)) if count > 5 else td

    expected = {
        "action": r"the policy \(policy\) wrote 'action' with shape \(3,\), expected \(\)",
        "scores": r"'scores' became \(3,\) torch.float32 at step 5 of this batch, after \(2,\)",
    }
    with pytest.raises(RLError, match=expected[key]):
        Collector(counting_env([[50]], fast=fast), policy, frames_per_batch=20).collect()


def test_an_error_of_the_environment_itself_is_kept(counting_env):
    def crash(_):
        raise ZeroDivisionError("of the simulator")

    with pytest.raises(ZeroDivisionError, match="of the simulator"):
        Collector(Changing(counting_env(), crash), frames_per_batch=20).collect()


# ---- done flags


YES, NO = torch.tensor([True]), torch.tensor([False])


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_an_end_that_is_not_done_is_refused(counting_env, flag, fast):
    env = Changing(counting_env([[50]], fast=fast), lambda entries: entries.update({flag: YES, "done": NO}))
    with pytest.raises(
        ContractError, match=rf"Changing\.step wrote done flags .* at \[4, 0\] .*'done' False.*'{flag}' True"
    ):
        Collector(env, frames_per_batch=20).collect()


def test_contradictions_are_found_at_every_level():
    class Team(CountingEnv):
        def __init__(self):
            super().__init__()
            agents = Composite({flag: Binary(shape=(2, 1), dtype=torch.bool) for flag in ("done", "terminated")})
            self.full_done_spec = Composite({**dict(self.full_done_spec.items()), "agents": agents})

        def reset_leaves(self, current=None, mask=None):
            no = torch.zeros(2, 1, dtype=torch.bool)
            return {**super().reset_leaves(current, mask), ("agents", "done"): no, ("agents", "terminated"): no.clone()}

        def step_leaves(self, root):
            no = torch.zeros(2, 1, dtype=torch.bool)
            return {**super().step_leaves(root), ("agents", "done"): no, ("agents", "terminated"): ~no}

    with pytest.raises(ContractError, match=r"Team.step wrote done flags .*\('agents', 'done'\) False"):
        Collector(Team(), frames_per_batch=3).collect()


@pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])
def test_a_reset_that_is_done_is_refused(counting_env, fast):
    class BornDone(type(counting_env())):
        def reset_leaves(self, current=None, mask=None):
            return super().reset_leaves(current, mask) | {"done": YES, "terminated": YES}

    with pytest.raises(SpecError, match=r"BornDone\.reset returned 'done' true"):
        Collector(BornDone([[3]], fast=fast), frames_per_batch=2).collect()


def test_flags_that_are_not_boolean_are_refused(counting_env):
    env = counting_env()
    env.full_done_spec["terminated"] = Unbounded((1,))
    with pytest.raises(SpecError, match=r"CountingEnv\.full_done_spec has 'terminated' as torch\.float32"):
        Collector(env, frames_per_batch=2)


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        (OneHot(3, dtype=torch.float32), torch.full((3,), 5.0)),
        (OneHot(3), torch.tensor([0, 5, 0])),
        (Categorical(3), torch.tensor(1.0)),
    ],
    ids=["one-hot-of-fives", "one-hot-integers", "float-category"],
)
def test_an_action_outside_of_its_spec_is_refused_at_the_first_step(counting_env, spec, action):
    with pytest.raises(SpecError, match=r"the policy \(<lambda>\) wrote 'action'"):
        Collector(counting_env(spec=spec), lambda td: td.set("action", action), frames_per_batch=2).collect()
