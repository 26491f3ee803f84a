from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, RLError, ShapeError, SpecError
from rl.core.specs import Bounded, Categorical, Composite, OneHot, Unbounded
from rl.envs import EnvBase, PendulumEnv, RandomPolicy, SerialEnv, check_env_specs
from rl.testing import check_env

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def by_hand(length, steps):
    """Root counts, counts under next, and done flags of one element that starts again at its end."""
    roots, outcomes, dones, count = [], [], [], 0
    for _ in range(steps):
        roots.append(count)
        outcomes.append(count + 1)
        dones.append(count + 1 >= length)
        count = 0 if dones[-1] else count + 1
    return roots, outcomes, dones


@given(lengths=lengths, steps=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_rollout_resets_each_element_when_it_ends(counter, lengths, steps):
    data = counter(lengths).rollout(steps, break_when_any_done=False)
    assert data.batch_size == (len(lengths), steps)
    for row, length in zip(data, lengths, strict=True):
        roots, outcomes, dones = by_hand(length, steps)
        assert row["observation"].flatten().tolist() == roots
        assert row["next", "observation"].flatten().tolist() == outcomes
        assert row["next", "done"].flatten().tolist() == dones
        assert not row["done"].any()


@given(lengths=lengths)
@settings(max_examples=20, deadline=None)
def test_rollout_stops_at_the_first_end(counter, lengths):
    data = counter(lengths).rollout(10)
    assert data.shape[-1] == min(lengths)
    assert data.names == [None, "time"]


@given(lengths=lengths)
@settings(max_examples=20, deadline=None)
def test_rollout_holds_those_that_ended_until_all_have(counter, lengths):
    data = counter(lengths).rollout(10, break_when_all_done=True)
    assert data.shape[-1] == max(lengths)
    for row, length in zip(data["next", "observation"].squeeze(-1).tolist(), lengths, strict=True):
        assert row == [min(t + 1, length) for t in range(max(lengths))]
    assert data["next", "done"][:, -1].all()


def test_rollout_without_batch(counter):
    data = counter([3], batch=False).rollout(10)
    assert data.batch_size == (3,)
    assert data.names == ["time"]
    assert data["next", "terminated"].flatten().tolist() == [False, False, True]


def test_rollout_runs_policy_and_callback(counter):
    seen = []
    data = counter([9]).rollout(
        4,
        policy=lambda td: td.set("action", torch.ones(1, dtype=torch.int64)),
        callback=lambda env, td: seen.append(td["next", "reward"].item()),
    )
    assert seen == [1.0] * 4
    assert data["action"].tolist() == [[1, 1, 1, 1]]


def test_rollout_goes_on_from_where_it_is(counter):
    env = counter([9])
    first = env.rollout(3)
    more = env.rollout(2, auto_reset=False, tensordict=env.step_mdp(first[..., -1]))
    assert more["observation"].flatten().tolist() == [3.0, 4.0]
    assert env.resets == 1


def test_rollout_from_nothing_says_what_to_pass(counter):
    with pytest.raises(RLError, match=r"tensordict=env\.reset\(\)"):
        counter([2]).rollout(2, auto_reset=False)


class Converting(PendulumEnv):
    """Another dtype of the observation from the third step on."""

    def __init__(self, dtype, *, leaf):
        super().__init__()
        self.dtype, self.count, self.leaf = dtype, 0, leaf

    def _step_leaves(self, root):
        self.count += 1
        out = super()._step_leaves(root)
        return {**out, "observation": out["observation"].to(self.dtype)} if self.count > 2 else out

    def lowered(self):
        return super().lowered() if self.leaf else None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bool])
@pytest.mark.parametrize("leaf", [False, True])
def test_rollout_refuses_an_entry_that_changes_its_dtype(dtype, leaf):
    for env in (Converting(dtype, leaf=leaf), SerialEnv(1, lambda: Converting(dtype, leaf=leaf))):
        with pytest.raises(SpecError, match="'observation': expected float32"):
            env.rollout(5)


@pytest.mark.parametrize("policy", [[0, 1], torch.zeros(3), RandomPolicy])
def test_rollout_refuses_a_policy_that_is_no_function(counter, policy):
    with pytest.raises(ArgumentError, match=r"policy is a function .*known actions as rollout\(n, actions=\.\.\.\)"):
        counter([3]).rollout(2, policy)


