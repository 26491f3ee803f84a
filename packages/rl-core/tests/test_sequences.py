"""`check_sequences`: time order of a batch that recurrent networks read."""

import pytest
import torch
from tensordict import TensorDict

from rl.core import ContractError, ShapeError, State
from rl.core.sequences import check_sequences

H = ("recurrent_state", "h")
STATES = [State(H, (1, 2), owner="LSTMModule")]


def batch(done=(0, 0, 1, 0, 0, 0), rows=2):
    """Steps in time order; the state counts the steps of an episode."""
    over = torch.tensor(done, dtype=torch.bool)
    starts = torch.cat([torch.ones(1, dtype=torch.bool), over[:-1]])
    states, state = [], 0.0
    for first in starts.tolist():
        state = 0.0 if first else state
        states.append(state)
        state += 1
    h = torch.tensor(states)[:, None, None].expand(-1, 1, 2)
    after = TensorDict({"done": over[:, None], H: h + 1}, batch_size=[len(done)])
    td = TensorDict({"is_init": starts[:, None], H: h, "next": after}, batch_size=[len(done)])
    return td if rows is None else torch.stack([td.clone() for _ in range(rows)])


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_a_batch_in_time_order_passes(rows):
    check_sequences(batch(rows=rows), STATES, "PPOLoss")


def test_without_recurrent_states_no_key_is_required():
    check_sequences(TensorDict(batch_size=[3]), (), "PPOLoss")


def test_a_single_step_passes():
    check_sequences(batch()[:, :1], STATES, "PPOLoss")


def test_slices_that_start_in_mid_trajectory_pass():
    td = batch()[:, 4:].clone()
    td["is_init"][:, 0] = True
    check_sequences(td, STATES, "PPOLoss")


def test_states_that_are_not_stored_are_not_compared():
    check_sequences(batch().exclude(H), STATES, "PPOLoss")
    check_sequences(batch().exclude(("next", *H)), STATES, "PPOLoss")


def test_a_batch_without_is_init_is_refused():
    with pytest.raises(ContractError, match=r"PPOLoss reads 'is_init'.*leak.*Collector.*InitTracker"):
        check_sequences(batch().exclude("is_init"), STATES, "PPOLoss")


def test_is_init_that_is_never_true_is_refused():
    td = batch()
    td["is_init"].zero_()
    with pytest.raises(ContractError, match="an episode ends at step 2"):
        check_sequences(td, STATES, "PPOLoss")


def test_an_agent_that_ends_before_its_episode_restarts_no_state():
    """States restart with the episode: the flag at the root decides; without it that of any agent does."""
    td = batch()
    td["next", "agents", "done"] = td["next", "done"].unsqueeze(-2).repeat(1, 1, 3, 1)
    td["next", "agents", "done"][:, 1, 0] = True
    check_sequences(td, STATES, "PPOLoss", done_key=("agents", "done"))
    missed = td.clone()
    missed["is_init"][:, 3] = False
    with pytest.raises(ContractError, match=r"an episode ends at step 2 of this batch \(\('next', 'done'\)\)"):
        check_sequences(missed.exclude(H), STATES, "PPOLoss", done_key=("agents", "done"))
    with pytest.raises(ContractError, match=r"step 1 .*'agents', 'done'\).* keep \('next', 'done'\)"):
        check_sequences(td.exclude(("next", "done")), STATES, "PPOLoss", done_key=("agents", "done"))


@pytest.mark.parametrize("element", [0, 1])
def test_one_wrong_element_is_enough(element):
    td = batch()
    td["is_init"][element] = False
    with pytest.raises(ContractError, match="leak"):
        check_sequences(td, STATES, "PPOLoss")


def test_shuffled_steps_are_refused():
    td = batch(done=(0,) * 6, rows=None)[torch.tensor([0, 3, 1, 2, 5, 4])]
    with pytest.raises(ContractError, match=r"not in time order, or were shuffled.*SliceSampler"):
        check_sequences(td, STATES, "PPOLoss")


