"""Who had a key last and who dropped it, as errors say it."""

import gc
import threading
import time

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

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
    monkeypatch.setattr("rl.core._stages._stages", {})


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
    owner, composition = Owner(), Owner()
    note_stage(owner, "what Buffer sampled", FULL)
    note_stage(composition, "transform 1 of Compose", FULL, LESS)
    note_stage(composition, "transform 2 of Compose", LESS, LESS)
    note_stage(owner, "the transform of Buffer", FULL, LESS)
    assert fate_of(H, LESS) == "Transform 1 of Compose and the transform of Buffer dropped it."


def test_the_pipeline_that_the_batch_came_through_is_blamed():
    kept, dropping = Owner(), Owner()
    note_stage(dropping, "the transform of Dropping", FULL, LESS)
    note_stage(kept, "Collector", [*FULL, "value"])
    assert fate_of(H, LESS) == "The transform of Dropping dropped it."
    assert fate_of(H, [*LESS, "value"]) == "Collector had it: what came behind dropped it."


def test_an_earlier_pipeline_alike_is_not_blamed():
    earlier, later, buffer = Owner(), Owner(), Owner()
    note_stage(earlier, "the transform of Earlier", FULL, LESS)
    note_stage(later, "Collector", FULL, behind=[])
    note_stage(buffer, "what Buffer stores", LESS)
    said = "Collector had it, and what Buffer stores was not given it: it was dropped in between."
    assert fate_of(H, LESS).startswith(said)
    note_stage(buffer, "what Buffer sampled", [*LESS, "index"])
    assert fate_of(H, [*LESS, "index"]) == said


def test_what_is_stored_comes_from_the_collector_that_has_its_keys():
    one, other, evaluation, buffer = Owner(), Owner(), Owner(), Owner()
    note_stage(one, "the One", [*FULL, "value"], behind=[])
    note_stage(evaluation, "Evaluation", FULL, behind=[])
    note_stage(evaluation, "the postproc of Evaluation", FULL, LESS)
    note_stage(other, "the Other", FULL, behind=[])
    note_stage(buffer, "what Buffer stores", [*LESS, "value", "advantage"])
    note_stage(buffer, "what Buffer sampled", [*LESS, "value", "advantage", "index"])
    assert fate_of(H, [*LESS, "value", "advantage", "index"]).startswith("The One had it, and what Buffer stores")
    second = Owner()
    note_stage(second, "what Second stores", [*LESS, "advantage", "index"])
    assert fate_of(H, [*LESS, "advantage", "index"]).startswith("The Other had it, and what Second stores")


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


def test_a_source_is_not_said_to_have_been_given_anything_by_what_was_noted_before():
    earlier, env, later = Owner(), Owner(), Owner()
    note_stage(earlier, "what Buffer stores", [*FULL, "advantage"])
    note_stage(env, "transform 0 of TransformedEnv", ["observation", "reward", "done", "is_init"])
    note_stage(later, "Collector", FULL, behind=[env])
    assert fate_of("advantage", FULL) == ""


def test_a_buffer_beside_another_is_not_said_to_have_been_given_what_that_one_stores():
    collector, one, other = Owner(), Owner(), Owner()
    note_stage(collector, "Collector", FULL, behind=[])
    note_stage(one, "what One stores", [*FULL, "advantage"])
    note_stage(one, "what One sampled", [*FULL, "advantage", "index"])
    note_stage(other, "what Other stores", FULL)
    note_stage(other, "what Other sampled", [*FULL, "index"])
    assert fate_of("advantage", [*FULL, "index"]) == ""


def test_entries_of_an_environment_are_found_behind_a_collector_and_in_rollouts():
    class Env:
        def __init__(self, base_env=None, envs=()):
            self.base_env, self.envs = base_env, envs

    inner, stranger = Env(), Env()
    env = Env(Env(envs=[inner]))
    flat = ["observation", "reward", "done", "is_init"]
    note_stage(inner, "transform 1 of TransformedEnv, Drop,", flat, flat[:-1])
    batch = ["observation", "done", "action", ("next", "observation"), ("next", "reward"), ("next", "done")]
    said = "Transform 1 of TransformedEnv, Drop, dropped it."
    assert fate_of("is_init", batch) == fate_of(("next", "is_init"), batch) == said
    note_stage(stranger, "transform 0 of TransformedEnv, Other,", flat, flat[1:])
    collector = Owner()
    note_stage(collector, "Collector", [*batch, "extra"], behind=[env])
    assert fate_of("is_init", [*batch, "extra"]) == fate_of(("next", "is_init"), [*batch, "extra"]) == said


def test_a_reward_that_is_under_next_was_not_dropped_from_the_root():
    env, collector = Owner(), Owner()
    note_stage(env, "transform 0 of TransformedEnv, Scale,", ["observation", "reward", "done"])
    batch = ["observation", "done", ("next", "observation"), ("next", "reward"), ("next", "done")]
    note_stage(collector, "Collector", batch, behind=[env])
    assert fate_of("reward", batch) == fate_of("reward", batch[:-1]) == ""
    less = [key for key in batch if key != ("next", "reward")]
    assert fate_of(("next", "reward"), less) == "Collector had it: what came behind dropped it."