def test_rollout_refuses_a_policy_that_returns_no_tensordict(counter):
    with pytest.raises(SpecError, match="TensorDictModule"):
        counter([2]).rollout(2, policy=lambda td: torch.zeros(1))


def test_a_policy_may_return_its_own_entries_alone():
    def act(td):
        return TensorDict({"action": torch.full((*td.batch_size, 1), 0.5)}, batch_size=td.batch_size)

    for done in (True, False):
        data = PendulumEnv(batch_size=[2], seed=0).rollout(3, policy=act, break_when_any_done=done)
        assert data["action"].eq(0.5).all()
        assert data["observation"].shape == (2, 3, 3)


def test_set_truncated_marks_the_last_step_and_no_shared_tensor():
    class Cut(PendulumEnv):
        def __init__(self):
            super().__init__(batch_size=[2])
            flag = Categorical(2, shape=(1,), dtype=torch.bool)
            self.done_spec = Composite(done=flag, truncated=flag)

        def _flags(self, terminated=None):
            return {**super()._flags(terminated), "truncated": torch.zeros(2, 1, dtype=torch.bool)}

    data = Cut().rollout(3, set_truncated=True)
    assert data["next", "truncated"][..., 0].tolist() == [[False, False, True]] * 2
    assert data["next", "done"][..., 0].tolist() == [[False, False, True]] * 2
    with pytest.raises(RLError, match="StepCounter"):
        PendulumEnv().rollout(3, set_truncated=True)


def test_lazy_rollout_holds_the_same(counter):
    data = counter([3, 5]).rollout(4, return_contiguous=False, break_when_any_done=False)
    assert data.batch_size == (2, 4)
    assert data["observation"][..., 0].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]


def test_gradients_follow_the_ambient_mode():
    scale = torch.ones(1, requires_grad=True)
    env = PendulumEnv(seed=0)
    env.rollout(3, policy=lambda td: td.set("action", scale * 0.5))["next", "reward"].sum().backward()
    assert scale.grad.item() != 0
    with torch.no_grad():
        assert not env.rollout(3, policy=lambda td: td.set("action", scale * 0.5))["next", "reward"].requires_grad


# ---- resets


@given(mask=st.lists(st.booleans(), min_size=3, max_size=3))
@settings(max_examples=8, deadline=None)
def test_partial_reset_touches_what_is_marked(counter, mask):
    env = counter([9, 9, 9])
    td = env.rollout(3)[:, -1]
    root = env.step_mdp(td)
    out = env.reset(root.set("_reset", torch.tensor(mask).unsqueeze(-1)))
    assert out is root
    assert "_reset" not in out
    assert out["observation"].flatten().tolist() == [0.0 if m else 3.0 for m in mask]
    assert env.resets == 1 + any(mask)


def test_reset_mask_of_the_wrong_shape(counter):
    env = counter([9, 9])
    with pytest.raises(ShapeError, match=r"\(2,\).*\(2, 1\)"):
        env.reset(env.reset().set("_reset", torch.tensor([True, False])))


def test_partial_reset_needs_the_others(counter):
    with pytest.raises(ContractError, match="'observation'"):
        counter([9, 9]).reset(TensorDict(_reset=torch.tensor([[True], [False]]), batch_size=[2]))


def test_reset_into_a_tensordict_updates_it(counter):
    td = TensorDict(goal=torch.ones(2, 1), batch_size=[2])
    out = counter([2, 2]).reset(td)
    assert out is td
    assert {"goal", "observation", "done", "terminated"} == set(out.keys())


def test_held_elements_do_not_move(counter):
    env = counter([9, 9])
    td = env.rand_action(env.reset()).set("_step", torch.tensor([True, False]))
    assert env.step(td)["next", "observation"].flatten().tolist() == [1.0, 0.0]


def test_entries_under_next_that_the_environment_does_not_write_are_kept(counter):
    env = counter([9])
    td = env.rand_action(env.reset()).set(
        "next", TensorDict(memory=torch.ones(1, 4), observation=torch.ones(1, 1) * 7, batch_size=[1])
    )
    out = env.step(td)
    assert out["next", "memory"].shape == (1, 4)
    assert out["next", "observation"].item() == 1.0


