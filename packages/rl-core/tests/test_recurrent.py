"""States that modules declare, and the mode that says whether they see steps or sequences."""

import threading

import pytest
import torch
from tensordict.nn import set_interaction_type
from tensordict.nn.probabilistic import interaction_type
from torch import nn

from rl.core import ArgumentError, ContractError, State, recurrent_mode, set_recurrent_mode, states_of
from rl.core.recurrent import keep_modes


class Doubler(nn.Module):
    def __init__(self, *states):
        super().__init__()
        self.states = states

    def forward(self, x):
        return x * 2 if recurrent_mode() else x + 1


H = State(("recurrent_state", "h"), (1, 4), owner="Doubler")


def test_states_are_found_in_parts():
    policy = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Doubler(H), nn.Tanh()), Doubler(State("c", (2,))))
    assert states_of(policy) == (H, State("c", (2,)))


def test_a_part_that_is_held_twice_counts_once():
    shared = Doubler(H)
    assert states_of(nn.ModuleList([shared, nn.Sequential(shared)])) == (H,)


def test_two_parts_with_one_key_are_refused():
    with pytest.raises(ContractError, match=r"recurrent_state.*in_keys="):
        states_of(nn.ModuleList([Doubler(H), Doubler(H)]))


@pytest.mark.parametrize("component", [None, lambda td: td, nn.Linear(1, 1), object()])
def test_what_declares_nothing_is_stateless(component):
    assert states_of(component) == ()


def test_what_is_no_module_may_declare_states():
    class Policy:
        states = (H,)

    assert states_of(Policy()) == (H,)


def test_a_state_starts_as_it_says():
    start = State("h", (2, 3), torch.float64, initial=0.5).start((4,))
    assert start.shape == (4, 2, 3)
    assert start.dtype == torch.float64
    assert bool((start == 0.5).all())


@pytest.mark.parametrize(("mode", "value"), [(True, True), ("recurrent", True), (False, False), ("sequential", False)])
def test_the_mode_holds_inside_and_nests(mode, value):
    assert recurrent_mode() is None
    with set_recurrent_mode(mode):
        assert recurrent_mode() is value
        with set_recurrent_mode(not value):
            assert recurrent_mode() is not value
        with set_recurrent_mode(None):
            assert recurrent_mode() is None
        assert recurrent_mode() is value
    assert recurrent_mode() is None


def test_the_mode_ends_with_an_exception():
    with pytest.raises(RuntimeError), set_recurrent_mode(True):
        raise RuntimeError
    assert recurrent_mode() is None


def test_one_context_can_be_entered_again():
    context = set_recurrent_mode(True)
    with context, context:
        assert recurrent_mode() is True
    assert recurrent_mode() is None


def test_it_decorates_functions():
    @set_recurrent_mode("recurrent")
    def inside():
        """Says it."""
        return recurrent_mode()

    assert inside() is True
    assert inside.__doc__ == "Says it."
    assert recurrent_mode() is None


def test_other_recurrent_modes_are_rejected():
    with pytest.raises(ArgumentError, match="'recurrent'"):
        set_recurrent_mode("sequence")


def test_other_threads_keep_their_own():
    seen = []
    with set_recurrent_mode(True):
        thread = threading.Thread(target=lambda: seen.append(recurrent_mode()))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize("inside", [True, False])
def test_the_compiler_sees_the_mode(inside):
    net = Doubler()

    def call(x):
        if not inside:
            return net(x)
        with set_recurrent_mode(True):
            return net(x)

    compiled, x = torch.compile(call, fullgraph=True, backend="eager"), torch.ones(2) * 3
    expected = 6 if inside else 4
    assert compiled(x).tolist() == [expected] * 2
    with set_recurrent_mode(True):
        assert compiled(x).tolist() == [6, 6]
    assert compiled(x).tolist() == [expected] * 2
    assert recurrent_mode() is None


def test_wrappers_that_pass_attributes_on_declare_nothing():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

    assert Wrapper(Doubler(H)).states == (H,)
    assert states_of(Wrapper(Doubler(H))) == (H,)
    assert states_of(nn.Sequential(Wrapper(Wrapper(Doubler(H))))) == (H,)
    with pytest.raises(ContractError, match="both carry"):
        states_of(nn.ModuleList([Wrapper(Doubler(H)), Doubler(H)]))


def test_modes_that_an_interrupted_block_left_are_restored():
    def interrupted():
        torch.no_grad().__enter__()  # as after Ctrl-C between the last line of the block and its end
        set_recurrent_mode(False).__enter__()
        set_interaction_type("random").__enter__()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), keep_modes():
        interrupted()
    assert torch.is_grad_enabled()
    assert recurrent_mode() is None
    assert interaction_type() is None