def test_only_what_belongs_to_the_source_is_named_where_it_is_known():
    mine, other = Owner(), Owner()
    note_stage(other, "the transform of Other", FULL, LESS)
    assert fate_of(H, LESS, within=[mine]) == fate_of(H, LESS, within=[]) == ""
    note_stage(mine, "my transform", FULL, LESS)
    assert fate_of(H, ["observation"], within=[mine]) == "My transform dropped it."


def test_pipelines_alike_are_both_named():
    one, other, third = Owner(), Owner(), Owner()
    note_stage(other, "Collector", LESS, behind=[])
    note_stage(one, "the transform of One", FULL, LESS)
    said = fate_of(H, LESS)
    assert said.startswith("The transform of One dropped it. Another pipeline is alike: ")
    assert said.endswith("nobody had it.")
    note_stage(third, "the postproc of Third", FULL, LESS)
    assert fate_of(H, LESS).startswith("The postproc of Third dropped it. Another")
    assert "the transform of One dropped it." in fate_of(H, LESS)


def test_a_function_that_kept_a_key_of_its_first_batch_may_still_have_dropped_it():
    owner = Owner()
    note_stage(owner, "Collector", FULL)
    note_stage(owner, "the postproc of Collector (f)", FULL, FULL)
    said = fate_of(H, LESS)
    assert (
        said == "The postproc of Collector (f) gave it on in its first batch: it dropped it later, or what came behind."
    )


def test_many_owners_are_noted_and_forgotten_in_the_time_of_few():
    def seconds(count):
        start = time.thread_time()
        owners = [Owner() for _ in range(count)]
        for owner in owners:
            forget_stage(owner)
            for name in "abcdefghij":
                note_stage(owner, name, FULL)
        del owner, owners
        return (time.thread_time() - start) / count

    assert min(seconds(2000) for _ in range(3)) < 4 * min(seconds(100) for _ in range(3))


def test_names_of_any_kind_of_entries():
    td = TensorDict({"a": torch.zeros(2)}, batch_size=[2])
    td["text"] = NonTensorStack("x", "y")
    assert keys_in(td) == ["a", "text"]

    class Row:
        batch_size = 3

        def keys(self):
            return ["a"]

    assert keys_in(Row()) == []
    assert keys_in({0: 1, "a": 2, ("b", "c"): 3, ("d", 4): 5, (): 6}) == ["a", ("b", "c")]


def test_noted_while_others_ask_and_die():
    failures = []

    def work():
        try:
            for _ in range(100):
                owner = Owner()
                note_stage(owner, "the transform of Buffer", FULL, LESS)
                assert fate_of(H, LESS) != ""
        except Exception as error:  # noqa: BLE001  whatever it is
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not failures
    assert fate_of(H, LESS) == ""


def test_collectors_alike_are_both_named():
    one, other = Owner(), Owner()
    note_stage(one, "the Collector", FULL, behind=[])
    note_stage(one, "the postproc of Collector", FULL, LESS)
    note_stage(other, "Collector", LESS, behind=[])
    note_stage(other, "the postproc of Collector", LESS, LESS)
    expected = (
        "In a pipeline with these keys the postproc of Collector dropped it; in one that was noted later nobody had it."
    )
    assert fate_of(H, LESS) == expected


def test_an_environment_beside_another_is_not_accused_for_certain():
    dropping, plain = Owner(), Owner()
    flat = ["observation", "reward", "done"]
    note_stage(dropping, "transform 1 of TransformedEnv, Drop,", [*flat, "is_init"], flat, behind=[])
    through(plain, [("transform 0 of TransformedEnv, Scale,", lambda td: td)], dict.fromkeys(flat), behind=[])
    said = fate_of("is_init", flat)
    assert said == (
        "In a pipeline with these keys transform 1 of TransformedEnv, Drop, dropped it; in one that was noted later"
        " nobody had it."
    )


def test_a_pipeline_that_kept_the_key_is_named_beside_the_one_that_dropped_it():
    keeping, dropping, unlike = Owner(), Owner(), Owner()
    note_stage(keeping, "what Keeping sampled", FULL)
    note_stage(dropping, "what Dropping sampled", FULL)
    note_stage(dropping, "the transform of Dropping", FULL, LESS)
    note_stage(unlike, "Collector", [*FULL[:-1], "pixels"], behind=[])
    assert fate_of(H, LESS) == (
        "The transform of Dropping dropped it. Another pipeline is alike: if the batch came from there, what Keeping"
        " sampled had it: what came behind dropped it."
    )


def test_environments_of_any_kind_may_be_behind():
    class Slots:
        __slots__ = ()

    class Odd:
        def __init__(self):
            self.base_env, self.envs = self, 4

    owner = Owner()
    note_stage(owner, "Collector", FULL, behind=[Slots(), Odd(), 3])
    assert fate_of(H, LESS) == "Collector had it: what came behind dropped it."
    assert fate_of(H, LESS, within=[Slots(), Odd(), None]) == ""