# ---- specs


def test_default_specs(counter):
    env = counter([2, 2])
    assert env.reward_spec == Unbounded((2, 1))
    assert env.done_keys == ["done", "terminated"]
    assert env.action_spec.shape == (2,)
    assert env.action_spec_unbatched.shape == ()
    assert env.full_action_spec.shape == (2,)
    assert (env.action_key, env.reward_key, env.done_key) == ("action", "reward", "done")
    assert env.observation_keys == ["observation"]
    assert env.reset_keys == ["_reset"]
    assert env.state_keys == []


def test_a_spec_that_holds_the_batch_is_refused(counter):
    with pytest.raises(SpecError, match="adds its batch"):
        counter([2, 2]).observation_spec = Composite(observation=Unbounded((2, 1)), shape=(2,))


@pytest.mark.parametrize("lengths", [[2, 2], [2]])
def test_specs_are_changed_by_assignment_only(counter, lengths):
    env = counter(lengths)
    with pytest.raises(SpecError, match="locked"):
        env.observation_spec["more"] = Unbounded((len(lengths), 1))
    wider = env.observation_spec_unbatched.clone()
    wider["more"] = Unbounded(2)
    env.observation_spec = wider
    assert env.observation_spec["more"].shape == (len(lengths), 2)
    with pytest.raises(SpecError, match="'more'"):
        env.reset()


def test_done_spec_gets_the_flags_that_always_exist(counter):
    env = counter([2])
    env.done_spec = Composite(truncated=Categorical(2, shape=(1,), dtype=torch.bool))
    assert env.done_keys == ["done", "terminated", "truncated"]
    with pytest.raises(SpecError, match="'over'"):
        env.done_spec = Composite(over=Categorical(2, shape=(1,), dtype=torch.bool))


def test_fake_tensordict_has_the_layout_of_a_step(counter):
    env = counter([4, 4])
    step = env.rand_step()
    fake = env.fake_tensordict()
    keys = set(step.keys(True, True))
    assert keys == set(fake.keys(True, True))
    assert all(fake[key].shape == step[key].shape and fake[key].dtype == step[key].dtype for key in keys)


# ---- errors


def broken(**entries):
    class Broken(EnvBase):
        def __init__(self):
            super().__init__(batch_size=[2])
            self.observation_spec = Composite(observation=Bounded(-1, 1, shape=(3,)))
            self.action_spec = Bounded(-1, 1, shape=(1,))

        def _reset(self, td):
            return TensorDict(observation=torch.zeros(2, 3), batch_size=[2])

        def _step(self, td):
            good = {
                "observation": torch.zeros(2, 3),
                "reward": torch.zeros(2, 1),
                "terminated": torch.zeros(2, 1).bool(),
            }
            return TensorDict({k: v for k, v in {**good, **entries}.items() if v is not None}, batch_size=[2])

    return Broken()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        pytest.param(
            {"observation": torch.zeros(2, 4)},
            r"'observation': expected float32 \[2, 3\].*got float32 \[2, 4\]",
            id="shape",
        ),
        pytest.param(
            {"observation": torch.zeros(2, 3).double()}, r"expected float32 .*got float64 \[2, 3\]", id="dtype"
        ),
        pytest.param({"observation": torch.full((2, 3), 4.0)}, r"in \[-1, 1\], got .*4\.0", id="range"),
        pytest.param(
            {"observation": None, "observations": torch.zeros(2, 3)},
            r"got nothing \(did it write .observations. instead",
            id="key",
        ),
        pytest.param({"extra": torch.zeros(2, 3)}, r"'extra': expected nothing", id="unknown-key"),
        pytest.param({"reward": torch.zeros(2, 2)}, r"'reward': expected float32 \[2, 1\]", id="reward"),
    ],
)
def test_a_step_that_breaks_its_specs_is_named(entries, message):
    env = broken(**entries)
    with pytest.raises(SpecError, match=r"Broken\._step does not agree") as caught:
        env.rand_step()
    caught.match(message)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        pytest.param(None, ContractError, r"reads 'action', which nothing wrote", id="missing"),
        pytest.param(torch.zeros(2, 5), SpecError, r"expected float32 \[2, 1\].*got float32 \[2, 5\]", id="shape"),
        pytest.param(torch.full((2, 1), 50.0), SpecError, r"in \[-1, 1\].*50\.0.*project", id="range"),
        pytest.param(torch.zeros(2, 1).double(), SpecError, "got float64", id="dtype"),
    ],
)
def test_a_wrong_action_is_refused(action, error, message):
    env = broken()
    td = env.reset()
    if action is not None:
        td["action"] = action
    with pytest.raises(error, match=message):
        env.step(td)


