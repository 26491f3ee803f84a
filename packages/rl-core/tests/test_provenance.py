"""Who had a key last and who dropped it, as errors say it."""

import gc

import pytest
import torch
from tensordict import TensorDict

from rl.core import ContractError
from rl.core.contract import Contract, Key
from rl.core.provenance import fate_of, forget_stage, keys_in, note_stage, through

H = ("recurrent_state", "h")
FULL = ["observation", "action", "is_init", H, ("next", "reward"), ("next", "done")]
LESS = [key for key in FULL if key != H]


class Owner:
    pass


@pytest.fixture(autouse=True)
def _no_other_pipelines(monkeypatch):
    monkeypatch.setattr("rl.core.provenance._stages", {})


def test_who_dropped_it_is_named():
    owner = Owner()
    note_stage(owner, "the postproc of Collector (drop)", FULL, LESS)
    assert fate_of(H, LESS) == "The postproc of Collector (drop) dropped it."
    assert fate_of("value", LESS) == ""
    assert fate_of("reward", LESS) == ""


def test_what_was_lost_between_two_stages_names_both():
    owner = Owner()
    note_stage(owner, "Collector", FULL)
    assert fate_of(H, LESS) == "Collector had it: what came behind dropped it."
    note_stage(owner, "what Buffer stores", LESS)
    note_stage(owner, "what Buffer sampled", [*LESS, "index"])
    assert fate_of(H, [*LESS, "index"]) == (
        "Collector had it, and what Buffer stores was not given it: it was dropped in between."
    )


def test_stages_inside_of_each_other_are_both_named():
    owner = Owner()
    note_stage(owner, "what Buffer sampled", FULL)
    note_stage(owner, "transform 1 of Compose", FULL, LESS)
    note_stage(owner, "the transform of Buffer", FULL, LESS)
    assert fate_of(H, LESS) == "Transform 1 of Compose and the transform of Buffer dropped it."


def test_the_pipeline_that_the_batch_came_through_is_blamed():
    kept, dropping = Owner(), Owner()
    note_stage(dropping, "the transform of Dropping", FULL, LESS)
    note_stage(kept, "Collector", [*FULL, "value"])
    assert fate_of(H, LESS) == "The transform of Dropping dropped it."
    assert fate_of(H, [*LESS, "value"]) == "Collector had it: what came behind dropped it."


def test_an_earlier_pipeline_alike_is_not_blamed():
    earlier, later = Owner(), Owner()
    note_stage(earlier, "the transform of Earlier", FULL, LESS)
    note_stage(later, "Collector", FULL)
    note_stage(later, "what Buffer stores", LESS)
    assert fate_of(H, LESS).startswith("Collector had it, and what Buffer stores")


def test_nothing_is_said_of_a_batch_unlike_all_stages():
    owner = Owner()
    note_stage(owner, "the transform of Buffer", FULL, LESS)
    assert fate_of(H, ["pixels", "label", "done"]) == ""
    assert fate_of(H, []) == ""


def test_a_promise_is_no_possession():
    owner = Owner()
    note_stage(owner, "InitTracker (its observation spec)", LESS, FULL, promised=True)
    assert fate_of(H, LESS) == ""
    note_stage(owner, "Drop (its observation spec)", FULL, LESS, promised=True)
    assert fate_of(H, LESS) == "Drop (its observation spec) dropped it."


def test_it_is_forgotten_with_its_owner():
    owner = Owner()
    note_stage(owner, "the transform of Buffer", FULL, LESS)
    forget_stage(owner)
    assert fate_of(H, LESS) == ""
    note_stage(owner, "the transform of Buffer", FULL, LESS)
    del owner
    gc.collect()
    assert fate_of(H, LESS) == ""


def test_an_owner_without_weak_references_is_left_out():
    note_stage(3, "the transform of a number", FULL, LESS)
    assert fate_of(H, LESS) == ""


def test_functions_in_a_row_are_noted_each():
    owner = Owner()
    td = TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}, "d": torch.zeros(2)}, batch_size=[2])
    out = through(owner, [("first", lambda x: x.exclude(("b", "c"))), ("second", lambda x: x.exclude("d"))], td)
    assert keys_in(out) == ["a"]
    assert fate_of(("b", "c"), ["a"]) == "First dropped it."
    assert fate_of("d", ["a"]) == "Second dropped it."


@pytest.mark.parametrize("entries", [None, 3, [1, 2], "text"])
def test_what_has_no_keys_has_none(entries):
    assert keys_in(entries) == []


def test_the_error_about_a_missing_key_says_it_in_place_of_a_guess():
    owner = Owner()
    td = TensorDict({"h_old": torch.zeros(2), "action": torch.zeros(2)}, batch_size=[2])
    reads = Contract(reads=(Key("h", remedy="Keep it."),))
    with pytest.raises(ContractError, match=r"reads 'h'.*Keep it"):
        reads.read(td, "Loss")
    note_stage(owner, "the postproc of Collector (cut)", ["h", "h_old", "action"], ["h_old", "action"])
    with pytest.raises(ContractError) as caught:
        reads.read(td, "Loss")
    assert "The postproc of Collector (cut) dropped it. Keep it." in str(caught.value)
    assert "Did you mean" not in str(caught.value)