def test_a_state_without_dimensions_is_compared_too():
    td = batch()
    for key in (H, ("next", *H)):
        td[key] = td[key][..., 0, 0]
    states = [State(H, ())]
    check_sequences(td, states, "PPOLoss")
    td[H][1, 1] = 7
    with pytest.raises(ContractError, match="not in time order"):
        check_sequences(td, states, "PPOLoss")


@pytest.mark.parametrize("wrong", [lambda mark: mark.squeeze(-1), lambda mark: mark.int(), lambda mark: mark.float()])
def test_is_init_of_another_shape_or_dtype_is_refused(wrong):
    td = batch()
    td["is_init"] = wrong(td["is_init"])
    with pytest.raises(ShapeError, match=r"PPOLoss: 'is_init' is .*expected bool \[2, 6, 1\]"):
        check_sequences(td, STATES, "PPOLoss")


@pytest.mark.parametrize("key", [H, ("next", *H)])
def test_a_state_of_another_shape_is_refused(key):
    td = batch()
    td[key] = td[key][..., 0]
    with pytest.raises(
        ShapeError, match=r"h'\) has the shape \[2, 6, 1\], expected \[2, 6, 1, 2\]: a state of LSTMModule"
    ):
        check_sequences(td, STATES, "PPOLoss")


def test_time_has_to_be_the_last_dimension():
    td = batch(done=(0,) * 6)
    td.names = [None, "time"]
    check_sequences(td, STATES, "PPOLoss")
    with pytest.raises(ContractError, match=r"time is dimension 0.*transpose"):
        check_sequences(td.transpose(0, 1).exclude(("next", *H)), STATES, "PPOLoss")


def test_another_trajectory_without_is_init_is_refused():
    td = batch().exclude(("next", *H), ("next", "done"))
    td["collector", "traj_ids"] = torch.tensor([0, 0, 0, 1, 1, 1]).expand(2, 6)
    check_sequences(td, STATES, "PPOLoss")
    td["is_init"][0, 3] = False
    with pytest.raises(ContractError, match=r"after step 2 of this batch is of another trajectory.*leak"):
        check_sequences(td, STATES, "PPOLoss")


def test_a_flat_batch_of_unknown_order_is_refused():
    flat = batch(done=(0,) * 6).reshape(-1)
    check_sequences(flat, STATES, "PPOLoss")
    kept = flat.exclude(("next", *H), ("next", "done"))
    for td in (kept, kept[torch.randperm(12)]):
        with pytest.raises(ContractError, match=r"nothing in this flat batch.*Keep \('next', 'recurrent_state', 'h'\)"):
            check_sequences(td, STATES, "PPOLoss")
    named = kept.clone()
    named.names = ["time"]
    check_sequences(named, STATES, "PPOLoss")
    check_sequences(kept[torch.tensor([0, 6])], STATES, "PPOLoss")  # all of them begin


def test_the_index_of_a_buffer_shows_the_order():
    td = batch(rows=None).exclude(("next", *H))
    td["index"] = torch.tensor([7, 8, 9, 0, 1, 2])
    check_sequences(td, STATES, "PPOLoss")
    td["index"] = torch.tensor([7, 9, 8, 0, 1, 2])
    with pytest.raises(ContractError, match="'index' jumps after step 1"):
        check_sequences(td, STATES, "PPOLoss")


@pytest.mark.parametrize("kept", ["states", "index"])
def test_shuffled_steps_are_reported_as_shuffled_at_ends_of_episodes_too(kept):
    td = batch(done=(0, 0, 1, 0, 0, 1, 0, 0, 0), rows=None)
    td["index"] = torch.arange(9)
    td = td[torch.tensor([2, 4, 0, 8, 5, 1, 7, 3, 6])]  # no step after an end is the first of an episode
    if kept == "index":
        td = td.exclude(("next", *H))
    with pytest.raises(ContractError, match="shuffled"):
        check_sequences(td, STATES, "PPOLoss")