def test_debug_checks_every_step(counter):
    env = counter([9], debug=True)
    td = env.rand_action(env.reset())
    _, td = env.step_and_maybe_reset(td)
    with pytest.raises(SpecError, match="action"):
        env.step(td.set("action", torch.tensor([7])))
    env.debug = False
    env.step(td)  # checks are for the first step


def test_a_wrong_batch_is_named(counter):
    env = counter([2, 2])
    with pytest.raises(SpecError, match=r"batch size \(3,\).*\(2,\)"):
        env.reset(TensorDict(batch_size=[3]))


def test_returning_the_input_is_refused():
    class Same(EnvBase):
        def __init__(self):
            super().__init__()
            self.observation_spec = Composite(observation=Unbounded(1))
            self.action_spec = Unbounded(1)

        def _reset(self, td):
            return TensorDict(observation=torch.zeros(1))

        def _step(self, td):
            return td

    with pytest.raises(SpecError, match="returned its input"):
        Same().rand_step()


def test_an_episode_cannot_begin_at_its_end(counter):
    env = counter([2])
    env._reset = lambda td: TensorDict(observation=torch.zeros(1, 1), done=torch.ones(1, 1).bool(), batch_size=[1])
    with pytest.raises(SpecError, match="begin at its end"):
        env.reset()


def test_missing_specs_are_named():
    class Empty(EnvBase):
        pass

    with pytest.raises(SpecError, match="no action_spec"):
        _ = Empty().action_spec


def test_closing_twice_and_using_a_closed_one():
    with PendulumEnv() as env:
        env.reset()
    env.close()
    with pytest.raises(RLError, match="closed"):
        env.reset()
    with pytest.raises(RLError, match="closed"):
        env.lowered().reset_leaves()


# ---- several done levels


class Agents(EnvBase):
    """Two agents, each with its own end; agent i ends after i + 2 steps."""

    def __init__(self):
        super().__init__(batch_size=[2])
        self.observation_spec = Composite(agents={"count": Unbounded((2, 1))})
        self.action_spec = Composite(agents={"action": Categorical(3, shape=(2,))})
        self.reward_spec = Composite(agents={"reward": Unbounded((2, 1))})
        self.done_spec = Composite(agents={"done": Categorical(2, shape=(2, 1), dtype=torch.bool)})
        self.counts = torch.zeros(2, 2, 1)

    def _reset(self, td):
        mask = None if td is None else td.get(("agents", "_reset"), None)
        zeros = torch.zeros_like(self.counts)
        self.counts = zeros if mask is None else torch.where(mask, zeros, self.counts)
        return TensorDict(agents=TensorDict(count=self.counts.clone(), batch_size=[2]), batch_size=[2])

    def _step(self, td):
        self.counts = self.counts + 1
        over = self.counts >= torch.tensor([2, 3]).reshape(1, 2, 1)
        reward = td["agents", "action"].float().unsqueeze(-1)
        inner = TensorDict(count=self.counts.clone(), reward=reward, done=over, batch_size=[2])
        return TensorDict(agents=inner, batch_size=[2])

    def _set_seed(self, seed):
        pass


