"""A policy that carries state from step to step: what the collector writes for it, in every inner loop."""

import pytest
import torch
from tensordict.nn import TensorDictModuleBase

from rl.collectors import Collector
from rl.core import CheckpointError, ContractError, SpecError, State, TensorFunction, recurrent_mode, set_recurrent_mode

H = ("recurrent_state", "h")
LENGTHS = {(): ((3,),), (2,): ((3, 1), (2, 5))}


class Summing(TensorDictModuleBase):
    """Carries the sum of the steps that it saw in this episode, started at `initial`."""

    def __init__(self, *, lowers=True, initial=0.0, out_keys=("action", "seen", ("next", *H))):
        super().__init__()
        self.in_keys, self.out_keys = ["observation", H, "is_init"], list(out_keys)
        self.states = (State(H, (1, 2), initial=initial, owner="Summing"),)
        if not lowers:
            self.lowered = None  # type: ignore[assignment]

    def compute(self, observation, h, is_init):
        after = h + observation[..., 2].reshape(*h.shape[:-2], 1, 1)
        action = torch.zeros(observation.shape[:-1], dtype=torch.int64)
        return action, (h * 1).flatten(-2).sum(-1), after

    def forward(self, td):
        for key, value in zip(self.out_keys, self.compute(*[td[key] for key in self.in_keys]), strict=True):
            td.set(key, value)
        return td


class Lowering(Summing):
    def lowered(self):
        return TensorFunction(self.compute, self.in_keys, self.out_keys)


LOOPS = {
    "leaves": (Lowering, True),
    "leaves, TensorDict policy": (Summing, True),
    "tensordict": (Summing, False),
}


def expected(observation, done, initial):
    """The states before each step of one element, by hand."""
    states, state, fresh = [], initial, True
    for step, over in zip(observation.tolist(), done.tolist(), strict=True):
        state = initial if fresh else state
        states.append(state)
        state += step
        fresh = over
    return torch.tensor(states)


@pytest.mark.parametrize("size", [(), (2,)])
@pytest.mark.parametrize("initial", [0.0, 0.5])
@pytest.mark.parametrize("path", LOOPS)
def test_states_are_initial_at_the_start_of_each_episode(counting_env, path, initial, size):
    policy, fast = LOOPS[path]
    env = counting_env(LENGTHS[size], size, fast=fast)
    collector = Collector(env, policy(initial=initial), frames_per_batch=12, total_frames=24)
    assert collector.path == path
    batches = list(collector)
    whole = torch.cat(batches, dim=-1)
    done = whole["next", "done"].squeeze(-1)
    starts = torch.cat([torch.ones_like(done[..., :1]), done[..., :-1]], -1)
    assert torch.equal(whole["is_init"].squeeze(-1), starts)
    assert not whole["next", "is_init"].any()
    rows = [whole] if not size else list(whole)
    for row in rows:
        truth = expected(row["observation"][:, 2], row["next", "done"][:, 0], initial)
        assert row[H].shape == (len(truth), 1, 2)
        assert torch.equal(row[H], truth[:, None, None].expand(-1, 1, 2))
        assert torch.equal(row["seen"], 2 * truth)
        assert torch.equal(row["next", *H], (truth + row["observation"][:, 2])[:, None, None].expand(-1, 1, 2))


def test_a_reset_at_each_batch_initializes_states(counting_env):
    collector = Collector(counting_env(((9,),)), Lowering(), frames_per_batch=4, reset_at_each_iter=True)
    for _ in range(3):
        batch = collector.collect()
        assert batch["is_init"].flatten().tolist() == [True, False, False, False]
        assert not batch[H][0].any()


def test_random_frames_carry_state_too(counting_env):
    collector = Collector(counting_env(((5,),)), Lowering(), frames_per_batch=10, init_random_frames=5)
    batch = collector.collect()
    assert torch.equal(batch[H][:, 0, 0], expected(batch["observation"][:, 2], batch["next", "done"][:, 0], 0.0))


