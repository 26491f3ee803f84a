from __future__ import annotations

import io

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core import Bounded, Categorical, Composite, State, Unbounded
from rl.core.contract import Contract, Key, check_pipeline, explain
from rl.core.errors import ArgumentError, ContractError
from rl.testing import CountingEnv


class Part:
    """Something with a contract."""

    def __init__(self, reads=(), writes=()):
        self.contract = Contract(tuple(map(as_key, reads)), tuple(map(as_key, writes)))


def as_key(key):
    return key if isinstance(key, Key) else Key(key)


def policy(in_key="observation", out_key="action"):
    return TensorDictModule(nn.Identity(), in_keys=[in_key], out_keys=[out_key])


def test_a_complete_pipeline_is_printed_key_by_key():
    out = io.StringIO()
    loss = Part(reads=[("next", "reward"), "action"], writes=["loss_objective"])
    explain(CountingEnv(batch_size=(2,)), policy(), loss, file=out)
    rows = {line.split()[0]: line.split("  ") for line in out.getvalue().splitlines()}
    assert {"observation", "action", "next.reward", "next.done", "loss_objective"} <= set(rows)
    reward = [cell.strip() for cell in rows["next.reward"] if cell.strip()]
    assert reward == ["next.reward", "[*B, 1]", "float32", "CountingEnv.step", "Part"]


def test_an_unwritten_key_is_reported_with_reader_and_nearest_key():
    with pytest.raises(ContractError, match=r"TensorDictModule reads 'observatoin'.*Did you mean 'observation'"):
        check_pipeline(CountingEnv(), policy(in_key="observatoin"))


def test_an_unwritten_action_is_reported_for_the_environment():
    with pytest.raises(ContractError, match=r"CountingEnv\.step reads 'action'"):
        check_pipeline(CountingEnv(), policy(out_key="acton"))


def test_what_the_step_writes_is_not_there_before_the_step():
    early = Part(reads=[("next", "reward")], writes=["action"])
    with pytest.raises(ContractError, match=r"Part reads \('next', 'reward'\)"):
        check_pipeline(CountingEnv(), early)


def test_an_optional_key_may_be_missing():
    check_pipeline(CountingEnv(), policy(), Part(reads=[Key("priority_weight", optional=True)]))


def test_the_table_is_printed_before_the_refusal():
    out = io.StringIO()
    with pytest.raises(ContractError):
        explain(Part(reads=["nothing"]), file=out)
    assert " - " in out.getvalue()


def test_all_problems_are_told_at_once_each_reader_and_remedy_once():
    loss = Part(reads=[Key("a", remedy="Run A."), Key("b", remedy="Run A."), "c"])
    with pytest.raises(ContractError) as caught:
        check_pipeline(Part(writes=["x", ("next", "y")]), loss)
    assert str(caught.value) == (
        "Part 2 reads 'a' and 'b', which nothing in this pipeline wrote. Run A.\n"
        "Part 2 reads 'c', which nothing in this pipeline wrote.\n"
        "(keys: x, next.y)"
    )


def test_keys_are_listed_at_each_problem_where_they_differ():
    with pytest.raises(ContractError) as caught:
        check_pipeline(Part(reads=["a"], writes=["x"]), Part(reads=["b"]))
    assert str(caught.value).splitlines() == [
        "Part reads 'a', which nothing in this pipeline wrote (keys: none).",
        "Part 2 reads 'b', which nothing in this pipeline wrote (keys: x).",
    ]


def test_components_of_one_class_are_told_apart():
    one, two = policy(out_key="hidden"), policy(in_key="hidden")
    found = check_pipeline(CountingEnv(), one, two, one)
    assert found.uses["hidden"].writers == ["TensorDictModule"]
    assert found.uses["hidden"].readers == ["TensorDictModule 2"]


def test_an_output_that_is_thrown_away_is_no_key():
    module = TensorDictModule(lambda x: (x, x), in_keys=[], out_keys=["_", "action"])
    assert list(check_pipeline(module).uses) == ["action"]


def test_a_class_instead_of_an_object_is_named():
    with pytest.raises(ArgumentError, match="CountingEnv is a class"):
        check_pipeline(CountingEnv, policy())


def test_a_component_without_keys_is_refused():
    with pytest.raises(ContractError, match="Linear does not say what it reads"):
        check_pipeline(torch.nn.Linear(1, 1))


def test_shapes_of_the_environment_win_over_letters():
    found = check_pipeline(CountingEnv(), Part(reads=[Key("observation", ("O",))], writes=["action"]))
    assert found.uses["observation"].shape == (1,)


def test_a_scalar_of_a_loss_has_no_batch_in_front():
    found = check_pipeline(Part(writes=[Key("loss", (), batched=False), Key("weight", ())]))
    assert found.uses["loss"].row()[1] == "[]"
    assert found.uses["weight"].row()[1] == "[*B]"


def remembering(key, out_key):
    """A part that carries `key` from step to step."""
    part = Part(reads=["observation", key, "is_init"], writes=[out_key, ("next", key)])
    part.states = (State(key, (1,), owner="Part"),)
    return part


def test_what_a_policy_carries_is_written_by_the_collector():
    table = check_pipeline(CountingEnv(), remembering("count", "action"), Part(reads=["count"]))
    assert table.uses["count"].writers == ["Collector"]
    assert table.uses["is_init"].writers == ["Collector"]


