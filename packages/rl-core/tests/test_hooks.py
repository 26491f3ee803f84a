"""Hooks: order of calls, the meaning of None, and answers that fail."""

import inspect

import pytest
import torch

from rl.core import hookspecs
from rl.core.component import Command
from rl.core.errors import BackendError, BrokenPluginWarning
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.testing import (
    ToyPriorityTree,
    ToyRecurrentBackend,
    ToyRowGather,
    toy_linear_recurrence,
)

CPU, META = torch.device("cpu"), torch.device("meta")


class Fallback:
    """Answers for everything, last."""

    @hookimpl(trylast=True)
    def rl_priority_tree(self, capacity, device, dtype):
        return ToyPriorityTree(capacity, device, dtype)

    @hookimpl(trylast=True)
    def rl_linear_recurrence(self):
        return toy_linear_recurrence

    @hookimpl(trylast=True)
    def rl_row_gather(self, tensors):
        return ToyRowGather(tensors)

    @hookimpl(trylast=True)
    def rl_recurrent_backend(self, cell, name, device):
        return ToyRecurrentBackend() if name in (None, "toy") else None


class FastTree(ToyPriorityTree):
    pass


class Accelerator:
    """Answers for one device only."""

    @hookimpl
    def rl_priority_tree(self, capacity, device, dtype):
        return FastTree(capacity, "cpu", dtype) if device.type == "meta" else None

    @hookimpl
    def rl_recurrent_backend(self, cell, name):
        return ToyRecurrentBackend("fast") if name == "fast" and cell == "gru" else None


def registry(*plugins: object) -> Registry:
    made = Registry()
    for plugin in plugins:
        made.register(plugin, type(plugin).__name__.lower())
    return made


def tree(found: Registry, capacity: int, device: torch.device, dtype: torch.dtype):
    return found.answer("rl_priority_tree", capacity=capacity, device=device, dtype=dtype).value


@pytest.mark.parametrize("plugins", [(Fallback(), Accelerator()), (Accelerator(), Fallback())], ids=["a", "b"])
def test_an_accelerator_answers_for_its_device_and_the_fallback_for_the_rest(plugins):
    found = registry(*plugins)
    assert type(tree(found, 4, META, torch.float32)) is FastTree
    slow = tree(found, 4, CPU, torch.float64)
    assert type(slow) is ToyPriorityTree
    assert (slow.capacity, slow.dtype) == (4, torch.float64)
    for name, selected in (("fast", "fast"), (None, "toy")):
        assert found.answer("rl_recurrent_backend", cell="gru", name=name, device=CPU).value.name == selected


def test_an_answer_says_who_gave_it_and_who_passed():
    found = registry(Fallback(), Accelerator()).answer("rl_priority_tree", capacity=2, device=CPU, dtype=torch.float32)
    assert found.plugin.name == "fallback"
    assert found.passed == ("this program:accelerator",)


class Crashes:
    @hookimpl
    def rl_priority_tree(self):
        raise OSError("libfast.so: cannot open\nsixty more\nlines")

    @hookimpl
    def rl_commands(self):
        raise SystemExit(3)


def test_a_plugin_that_raises_is_named_and_the_next_one_is_called():
    found = registry(Fallback(), Crashes())
    with pytest.warns(
        BrokenPluginWarning, match=r"crashes.*rl_priority_tree raised OSError: libfast.so.*DISABLE=crashes"
    ):
        slow = tree(found, 2, CPU, torch.float32)
    assert type(slow) is ToyPriorityTree
    tree(found, 2, CPU, torch.float32)  # the warning came once
    (problem,) = next(r for r in found.plugins if r.name == "crashes").problems
    assert problem.endswith("libfast.so: cannot open [...]")


ASKED = {
    "rl_priority_tree": {"capacity": 2, "device": CPU, "dtype": torch.float32},
    "rl_linear_recurrence": {"device": CPU, "dtype": torch.float32},
    "rl_row_gather": {"tensors": []},
    "rl_recurrent_backend": {"cell": "gru", "name": None, "device": CPU},
    "rl_notes": {},
}