def test_time_in_another_dimension_is_named_as_a_cause():
    td = batch(done=(0, 0, 0, 0, 0, 0), rows=4)
    td = td.transpose(0, 1).clone()
    td["is_init"][:, 0] = True
    td["is_init"][:, 1:] = False
    with pytest.raises(ContractError, match=r"or time is not the last dimension of the batch \[6, 4\]"):
        check_sequences(td, STATES, "PPOLoss")


def sliced(length=6, slices=4, capacity=84, first=(3, 40, 81, 12), names=("time",)):
    """Slices as a sampler returns them: flat, named, without the states under `next`; rings wrap."""
    index = torch.cat([(torch.arange(length) + start) % capacity for start in first[:slices]])
    starts = torch.arange(length * slices) % length == 0
    td = TensorDict(
        {"is_init": starts[:, None], H: torch.randn(length * slices, 1, 2), "index": index}, batch_size=[len(index)]
    )
    td.names = list(names)
    return td


def test_slices_that_wrap_in_their_storage_pass():
    td = sliced()
    check_sequences(td, STATES, "PPOLoss")
    check_sequences(td.reshape(4, 6), STATES, "PPOLoss")
    check_sequences(td.reshape(6, 4), STATES, "PPOLoss")
    # Interleaved environments: steps of one are apart, and continue at the front of the storage after its end.
    td["index"][:6] = torch.tensor([12, 13, 35, 36, 37, 38])
    td["index"][6:12] = torch.tensor([68, 69, 0, 1, 2, 23])
    check_sequences(td, STATES, "PPOLoss")
    check_sequences(td[2:], STATES, "PPOLoss")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize("how", ["shuffled", "reversed", "transposed"])
def test_slices_out_of_order_are_refused_without_the_next_states(how, rows, named):
    td = sliced(names=["time"] if named else [None])
    order = {
        "shuffled": torch.randperm(24, generator=torch.Generator().manual_seed(0)),
        "reversed": torch.arange(23, -1, -1),
        "transposed": torch.arange(24).reshape(4, 6).T.reshape(-1),
    }[how]
    td = td[order] if rows is None else td[order].reshape(rows, -1)
    with pytest.raises(ContractError, match=r"'index' jumps after step \d+.*shuffled"):
        check_sequences(td, STATES, "PPOLoss")


def test_jumps_of_an_unnamed_flat_batch_have_two_possible_causes():
    td = sliced(names=[None])
    check_sequences(td, STATES, "PPOLoss")
    td["index"][2:6] += 22
    with pytest.raises(ContractError, match=r"'index' jumps after step 1.*or .*several environments.*td.names"):
        check_sequences(td, STATES, "PPOLoss")


@pytest.mark.parametrize("td", [batch()[:, :4].unsqueeze(-1), batch(rows=1)])
def test_a_dimension_of_one_element_after_time_is_refused(td):
    td.names = [None, "time", None][: td.batch_dims]
    td = td if td.batch_dims == 3 else td.transpose(0, 1)
    with pytest.raises(ContractError, match=r"time is dimension"):
        check_sequences(td, STATES, "PPOLoss")


def test_the_order_of_rows_is_checked_in_one_graph():
    torch._dynamo.reset()
    check = torch.compile(lambda td: check_sequences(td, STATES, "PPOLoss"), fullgraph=True, backend="eager")
    td = sliced()
    check(td)
    with pytest.raises(RuntimeError, match="'index' jumps after a step"):
        check(td[torch.arange(23, -1, -1)])


@pytest.mark.parametrize("kind", ["states", "unknown", "index"])
def test_batches_of_any_length_are_checked_in_one_graph(kind):
    torch._dynamo.reset()
    check = torch.compile(
        lambda td: check_sequences(td, STATES, "PPOLoss"), fullgraph=True, dynamic=True, backend="eager"
    )
    for length in (6, 7, 8):
        td = batch(done=(0,) * length, rows=2 if kind == "states" else None)
        if kind != "states":
            td = td.exclude(("next", *H))
        if kind == "index":
            td["index"] = torch.arange(length) + 3
        if kind == "unknown":
            td["is_init"][:] = True
        check(td)