def test_flags_and_resets_of_agents():
    env = Agents()
    assert env.done_keys == [("agents", "done"), ("agents", "terminated")]
    assert env.reset_keys == [("agents", "_reset")]
    data = env.rollout(7, break_when_any_done=False)
    assert data["agents", "count"][0, :, 0, 0].tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert data["agents", "count"][0, :, 1, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    check_env(Agents)


# ---- conformance and the rest


def test_conformance(counter):
    check_env(lambda: counter([3, 2, 4]))
    check_env(lambda: counter([3], batch=False))


def test_check_env_specs_raises_our_error():
    check_env_specs(PendulumEnv())
    PendulumEnv().check_env_specs()
    with pytest.raises(SpecError, match="observation"):
        check_env_specs(broken(observation=torch.zeros(2, 7)))


def test_set_seed_returns_another_seed():
    env = PendulumEnv()
    second = env.set_seed(0)
    assert second != 0
    assert env.set_seed(0) == second
    assert env.set_seed(second) not in (0, second)


def test_random_policy_has_a_plain_form():
    env = PendulumEnv([3])
    policy = RandomPolicy(env.action_spec)
    assert env.action_spec.is_in(policy(env.reset())["action"])
    (action,) = policy.lowered()()
    assert env.action_spec.is_in(action)
    assert (policy.in_keys, policy.out_keys) == ([], ["action"])


def test_an_environment_that_cannot_say_where_it_stands(counter):
    env = counter([2])
    state = env.state_dict()
    assert state == {"restorable": False}
    with pytest.warns(UserWarning, match="a reset begins another"):
        assert env.load_state_dict(state) is False


# ---------------------------------------------------------------------- done flags


class Flagged(EnvBase):
    """Its third step writes the flags that are given; a reset writes others."""

    def __init__(self, flags, at_reset=None, **kwargs):
        super().__init__(**kwargs)
        self.observation_spec = Composite(observation=Unbounded(1))
        self.action_spec = Categorical(2)
        self.done_spec = Composite(
            dict.fromkeys(("done", "terminated", "truncated"), Categorical(2, (1,), dtype=torch.bool))
        )
        self.flags, self.at_reset = flags, at_reset or {}

    def _reset(self, td):
        self.count = 0
        return TensorDict(observation=torch.zeros(1), **self.at_reset)

    def _step(self, td):
        self.count += 1
        flags = self.flags if self.count == 3 else dict.fromkeys(self.flags, torch.tensor([False]))
        return TensorDict(observation=torch.zeros(1), reward=torch.zeros(1), **flags)


YES, NO = torch.tensor([True]), torch.tensor([False])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"terminated": YES}, (True, True, False)),
        ({"truncated": YES}, (True, False, True)),
        ({"terminated": NO, "truncated": YES}, (True, False, True)),
    ],
    ids=["terminated", "truncated", "both"],
)
def test_done_is_filled_in_where_an_environment_leaves_it_out(flags, expected):
    data = Flagged(flags).rollout(5)
    assert data.shape == (3,)
    assert tuple(data["next", name][-1].item() for name in ("done", "terminated", "truncated")) == expected


@pytest.mark.parametrize("truncated", [{}, {"truncated": NO}], ids=["two-flags", "three-flags"])
def test_a_terminated_step_that_is_not_done_is_refused(truncated):
    with pytest.raises(
        ContractError, match=r"Flagged wrote done flags that contradict .*'done' False, 'terminated' True"
    ):
        Flagged({"done": NO, "terminated": YES, **truncated}).rollout(5)


def test_a_flag_of_one_half_is_refused():
    with pytest.raises(SpecError, match=r"Flagged wrote the flag 'terminated' as 0\.5"):
        Flagged({"terminated": torch.tensor([0.5])}).rollout(5)


def test_a_rollout_from_a_root_that_is_done_resets_first(counter):
    env = counter([2, 4])
    end = env.rollout(2)[:, -1]
    root = env.step_mdp(end)
    assert root["done"].flatten().tolist() == [True, False]
    data = env.rollout(1, auto_reset=False, tensordict=root)
    assert data["observation"].flatten().tolist() == [0, 2]
    assert data["next", "observation"].flatten().tolist() == [1, 3]
    assert root["done"].flatten().tolist() == [True, False]  # the input stays as it was
    assert "_reset" not in root


def test_a_reset_that_is_done_is_refused_in_both_forms():
    class Over(PendulumEnv):
        def _reset_leaves(self, mask):
            return {**super()._reset_leaves(mask), "done": YES, "terminated": YES}

    env = Over()
    with pytest.raises(SpecError, match=r"Over\._reset returned 'done' true"):
        env.reset()
    with pytest.raises(SpecError, match=r"Over\._reset returned 'done' true"):
        env.lowered().reset_leaves()


