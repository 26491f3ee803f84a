"""`rl.core.backends`: which implementation is selected, why, and what is reported about an absent one."""

import warnings

import pytest
import torch

from rl.core import backends, hookimpl
from rl.core.backends import NATIVE, Accelerator, missing_native, report_missing, select, warn_slow
from rl.core.errors import BackendError, BrokenPluginWarning, SlowBackendWarning
from rl.core.registry import Registry
from rl.testing import ToyPriorityTree

CUDA = Accelerator("rl-prio-cuda", "pip install rl-prio-cuda", "cuda")


class Trees:
    def __init__(self, name=None, why="", failure=None, notes=()):
        self.name, self.why, self.failure, self.notes = name, why, failure, list(notes)

    @hookimpl
    def rl_priority_tree(self, capacity, device, dtype):
        if self.failure:
            raise self.failure
        if self.name is None:
            return None
        tree = ToyPriorityTree(capacity, dtype=dtype)
        tree.name, tree.why = self.name, self.why
        return tree

    @hookimpl
    def rl_notes(self):
        return self.notes


@pytest.fixture
def installed(monkeypatch):
    made = Registry()
    monkeypatch.setattr(backends.registry, "default", lambda: made)
    monkeypatch.setattr(backends, "_warned", set())
    made.register(Trees("torch"), "replay", "rl-replay")
    return made


def ask(name="auto", device="cpu"):
    arguments = {"capacity": 2, "device": torch.device(device), "dtype": torch.float32}
    known = {"native": NATIVE, "cuda": CUDA}
    return select(
        "Sampler", "rl_priority_tree", arguments, where=device, fallback="rl-replay", name=name, accelerators=known
    )


def test_the_first_answer_or_the_named_one_is_selected_and_why(installed):
    installed.register(Trees("avx", "compiled"), "native", "rl-native")
    assert str(ask()[1]) == "avx of rl-native: the first that answers for cpu (compiled)"
    assert str(ask("native")[1]) == "avx of rl-native: asked for by name (compiled)"
    assert ask("torch")[0].name == "torch"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("native", "rl-native is not installed: `pip install rl-native`"),
        ("cuda", "it needs a device of type 'cuda'; rl-prio-cuda is not installed"),
        ("typo", r"known here: auto, torch\); `rl doctor`"),
    ],
)
def test_an_absent_one_is_an_error_with_the_remedy(installed, name, what):
    with pytest.raises(BackendError, match=f"Sampler: back end '{name}' does not answer for cpu .*{what}"):
        ask(name)


def test_an_installed_one_that_passes_gives_its_reasons(installed):
    installed.register(Trees(notes=["there is no library: build it"]), "native", "rl-native")
    with pytest.raises(BackendError, match=r"installed but does not answer: there is no library: build it$"):
        ask("native")


def test_without_any_answer_the_error_repeats_what_failed(monkeypatch):
    made = Registry()
    made.register(Trees(failure=OSError("libfast.so")), "crashes")
    monkeypatch.setattr(backends.registry, "default", lambda: made)
    with (
        pytest.warns(BrokenPluginWarning),
        pytest.raises(BackendError, match=r"crashes: .*libfast.so.*rl-replay does: is it installed"),
    ):
        ask()


def test_a_slower_choice_is_reported_once_where_the_user_called(installed):
    with pytest.warns(SlowBackendWarning, match="slow") as caught:
        warn_slow("slow")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_slow("slow")


@pytest.mark.parametrize(
    "report", [lambda: missing_native("Sampler", "rl_priority_tree"), lambda: report_missing("a", "b")]
)
def test_what_is_required_is_not_replaced(installed, monkeypatch, report):
    monkeypatch.setenv("RL_NATIVE", "require")
    with pytest.raises(BackendError, match="RL_NATIVE"):
        report()
    monkeypatch.setenv("RL_NATIVE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert report() in (None, "RL_NATIVE=off")