@pytest.mark.parametrize("path", LOOPS)
def test_a_continuation_carries_the_state_on(counting_env, path):
    policy, fast = LOOPS[path]

    class Resumable(counting_env):
        def state_dict(self):
            return {"episode": list(self.episode), "count": list(self.count)}

        def load_state_dict(self, state):
            self.episode, self.count = list(state["episode"]), list(state["count"])

    make = lambda: Collector(Resumable(((7,),), fast=fast), policy(), frames_per_batch=5)
    first, second = make(), make()
    first.collect()
    second.load_state_dict(first.state_dict())
    one, two = first.collect(), second.collect()
    assert torch.equal(one[H], two[H])
    assert one[H][0].any()
    assert torch.equal(one["is_init"], two["is_init"])


def test_what_the_environment_writes_is_left_to_it(counting_env):
    marks = []

    class Marking(counting_env):
        def reset_leaves(self, current=None, mask=None):
            root = super().reset_leaves(current, mask)
            marks.append(1)
            return {**root, "is_init": torch.ones_like(root["done"])}

        def step_leaves(self, root):
            outcome = super().step_leaves(root)
            return {**outcome, "is_init": torch.zeros_like(outcome["done"])}

    env = Marking(((3,),))
    env.observation_spec["is_init"] = env.full_done_spec["done"].clone()
    batch = Collector(env, Lowering(), frames_per_batch=7).collect()
    assert marks
    assert batch["is_init"].flatten().tolist() == [True, False, False, True, False, False, True]


def test_a_mark_that_is_never_true_is_refused(counting_env):
    class NeverTrue(counting_env):
        def reset_leaves(self, current=None, mask=None):
            root = super().reset_leaves(current, mask)
            return {**root, "is_init": torch.zeros_like(root["done"])}

        def step_leaves(self, root):
            outcome = super().step_leaves(root)
            return {**outcome, "is_init": torch.zeros_like(outcome["done"])}

    env = NeverTrue(((3,),))
    env.observation_spec["is_init"] = env.full_done_spec["done"].clone()
    with pytest.raises(ContractError, match=r"is_init.*false at the first step.*InitTracker"):
        Collector(env, Lowering(), frames_per_batch=7).collect()


def test_a_mark_that_is_true_at_the_first_reset_only_is_refused(counting_env):
    class Once(counting_env):
        def reset_leaves(self, current=None, mask=None):
            root = super().reset_leaves(current, mask)
            return {**root, "is_init": torch.full_like(root["done"], mask is None)}

        def step_leaves(self, root):
            outcome = super().step_leaves(root)
            return {**outcome, "is_init": torch.zeros_like(outcome["done"])}

    env = Once(((3,),))
    env.observation_spec["is_init"] = env.full_done_spec["done"].clone()
    with pytest.raises(ContractError, match=r"an episode ends at step 2.*leak"):
        Collector(env, Lowering(), frames_per_batch=7).collect()


def test_a_state_that_the_environment_does_not_restart_is_refused(counting_env):
    class Stale(counting_env):
        def reset_leaves(self, current=None, mask=None):
            root = super().reset_leaves(current, mask)
            return {**root, H: torch.full((1, 2), 0.0 if mask is None else 7.0)}

    env = Stale(((3,),))
    env.full_state_spec = type(env.observation_spec)({"recurrent_state": {"h": torch_spec((1, 2))}}, shape=())
    with pytest.raises(ContractError, match=r"not 0.0 where an episode begins.*make_tensordict_primer"):
        Collector(env, Lowering(), frames_per_batch=7).collect()


def torch_spec(shape):
    from rl.core.specs import Unbounded

    return Unbounded(shape)


def test_a_policy_that_drops_its_state_is_refused(counting_env):
    class Dropping(Lowering):
        def __init__(self):
            super().__init__(out_keys=("action", "seen"))

    with pytest.raises(ContractError, match=r"Summing has the recurrent state.*next.*recurrent_state.*out_keys"):
        Collector(counting_env(((3,),)), Dropping(), frames_per_batch=7)


