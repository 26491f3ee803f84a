"""Public names, hooks, ``rl doctor``, and behaviour without library or driver."""

import subprocess
import sys
import warnings
from importlib import import_module

import pytest
import torch

import rl.prio_cuda
from rl.core import backends
from rl.core.doctor import examine
from rl.core.errors import ArgumentError, BackendError, RLError, SlowBackendWarning
from rl.plugins import prio_cuda as plugin

# a library and devices are pretended, or hidden, below the class
from rl.prio_cuda import CudaPriorityTree, _calls, _library, _tree
from rl.prio_cuda._build import COMMAND

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("name", rl.prio_cuda.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.prio_cuda, name) is not None
    assert name in dir(rl.prio_cuda)


@pytest.mark.parametrize("component", list(plugin.rl_components()), ids=lambda c: f"{c.kind}-{c.name}")
def test_every_component_resolves(component):
    module, _, attribute = component.target.partition(":")
    assert isinstance(getattr(import_module(module), attribute), type)


def test_importing_the_root_and_the_plugin_imports_nothing_heavy():
    code = (
        "import sys, rl.prio_cuda, rl.plugins.prio_cuda as p; list(p.rl_components()); p.rl_notes();"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.fixture
def pretend(monkeypatch):
    """A torch that sees a GPU, and trees that say what they were asked for."""

    class Asked:
        name = "cuda"

        def __init__(self, capacity, **options):
            self.capacity, self.options, self.kind = capacity, options, type(self).__name__

    backends._warned.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(_tree, "CudaPriorityTree", type("Cuda", (Asked,), {}))
    yield monkeypatch
    backends._warned.clear()


def _library_is(monkeypatch, reason):
    monkeypatch.setattr(_tree, "library", lambda: None if reason else object())
    monkeypatch.setattr(_tree, "why_not", lambda index=None: reason)


def test_the_hook_gives_none_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert plugin.rl_priority_tree(10, torch.device("cpu"), torch.float32) is None
    assert plugin.rl_priority_tree(10, CUDA, torch.float32) is None


def test_the_hook_is_for_cuda_only(pretend):
    _library_is(pretend, "")
    tree = plugin.rl_priority_tree(10, CUDA, torch.float64)
    assert (tree.kind, tree.capacity) == ("Cuda", 10)
    assert tree.options == {"dtype": torch.float64, "device": CUDA}
    assert plugin.rl_priority_tree(10, torch.device("cpu"), torch.float32) is None
    assert plugin.rl_priority_tree(10, CUDA, torch.float16) is None


def test_a_library_without_code_for_the_device_gives_none(pretend):
    pretend.setattr(_tree, "library", object)
    pretend.setattr(_tree, "why_not", lambda index=None: "" if index is None else f"built for others than {index}")
    with pytest.warns(SlowBackendWarning, match="others than 0"):
        assert plugin.rl_priority_tree(10, CUDA, torch.float32) is None


def test_required_but_not_for_this_device_is_an_error(pretend):
    pretend.setenv("RL_NATIVE", "require")
    pretend.setattr(_tree, "library", object)
    pretend.setattr(_tree, "why_not", lambda index=None: "" if index is None else f"built for others than {index}")
    with pytest.raises(RLError, match="RL_NATIVE is require, but built for others than 0"):
        plugin.rl_priority_tree(10, CUDA, torch.float32)


def test_without_the_library_the_hook_warns_once(absent, pretend):
    with pytest.warns(SlowBackendWarning, match=rf"`{COMMAND}`\. Plain torch is used instead"):
        assert plugin.rl_priority_tree(10, CUDA, torch.float32) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugin.rl_priority_tree(10, CUDA, torch.float32) is None


def test_off_gives_none_without_a_warning(pretend):
    pretend.setenv("RL_NATIVE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugin.rl_priority_tree(10, CUDA, torch.float32) is None
    assert "RL_NATIVE=off" in plugin.rl_notes()[0]


def test_the_note_names_library_driver_and_devices(pretend):
    pretend.setattr(_library, "why_not", lambda: "")
    pretend.setattr(_library, "why", lambda: "compiled CUDA 13.0 for 80 90; the driver offers CUDA 13.0; 0: GPU (9.0)")
    assert plugin.rl_notes() == ["compiled CUDA 13.0 for 80 90; the driver offers CUDA 13.0; 0: GPU (9.0)"]


@pytest.fixture
def absent(monkeypatch, tmp_path):
    """A package whose library was not built."""
    # the cached library is unloaded
    from rl.prio_cuda._library import functions

    for cached in (_library._load, functions):
        cached.cache_clear()
    monkeypatch.setattr(_library, "LIBRARY", tmp_path / "none.so")
    yield monkeypatch
    for cached in (_library._load, functions):
        cached.cache_clear()


def test_without_the_library_the_class_names_the_remedy(absent):
    # the CPU takes the place of a GPU
    from rl.prio_cuda._library import PLATFORMS, Platform

    absent.setitem(PLATFORMS, "cpu", Platform(PLATFORMS["cuda"].functions, lambda _: 0, PLATFORMS["cuda"].guard))
    with pytest.raises(RLError, match="no compiled library") as raised:
        CudaPriorityTree(10, device="cpu")
    assert COMMAND in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_without_a_gpu_the_class_raises():
    with pytest.raises(BackendError, match=r"cuda.*torch sees no GPU.*native"):
        CudaPriorityTree(10)
    with pytest.raises(ArgumentError, match="CUDA device, not on mps"):
        CudaPriorityTree(10, device="mps")


@pytest.mark.parametrize("mode", ["auto", "require"])
def test_a_stale_library_is_not_called_and_reported(monkeypatch, tmp_path, pretend, mode):
    """A library of other sources is refused."""
    library = tmp_path / "rl_prio_cuda.so"
    library.write_bytes(b"")
    for name, value in (("LIBRARY", library), ("_stamp_of", lambda loaded: "of other sources")):
        pretend.setattr(_library, name, value)
    pretend.setattr(_library.ctypes, "CDLL", lambda path: object())
    pretend.setenv("RL_NATIVE", mode)
    _library._load.cache_clear()
    try:
        assert "compiled from other sources" in plugin.rl_notes()[0]
        assert COMMAND in plugin.rl_notes()[0]
        if mode == "require":
            with pytest.raises(RLError, match="compiled from other sources"):
                plugin.rl_priority_tree(10, CUDA, torch.float32)
            return
        with pytest.warns(SlowBackendWarning, match="compiled from other sources"):
            assert plugin.rl_priority_tree(10, CUDA, torch.float32) is None
    finally:
        _library._load.cache_clear()


def test_without_the_library_require_is_an_error(absent, pretend):
    pretend.setenv("RL_NATIVE", "require")
    with pytest.raises(RLError, match="RL_NATIVE is require"):
        plugin.rl_priority_tree(10, CUDA, torch.float32)


def test_doctor_reports_what_is_missing(absent):
    said = [finding for finding in examine() if finding.name == "rl-prio-cuda"]
    assert [finding.state for finding in said] == ["note"]
    assert COMMAND in said[0].value


def test_a_library_of_another_interface_is_refused(host_library, monkeypatch):
    monkeypatch.setattr(_library, "VERSION", 999)
    with pytest.raises(BackendError, match=r"interface 1.*999"):
        _library.declare(host_library)


def test_a_failed_launch_is_an_error(on_host, monkeypatch):
    tree = CudaPriorityTree(10, device="cpu")
    odd = torch.zeros(2, dtype=torch.uint8)[1:]
    with pytest.raises(BackendError, match="rl_prio_rebuild on cpu failed with CUDA error 1"):
        _calls.rebuild(odd, tree._work, 10, 32)