def test_recurrent_states_of_another_module_are_unwritten():
    with pytest.raises(ContractError, match="reads 'other', which nothing in this pipeline wrote"):
        check_pipeline(CountingEnv(), remembering("count", "action"), remembering("other", "value"))


class Team:
    """Specs of an environment with a batch of 2 and one group of agents; entries by name, their shapes."""

    def __init__(self, action, *, observation=None, reward=None):
        one = Composite({} if observation is None else {"observation": Unbounded((2, *observation))}, shape=(2,))
        self.batch_size = torch.Size([2])
        self.observation_spec = Composite(agents=one, shape=(2,))
        self.full_action_spec = Composite(agents=Composite(action=Bounded(-1, 1, (2, *action)), shape=(2,)), shape=(2,))
        agents = Composite({} if reward is None else {"reward": Unbounded((2, *reward))}, shape=(2,))
        self.full_reward_spec = Composite(agents=agents, shape=(2,))
        self.full_done_spec = Composite(done=Categorical(2, (2, 1), dtype=torch.bool), shape=(2,))


def team(*components, action=(3, 2), observation=(3, 4), reward=(3, 1)):
    return check_pipeline(Team(action, observation=observation, reward=reward), *components).uses


def agent(name, shape=(1,)):
    return Key(("agents", name), shape)


def test_entries_of_a_group_have_the_dimension_of_its_agents():
    actor = Part([agent("observation", None)], [agent("action", (2,)), agent("log_prob", ())])
    estimator = Part([Key(("next", "agents", "reward"), (1,)), Key(("next", "done"), (1,))], [agent("advantage")])
    uses = team(actor, estimator, Part(writes=[Key("loss", (), batched=False)]))
    shapes = {name: uses["agents", name].shape for name in ("action", "log_prob", "advantage")}
    assert shapes == {"action": (3, 2), "log_prob": (3,), "advantage": (3, 1)}
    assert uses["next", "agents", "reward"].shape == (3, 1)
    assert uses["next", "done"].shape == (1,)
    assert uses["loss"].row()[1] == "[]"


def test_an_entry_beside_a_group_may_be_of_each_agent_or_of_all():
    uses = team(Part(writes=[agent("action")]), Part([agent("action")], [Key("advantage", (1,))]))
    assert uses["advantage"].shape is None


@pytest.mark.parametrize(
    ("shapes", "value"),
    [
        pytest.param({"action": (3,), "observation": None, "reward": None}, None, id="agents-or-a-vector"),
        pytest.param({"action": (2,), "observation": (4,), "reward": (1,)}, (1,), id="no-agents"),
        pytest.param({"action": (1,), "observation": (1, 8, 8), "reward": (1,)}, (1,), id="no-agents-one-number"),
    ],
)
def test_a_group_without_a_dimension_of_agents(shapes, value):
    assert team(Part(writes=["action", agent("action"), agent("value")]), **shapes)["agents", "value"].shape == value


def test_without_an_environment_the_number_of_agents_is_unknown():
    assert check_pipeline(Part(writes=[agent("action", (2,))])).uses["agents", "action"].shape is None


def test_recurrent_states_in_a_group_have_all_of_their_dimensions():
    class Memory(Part):
        states = (State(("agents", "h"), (3, 1, 8)),)

    state = Key(("agents", "h"), (3, 1, 8))
    policy = Memory([state], [agent("action"), Key(("next", "agents", "h"), (3, 1, 8))])
    uses = team(policy)
    assert uses["agents", "h"].shape == uses["next", "agents", "h"].shape == (3, 1, 8)


class Observer(CountingEnv):
    """`CountingEnv` with the observations `names`, of which `inputs` are states that a policy may write."""

    def __init__(self, *names, inputs=()):
        super().__init__()
        self.observation_spec = Composite({key: Unbounded((1,)) for key in ("observation", *names)})
        self.full_state_spec = Composite({key: Unbounded((1,)) for key in inputs})


@pytest.mark.parametrize(
    ("observed", "written"),
    [
        ("loc", "loc"),
        (("params", "loc"), "params"),
        ("params", ("params", "loc")),
        ("h", ("next", "h")),
        ("state_value", "state_value"),
    ],
    ids=str,
)
def test_an_observation_that_a_component_overwrites_is_reported_with_the_writer(observed, written):
    env, part = Observer(observed), Part([observed], ["action", written])
    with pytest.raises(ContractError, match=r"Part writes .*would overwrite the observation .* of Observer.*out_keys"):
        check_pipeline(env, part)
    with pytest.raises(
        ContractError, match=r"Part writes .*would overwrite the observation .* of Observer.*RenameTransform"
    ):
        check_pipeline(env, policy(), Part(writes=[written]))


def test_components_may_write_states_of_the_environment_and_outputs_of_no_batch():
    env = Observer("noise", "loss", inputs=["noise"])
    check_pipeline(env, Part(["noise"], ["action", "noise"]), Part(writes=[Key("loss", (), batched=False)]))


@pytest.mark.parametrize("name", ["gamma", "priority_weight", "advantage"])
def test_an_observation_with_the_name_of_an_entry_of_losses_is_reported(name):
    loss = Part([Key(name, (1,), "what the loss means", optional=True)])
    with pytest.raises(ContractError, match=rf"Part reads '{name}' \(what the loss means\), and Observer has"):
        check_pipeline(Observer(name), policy(), loss)
    check_pipeline(Observer(), policy(), Part(writes=[name]), loss)
    other = Part([Key("discount", (1,), optional=True)])  # a name that the user gave with set_keys
    check_pipeline(Observer("discount"), policy(), other)