@pytest.mark.parametrize(
    ("hook", "wrong", "said"),
    [
        pytest.param("rl_priority_tree", "a tree", "'a tree', which lacks update, sample, get, total, min", id="tree"),
        pytest.param("rl_linear_recurrence", "scan", "'scan', which lacks __call__ of", id="scan"),
        pytest.param("rl_row_gather", [], r"\[\], which lacks rows, runs of rl.core.interfaces.RowGather", id="rows"),
        pytest.param("rl_recurrent_backend", ToyRecurrentBackend.__call__, "which lacks name of", id="unnamed"),
        pytest.param("rl_notes", 3, "3, which is no str", id="notes"),
    ],
)
def test_a_wrong_answer_is_named_and_the_next_one_is_called(hook, wrong, said):
    class Wrong:
        pass

    setattr(Wrong, hook, staticmethod(hookimpl(lambda: wrong)))
    found = registry(Fallback(), Wrong())
    with pytest.warns(BrokenPluginWarning, match=f"this program:wrong: {hook} returned .*{said}.*Upgrade this program"):
        answers = found.answers(hook, **ASKED[hook])
    assert [answer.plugin.name for answer in answers] == ["fallback"] * (hook != "rl_notes")
    (problem,) = found.plugins[1].problems
    assert problem.startswith(f"{hook} returned")


def test_an_interrupt_names_the_plugin_whose_hook_was_running():
    class Interrupted:
        @hookimpl
        def rl_linear_recurrence(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as seen:
        registry(Interrupted()).answer("rl_linear_recurrence", device=CPU, dtype=torch.float32)
    assert seen.value.__notes__[0].startswith("while calling rl_linear_recurrence of plugin this program:interrupted;")


def test_a_refusal_on_purpose_reaches_the_caller():
    class Refuses:
        @hookimpl
        def rl_recurrent_backend(self, name):
            if name == "fast":
                raise BackendError("fast needs a GPU with 8 arms")

    with pytest.raises(BackendError, match="8 arms"):
        registry(Fallback(), Refuses()).answer("rl_recurrent_backend", cell="gru", name="fast", device=CPU)


def test_tryfirst_comes_before_those_without_a_mark_and_later_ones_before_earlier():
    def plugin(name, **options):
        class Plugin:
            @hookimpl(**options)
            def rl_linear_recurrence(self):
                asked.append(name)

        Plugin.__name__ = name
        return Plugin()

    asked = []
    found = registry(plugin("last", trylast=True), plugin("a"), plugin("first", tryfirst=True), plugin("b"))
    assert found.answer("rl_linear_recurrence", device=CPU, dtype=torch.float32) is None
    assert asked == ["first", "b", "a", "last"]


class Commands:
    def __init__(self, *names, target="json:loads"):
        self.names, self.target = names, target

    @hookimpl
    def rl_commands(self, registry):
        assert isinstance(registry, Registry)
        return [Command(name, self.target) for name in self.names]


def test_commands_come_from_all_plugins_and_failures_are_isolated():
    found = Registry()
    found.register(Commands("train", "eval"), "one")
    found.register(Crashes(), "crashes")
    found.register(Commands("play"), "two")
    with pytest.warns(BrokenPluginWarning, match="rl_commands raised SystemExit"):
        commands = found.commands()
    assert sorted(commands) == ["eval", "play", "train"]
    assert commands["play"][1].name == "two"


def test_one_command_may_be_given_without_a_list():
    class Single:
        @hookimpl
        def rl_commands(self):
            return Command("solo", "json:loads")

    assert list(registry(Single()).commands()) == ["solo"]


def test_what_is_no_command_is_named():
    class Wrong:
        @hookimpl
        def rl_commands(self):
            yield "train"

    with pytest.warns(BrokenPluginWarning, match="rl_commands returned 'train', which is no Command"):
        assert registry(Wrong()).commands() == {}


def test_of_two_commands_with_one_name_the_first_plugins_is_taken():
    found = Registry()
    found.register(Commands("train", target="json:loads"), "one")
    found.register(Commands("train", target="json:dumps"), "two")
    with pytest.warns(BrokenPluginWarning, match=r"two: .*'train' is already offered by this program:one"):
        commands = found.commands()
    assert commands["train"][0].target == "json:loads"


def test_every_hook_is_documented():
    for name in hookspecs.__all__:
        if name.startswith("rl_"):
            text = inspect.getdoc(getattr(hookspecs, name))
            assert "Called" in text, f"{name} does not say who calls it"
            for argument in inspect.signature(getattr(hookspecs, name)).parameters:
                assert f"{argument}:" in text, f"{name} does not explain {argument}"
