"""Which priority tree a sampler takes, what it says about it, and what it says where there is none."""

import resource
import warnings
from pathlib import Path

import pytest
import torch

from rl.core import backends as _backend
from rl.core import registry
from rl.core.errors import ArgumentError, BackendError, BrokenPluginWarning, SlowBackendWarning
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry
from rl.core.settings import Settings
from rl.plugins import replay as plugin
from rl.replay import PrioritizedSampler

# the pages of a large array stay untouched: one array is compared with a second
from rl.replay._priorities import large_zeros
from rl.testing import ToyPriorityTree


class Trees:
    """A plugin that offers one tree before the others."""

    def __init__(self, tree):
        self.tree = tree

    @hookimpl
    def rl_priority_tree(self, capacity, device, dtype):
        return self.tree(capacity, device, dtype) if self.tree else None


class Named(ToyPriorityTree):
    name, why = "native", "compiled"


def use(monkeypatch, tree, distribution="acme", native="auto"):
    """Let `auto` find `tree`; of the installed plugins only rl-replay's is there."""
    own = Registry()
    own.register(plugin, "replay", "rl-replay")
    own.register(Trees(tree), "trees", distribution)
    monkeypatch.setattr(registry, "default", lambda: own)
    monkeypatch.setattr(_backend, "_warned", set())
    monkeypatch.setattr(_backend, "settings", lambda: Settings(plugins_disable=(), native=native, debug=False))


def test_auto_takes_the_first_that_answers_and_says_so(monkeypatch):
    use(monkeypatch, Named, "rl-native")
    backend = PrioritizedSampler(4, 0.6, 0.4).backend
    assert (backend.name, backend.distribution) == ("native", "rl-native")
    assert str(backend) == "native of rl-native: the first that answers for cpu and torch.float32 (compiled)"
    assert PrioritizedSampler(4, 0.6, 0.4, backend="native").backend.why.startswith("asked for by name")
    torch_tree = PrioritizedSampler(4, 0.6, 0.4, backend="torch")
    assert torch_tree.backend.name == "torch"
    assert type(torch_tree._tree) is type(plugin.rl_priority_tree(4, torch.device("cpu"), torch.float32))


@pytest.mark.parametrize(
    ("distribution", "word"), [("acme", r'pip install "rl-replay\[native\]"'), ("rl-native", "rl doctor")]
)
def test_auto_that_falls_to_torch_warns_once(monkeypatch, distribution, word):
    use(monkeypatch, None, distribution)
    with pytest.warns(SlowBackendWarning, match=word) as caught:
        sampler = PrioritizedSampler(4, 0.6, 0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrioritizedSampler(4, 0.6, 0.4)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert sampler.backend.name == "torch"
    assert "rl-native is" in sampler.backend.why


def test_nothing_is_said_where_torch_was_asked_for(monkeypatch):
    use(monkeypatch, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrioritizedSampler(4, 0.6, 0.4, backend="torch")
        use(monkeypatch, None, native="off")
        assert "RL_NATIVE=off" in PrioritizedSampler(4, 0.6, 0.4).backend.why
    use(monkeypatch, None, native="require")
    with pytest.raises(BackendError, match="RL_NATIVE=require"):
        PrioritizedSampler(4, 0.6, 0.4)


@pytest.mark.parametrize(
    ("backend", "word"),
    [("native", r'pip install "rl-replay\[native\]"'), ("cuda", "rl-prio-cuda"), ("typo", "known here: auto, torch")],
)
def test_an_absent_backend_is_an_error_with_the_remedy(monkeypatch, backend, word):
    use(monkeypatch, None)
    with pytest.raises(BackendError, match=word):
        PrioritizedSampler(4, 0.6, 0.4, backend=backend, device="cpu")


class Noted(Trees):
    """A plugin that says why it does not answer."""

    @hookimpl
    def rl_notes(self):
        return ["there is no library: build it"]


class Crashes(Trees):
    @hookimpl
    def rl_priority_tree(self, capacity, device, dtype):
        raise MemoryError("cannot take 51 TB\nin this\nmachine")


def _of_rl_native(monkeypatch, kind):
    use(monkeypatch, None)
    registry.default().register(kind(None), "native", "rl-native")


def test_an_installed_backend_that_does_not_answer_is_not_to_be_installed(monkeypatch):
    _of_rl_native(monkeypatch, Noted)
    with pytest.raises(
        BackendError,
        match=r"known here: auto, torch\); rl-native is installed but does not answer: there is no library: build it$",
    ):
        PrioritizedSampler(4, 0.6, 0.4, backend="native")
    with pytest.warns(SlowBackendWarning, match="does not answer: there is no library: build it"):
        PrioritizedSampler(4, 0.6, 0.4)
    with pytest.raises(BackendError, match="it needs a device of type 'cpu'"):
        PrioritizedSampler(4, 0.6, 0.4, backend="native", device="meta")


def test_the_cause_of_a_backend_that_failed_is_said_in_one_line(monkeypatch):
    _of_rl_native(monkeypatch, Crashes)
    with (
        pytest.warns(BrokenPluginWarning, match="cannot take 51 TB") as caught,
        pytest.raises(BackendError, match=r"raised MemoryError: cannot take 51 TB \[\.\.\.\]$"),
    ):
        PrioritizedSampler(4, 0.6, 0.4, backend="native")
    assert "\n" not in str(caught[0].message)


@pytest.mark.parametrize("backend", ["auto", "torch", "native"])
def test_more_rows_than_memory_holds_are_refused_with_what_they_take(backend):
    if backend == "native":
        pytest.importorskip("rl.native")
    with pytest.raises(ArgumentError, match=r"memory|TB"):
        PrioritizedSampler(2**46, 0.6, 0.4, backend=backend)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("device", ["cuda:77", "mps:3"])
def test_a_device_that_is_not_there(backend, device, recwarn):
    with pytest.raises(BackendError, match=f"device {device}: .*device='cpu'$"):
        PrioritizedSampler(10, 0.6, 0.4, backend=backend, device=device)
    assert not recwarn.list


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_by_name_without_a_cuda_device_says_what_it_needs():
    with pytest.raises(BackendError, match=r"'cuda' needs a cuda device.*`pip install rl-prio-cuda`.*backend='auto'"):
        PrioritizedSampler(10, 0.6, 0.4, backend="cuda")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_rows_that_are_not_written_take_no_memory(backend):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    sampler = PrioritizedSampler(2**26, 0.6, 0.4, backend=backend)
    sampler.extended(torch.arange(1000), None)
    sampler.update_priority([0, 999], [3.0, 4.0])
    assert resident() - before < 2**26  # all would be more than 2**29


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [5, 2**18, 2**20 + 3])
def test_raw_priorities_begin_as_zeros_of_their_own(rows, dtype):
    one, other = (large_zeros(rows, dtype, torch.device("cpu")) for _ in range(2))
    assert one.shape == (rows,)
    assert one.dtype == dtype
    assert one.untyped_storage().nbytes() == rows * dtype.itemsize
    one.fill_(1)
    assert not other.any()
