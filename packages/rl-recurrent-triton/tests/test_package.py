"""Public names, hooks, ``rl doctor``, and behaviour without Triton, driver or GPU."""

import subprocess
import sys
import warnings
from importlib import import_module

import pytest
import torch

import rl.recurrent_triton
from rl.core import backends, registry
from rl.core.doctor import examine
from rl.core.errors import BackendError, RLError, SlowBackendWarning
from rl.plugins import recurrent_triton as plugin

# devices, drivers and Triton are pretended or hidden
from rl.recurrent_triton import _device, why_not

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
OURS = "back ends", "rl-recurrent-triton"
not_interpreted = pytest.mark.skipif(_device.is_interpreted(), reason="the interpreter answers on the CPU")


@pytest.mark.parametrize("name", rl.recurrent_triton.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.recurrent_triton, name) is not None
    assert name in dir(rl.recurrent_triton)


@pytest.mark.parametrize("component", list(plugin.rl_components()), ids=lambda c: f"{c.kind}-{c.name}")
def test_every_component_resolves(component):
    module, _, attribute = component.target.partition(":")
    assert isinstance(getattr(import_module(module), attribute), type)


def test_importing_the_root_and_the_plugin_imports_nothing_heavy():
    code = (
        "import sys, rl.recurrent_triton, rl.plugins.recurrent_triton as p; list(p.rl_components()); p.rl_notes();"
        "rl.recurrent_triton.why_not(); print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_back_end_is_imported_and_made_without_importing_triton_kernels():
    code = (
        "import sys; from rl.recurrent_triton import TritonBackend; print('rl.recurrent_triton._launch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


# ------------------------------------------------------------------ the hook


@pytest.fixture
def pretend(monkeypatch):
    """A torch that sees an H200, with Triton installed."""
    pytest.importorskip("triton")
    for cached in (_device.unfit,):
        cached.cache_clear()
    backends._warned.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Pretended GPU")
    monkeypatch.setattr(_device, "has_triton", lambda: True)
    yield monkeypatch
    _device.unfit.cache_clear()
    backends._warned.clear()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("name", [None, "triton"])
def test_on_cuda_it_is_selected_for_both_cells(pretend, cell, name):
    found = plugin.rl_recurrent_backend(cell, name, CUDA)
    assert (found.name, type(found).__name__) == ("triton", "TritonBackend")
    assert found.why.startswith("Triton ")


@pytest.mark.parametrize(("cell", "name"), [("lstm", "scan"), ("gru", "pad"), ("rnn", None)])
def test_other_names_and_cells_give_none(pretend, cell, name):
    assert plugin.rl_recurrent_backend(cell, name, CUDA) is None


def test_it_is_selected_before_other_back_ends(pretend):
    found = registry.default().answer("rl_recurrent_backend", cell="lstm", name=None, device=CUDA)
    assert (found.value.name, found.plugin.distribution) == ("triton", "rl-recurrent-triton")
    assert not found.passed


@not_interpreted
@pytest.mark.parametrize("name", [None, "triton"])
def test_on_a_cpu_it_is_never_selected(name):
    assert plugin.rl_recurrent_backend("lstm", name, CPU) is None


def test_without_a_gpu_it_warns_only_if_named(pretend):
    pretend.setattr(torch.cuda, "is_available", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugin.rl_recurrent_backend("lstm", None, CUDA) is None
    with pytest.raises(BackendError, match="'triton': torch sees no GPU here"):
        plugin.rl_recurrent_backend("lstm", "triton", CUDA)


def test_an_old_device_is_passed_over_with_one_warning(pretend):
    pretend.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    what = r"compute capability 8\.0 or newer, and cuda:0 is Pretended GPU \(7\.5\)"
    with pytest.warns(SlowBackendWarning, match=what):
        assert plugin.rl_recurrent_backend("gru", None, CUDA) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugin.rl_recurrent_backend("gru", None, CUDA) is None
    with pytest.raises(BackendError, match=what):
        plugin.rl_recurrent_backend("gru", "triton", CUDA)


def test_a_torch_for_other_gpus_is_passed_over(pretend):
    pretend.setattr(torch.version, "hip", "6.4")
    assert "NVIDIA" in why_not(CUDA)


def test_without_triton_the_warning_says_what_to_install(pretend):
    pretend.setattr(_device, "has_triton", lambda: False)
    with pytest.warns(SlowBackendWarning, match="needs Triton, which is not installed: `pip install triton`"):
        assert plugin.rl_recurrent_backend("lstm", None, CUDA) is None


def test_a_platform_without_wheels_of_triton_is_reported(monkeypatch):
    monkeypatch.setattr(_device, "has_triton", lambda: False)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "no wheels for darwin" in why_not()
    assert "pip" not in why_not()


def test_what_is_required_is_not_replaced(pretend):
    pretend.setenv("RL_NATIVE", "require")
    pretend.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    with pytest.raises(RLError, match="RL_NATIVE is require, but"):
        plugin.rl_recurrent_backend("lstm", None, CUDA)


def test_off_gives_none_and_by_name_an_error(pretend):
    pretend.setenv("RL_NATIVE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plugin.rl_recurrent_backend("lstm", None, CUDA) is None
    with pytest.raises(BackendError, match="RL_NATIVE=off; unset it"):
        plugin.rl_recurrent_backend("lstm", "triton", CUDA)


# ------------------------------------------------------------------ notes


def test_the_note_names_triton_and_the_devices(monkeypatch):
    monkeypatch.setattr(_device, "has_triton", lambda: True)
    monkeypatch.setattr(_device, "devices", lambda: [("Old", (7, 5)), ("New", (9, 0))])
    (note,) = plugin.rl_notes()
    assert note.startswith("Triton ")
    assert note.endswith("devices: Old (7.5); New (9.0)")


@pytest.mark.parametrize(
    ("devices", "what"),
    [
        (None, "no NVIDIA driver"),
        ([], "the driver shows none"),
        ([("Old", (7, 5))], r"capability 8\.0 or newer: Old \(7\.5\)"),
    ],
)
def test_the_note_names_what_is_missing(monkeypatch, devices, what):
    monkeypatch.setattr(_device, "has_triton", lambda: True)
    monkeypatch.setattr(_device, "devices", lambda: devices)
    (note,) = plugin.rl_notes()
    import re

    assert re.search(what, note)
    assert "Triton" in note


def test_the_doctor_reports_the_back_end():
    shown = [finding for finding in examine(quick=True) if (finding.section, finding.name) == OURS]
    assert len(shown) == 1


class FakeDriver:
    """Two devices, as the driver's interface in C gives them."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, handle, index):
        handle._obj.value = index

    def cuDeviceGetName(self, text, length, handle):
        text.value = f"GPU {handle.value}".encode()

    def cuDeviceGetAttribute(self, value, which, handle):
        value._obj.value = {75: 8, 76: 6}[which] + handle.value


def test_devices_are_read_from_the_driver(monkeypatch):
    monkeypatch.setattr(_device, "_load", FakeDriver)
    assert _device.devices() == [("GPU 0", (8, 6)), ("GPU 1", (9, 7))]


def test_a_driver_that_fails_shows_no_devices(monkeypatch):
    monkeypatch.setattr(FakeDriver, "cuInit", lambda *_: 100)
    monkeypatch.setattr(_device, "_load", FakeDriver)
    assert _device.devices() is None


# ------------------------------------------------------------------ modules


@not_interpreted
def test_a_module_on_a_cpu_names_the_required_device():
    modules = pytest.importorskip("rl.modules", reason="modules are of rl-modules")
    module = modules.LSTMModule(3, 4, in_key="observation", out_key="features", recurrent_backend="triton")
    needed = "does not answer for lstm on cpu .*needs a device of type 'cuda'"
    with pytest.raises(BackendError, match=needed):
        _ = module.backend
    auto = modules.LSTMModule(3, 4, in_key="observation", out_key="features")
    assert auto.backend.name != "triton"