def test_a_late_change_of_shape_is_named(counter):
    class Late(counter):
        def _step(self, td):
            out = super()._step(td)
            return out.set("observation", torch.zeros(1, 2)) if self.counts.max() > 2 else out

    with pytest.raises(
        SpecError,
        match=r"Late\._step does not agree.*\n.*'observation': expected float32 \[1, 1\].*got float32 \[1, 2\]",
    ):
        Late([9]).rollout(5)


# ---------------------------------------------------------------------- names that users of other libraries know


def test_full_specs_are_assigned_and_handed_out(counter):
    env = counter([3])
    env.full_observation_spec = Composite(seen=Unbounded(2))
    env.full_action_spec = Composite(move=Categorical(3))
    env.full_reward_spec = Composite(gain=Unbounded(1))
    env.full_done_spec = Composite(truncated=Categorical(2, (1,), dtype=torch.bool))
    env.full_state_spec = Composite(memory=Unbounded(4))
    keys = (env.observation_keys, env.action_keys, env.reward_keys, env.state_keys)
    assert keys == (["seen"], ["move"], ["gain"], ["memory"])
    assert env.full_done_spec_unbatched == env.done_spec_unbatched
    assert set(env.full_done_spec_unbatched.keys()) == {"done", "terminated", "truncated"}


def test_a_second_close_is_refused_on_request():
    env = PendulumEnv()
    env.close(raise_if_closed=True)
    env.close()
    with pytest.raises(RLError, match="is closed"):
        env.close(raise_if_closed=True)


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        (OneHot(3, dtype=torch.float32), torch.full((3,), 5.0)),
        (OneHot(3), torch.tensor([0, 5, 0])),
        (Categorical(3), torch.tensor(1.0)),
    ],
    ids=["one-hot-of-fives", "one-hot-integers", "float-category"],
)
def test_an_action_outside_of_its_spec_is_refused_at_the_first_step_and_with_debug(spec, action):
    for debug in (False, True):
        env = Flagged({"terminated": NO}, debug=debug)
        env.action_spec = spec
        if debug:
            env.rollout(2)
        with pytest.raises(SpecError, match=r"Flagged\.step was given 'action' that is not in its spec"):
            env.step(env.reset().set("action", action))


@pytest.mark.parametrize("steps", [0, 2.5, True, "8", None])
def test_a_number_of_steps_that_is_none_is_refused_before_the_reset(steps):
    with pytest.raises(ArgumentError, match="rollout: max_steps must be"):
        PendulumEnv().rollout(steps)


def test_entries_outside_groups_are_reset_where_any_part_of_the_element_is():
    class Pairs(EnvBase):
        """Two elements with two agents each; all flags are under the group."""

        def __init__(self):
            super().__init__(batch_size=[2])
            flag = Categorical(2, shape=(2, 1), dtype=torch.bool)
            self.observation_spec = Composite(time=Unbounded((1,)), agents=Composite(place=Unbounded((2, 1)), shape=()))
            self.action_spec = Composite(agents=Composite(action=Unbounded((2, 1)), shape=()))
            self.reward_spec = Composite(agents=Composite(reward=Unbounded((2, 1)), shape=()))
            self.done_spec = Composite(agents=Composite(done=flag, terminated=flag.clone(), shape=()))

        def _reset(self, tensordict):
            return TensorDict({"time": torch.zeros(2, 1), ("agents", "place"): torch.zeros(2, 2, 1)}, [2])

        def _step(self, tensordict):
            place = tensordict["agents", "place"] + tensordict["agents", "action"]
            return TensorDict(
                {
                    "time": tensordict["time"] + 1,
                    ("agents", "place"): place,
                    ("agents", "reward"): place,
                    ("agents", "terminated"): place > 2,
                },
                [2],
            )

        def _set_seed(self, seed):
            pass

    env = Pairs()
    root = env.reset()
    root["agents", "action"] = torch.tensor([[[1.0], [3.0]], [[1.0], [1.0]]])
    _, root = env.step_and_maybe_reset(root)
    assert root["time"].flatten().tolist() == [0, 1]
    assert root["agents", "place"].flatten().tolist() == [1, 0, 1, 1]