def test_an_environment_without_a_done_flag_is_refused(counting_env):
    env = counting_env(((3,),), fast=False)
    env.full_done_spec = type(env.full_done_spec)({"agents": {"done": env.full_done_spec["done"]}}, shape=())
    with pytest.raises(SpecError, match=r"is reset where 'done'.*belong to the entire step.* write 'done'"):
        Collector(env, Summing(), frames_per_batch=7, track_traj_ids=False)


def test_stateless_policies_see_nothing_of_it(counting_env):
    batch = Collector(counting_env(((3,),)), frames_per_batch=7).collect()
    assert "is_init" not in batch.keys()


@pytest.mark.parametrize("path", LOOPS)
def test_policies_see_single_steps_whatever_mode_holds_outside(counting_env, path):
    policy, fast = LOOPS[path]
    seen = []

    class Asking(policy):
        def compute(self, *leaves):
            seen.append(recurrent_mode())
            return super().compute(*leaves)

    with set_recurrent_mode(True):
        Collector(counting_env(((3,),), fast=fast), Asking(), frames_per_batch=4).collect()
        assert recurrent_mode() is True
    assert seen
    assert set(seen) == {False}


@pytest.mark.parametrize("frames", [1, 3])
def test_a_mark_that_is_true_at_the_first_reset_only_is_refused_across_batches(counting_env, frames):
    class Once(counting_env):
        def reset_leaves(self, current=None, mask=None):
            root = super().reset_leaves(current, mask)
            return {**root, "is_init": torch.full_like(root["done"], mask is None)}

        def step_leaves(self, root):
            outcome = super().step_leaves(root)
            return {**outcome, "is_init": torch.zeros_like(outcome["done"])}

    env = Once(((3,),))
    env.observation_spec["is_init"] = env.full_done_spec["done"].clone()
    collector = Collector(env, Lowering(), frames_per_batch=frames)
    for _ in range(3 // frames):
        collector.collect()
    with pytest.raises(ContractError, match=r"an episode ended with the batch before.*is_init.*InitTracker"):
        collector.collect()


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("cut", [False, True])
def test_ends_between_batches_are_no_leaks(counting_env, frames, cut):
    collector = Collector(counting_env(((3,),)), Lowering(), frames_per_batch=frames, set_truncated=cut)
    starts = torch.cat([collector.collect()["is_init"].flatten() for _ in range(6)])
    assert starts.tolist() == [step % 3 == 0 for step in range(6 * frames)]


def test_a_saved_root_that_does_not_fit_is_refused_before_anything_is_loaded(counting_env):
    class Resumable(counting_env):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise AssertionError("loaded")

    class Wider(Lowering):
        def __init__(self):
            super().__init__()
            self.states = (State(H, (1, 4), owner="Wider"),)

    saved = []
    for policy in (None, Lowering()):
        collector = Collector(Resumable(((7,),)), policy, frames_per_batch=5)
        collector.collect()
        saved.append(collector.state_dict())
    fresh = Collector(Resumable(((7,),)), Wider(), frames_per_batch=5)
    with pytest.raises(CheckpointError, match=r"Wider has the recurrent state .*h.*collector that was saved did not"):
        fresh.load_state_dict(saved[0])
    with pytest.raises(CheckpointError, match=r"float32 \[\*B, 1, 4\].*saved has torch.float32 \[1, 2\]"):
        fresh.load_state_dict(saved[1])
    assert fresh.collected_frames == 0


def test_an_undeclared_state_is_refused(counting_env):
    class Around:
        def __init__(self, policy):
            self.policy, self.in_keys, self.out_keys = policy, policy.in_keys, policy.out_keys

        def __call__(self, td):
            return self.policy(td)

    policy = Around(Summing())
    with pytest.raises(ContractError, match=r"\(Around\) reads .*'h'\) and writes the same under 'next'.*states_of"):
        Collector(counting_env(((3,),)), policy, frames_per_batch=7)
    policy.states = Summing().states
    batch = Collector(counting_env(((3,),)), policy, frames_per_batch=7).collect()
    assert batch[H][:, 0, 0].tolist() == [0, 0, 1, 0, 0, 1, 0]
