"""Loading the library, and why there is none, without a GPU: libraries and drivers are made up."""

import subprocess

import pytest

from rl.core.errors import RLError

# libraries and drivers are pretended that this machine does not have
from rl.prio_cuda import _build, _library


class Library:
    """What `_library` asks of a library."""

    def __init__(self, driver=13000, runtime=13000, devices=(("GPU", 9, 0),)):
        self.driver, self.runtime, self.devices = driver, runtime, devices

    def rl_prio_driver(self, driver, runtime):
        driver._obj.value, runtime._obj.value = self.driver, self.runtime
        return 0

    def rl_prio_device(self, index, major, minor, name, room):
        if index >= len(self.devices):
            return 101
        said, major._obj.value, minor._obj.value = self.devices[index]
        name.value = said.encode()[: room.value - 1]
        return 0

    class rl_prio_message:
        restype = None

        def __new__(cls, status):
            return f"CUDA error {status}".encode()


@pytest.fixture
def found(monkeypatch):
    """Pretend that this was loaded, and built for these architectures."""

    def pretend(library, architectures=("80", "90"), reason=""):
        monkeypatch.delenv("RL_NATIVE", raising=False)
        monkeypatch.setattr(_library, "_load", lambda: (library, reason))
        monkeypatch.setattr(_library, "record", lambda: {"architectures": list(architectures)})

    return pretend


def test_a_library_with_its_driver_is_given(found):
    library = Library(driver=13020)
    found(library)
    assert _library.library() is library
    assert _library.require() is library
    assert _library.why_not() == _library.why_not(0) == ""
    assert _library.versions() == (13020, 13000)
    assert _library.why() == "compiled CUDA 13.0 for 80 90 and newer; the driver offers CUDA 13.2; 0: GPU (9.0)"


def test_an_absent_library_names_the_reason_and_the_command(found):
    found(None, reason="the build found no nvcc")
    assert _library.library() is None
    assert "the build found no nvcc" in _library.why_not()
    assert _build.COMMAND in _library.why_not()
    with pytest.raises(RLError, match="no compiled library"):
        _library.require()


def test_without_a_driver_there_is_none(found):
    found(Library(driver=0))
    assert _library.library() is None
    assert "no NVIDIA driver" in _library.why_not()
    assert _library.why_not().endswith("The library is there, compiled CUDA 13.0 for 80 90 and newer")


@pytest.mark.parametrize(
    ("driver", "runtime", "usable"),
    [(12090, 13000, False), (12000, 12090, True), (13000, 13010, True), (13000, 12060, True), (11080, 12000, False)],
)
def test_a_driver_of_an_older_major_version_is_too_old(found, driver, runtime, usable):
    found(Library(driver=driver, runtime=runtime))
    assert (_library.library() is not None) == usable
    if not usable:
        assert f"offers CUDA {driver // 1000}.{driver % 1000 // 10}" in _library.why_not()
        assert f"built with CUDA {runtime // 1000}.0" in _library.why_not()


@pytest.mark.parametrize(
    ("capability", "built", "usable"),
    [
        pytest.param((9, 0), "80 90", True, id="its-own"),
        pytest.param((8, 9), "80 90", True, id="newer-minor"),
        pytest.param((8, 0), "86 90", False, id="older-minor"),
        pytest.param((12, 1), "80 90", True, id="newer-by-PTX"),
        pytest.param((7, 0), "75 80", False, id="too-old"),
        pytest.param((11, 0), "75 100 120", False, id="between"),
        pytest.param((10, 3), "75 100 120", True, id="newer-minor-in-between"),
    ],
)
def test_the_device_must_be_among_the_architectures(found, capability, built, usable):
    found(Library(devices=[("GPU", *capability)]), built.split())
    assert _library.serves(capability, built.split()) == usable
    reason = _library.why_not(0)
    assert (reason == "") == usable
    if not usable:
        assert f'RL_CUDA_ARCHS="{capability[0]}{capability[1]}" {_build.COMMAND}' in reason
        assert "not among the architectures" in _library.why()
    assert _library.library() is not None  # another device may do


def test_a_missing_device_is_named(found):
    found(Library())
    assert "CUDA device 3: CUDA error 101" in _library.why_not(3)


def test_the_environment_switches_it_off_or_requires_it(found, monkeypatch):
    found(Library(driver=0))
    monkeypatch.setenv("RL_NATIVE", "require")
    with pytest.raises(RLError, match="RL_NATIVE is require, but rl-prio-cuda finds no NVIDIA driver"):
        _library.library()
    found(Library())
    monkeypatch.setenv("RL_NATIVE", "off")
    assert _library.library() is None
    assert "RL_NATIVE=off" in _library.why_not()


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Load from a folder of the test."""
    monkeypatch.setattr(_library, "LIBRARY", tmp_path / "rl_prio_cuda.so")
    monkeypatch.setattr(_library, "record", dict)
    return _library._load.__wrapped__


def test_load_errors_name_the_reason(load, tmp_path):
    assert load() == (None, "it was never built")
    (tmp_path / "rl_prio_cuda.so").write_text("no library")
    assert load()[1].startswith("it does not load: ")


@pytest.mark.skipif(_build.host_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("holds", ["", 'extern "C" const char rl_prio_stamp[] = "another one";'])
def test_a_library_of_another_version_is_not_called(load, tmp_path, holds):
    source, made = tmp_path / "other.cpp", tmp_path / "rl_prio_cuda.so"
    source.write_text(holds)
    subprocess.run([*_build.host_compiler(), "-shared", "-fPIC", "-o", made, source], check=True)
    library, reason = load()
    assert library is None
    assert "compiled from other sources" in reason
