"""The build: with nvcc, without it, with one that fails, and as a wheel; and what the compiler says of the kernels."""

import ctypes
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# the build writes into a folder of the test in place of the package
from rl.prio_cuda import _build

PACKAGE = Path(__file__).parents[1]
NVCC = _build.compiler()
with_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc: $NVCC, $CUDA_HOME/bin/nvcc or nvcc on the PATH")


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Build into a folder of the test, for one architecture."""
    for name in ("RL_NATIVE", "NVCC", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RL_CUDA_ARCHS", "90")
    monkeypatch.setattr(_build, "LIBRARY", tmp_path / "_lib" / "rl_prio_cuda.so")
    monkeypatch.setattr(_build, "RECORD", tmp_path / "_lib" / "build.json")
    return tmp_path / "_lib"


@pytest.fixture(scope="module", params=["90", pytest.param("", id="all", marks=pytest.mark.slow)])
def everything(request, tmp_path_factory):
    """The library for one or all architectures, and for each kernel and architecture what ptxas said of it."""
    made = tmp_path_factory.mktemp("everything") / "rl_prio_cuda.so"
    line = _build.command_line(NVCC, [request.param] if request.param else _build.architectures(NVCC), made)
    line[line.index("--threads") + 1] = "1"  # else the reports mix
    said = ""
    if request.param:
        compiled, said = request.getfixturevalue("compiled_kernels")
        line[-1] = str(compiled)
    done = subprocess.run([*line, "-Xptxas", "-v"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said += done.stderr + done.stdout
    pattern = r"Compiling entry function '(\w+)' for 'sm_(\d+)'(.*?)Used (\d+) registers"
    found = re.findall(pattern, said, re.DOTALL)
    return made, {(name, arch): (said, int(registers)) for name, arch, said, registers in found}


@with_nvcc
def test_every_kernel_is_compiled_for_every_architecture(everything):
    _, kernels = everything
    names, archs = {name for name, _ in kernels}, {arch for _, arch in kernels}
    assert len(names) == 1 + 2 * 8  # one needs no type of leaf
    assert set(kernels) == {(name, arch) for name in names for arch in archs}
    assert archs in ({"90"}, set(_build.architectures(NVCC)))


@with_nvcc
def test_no_kernel_spills_or_keeps_anything_in_the_stack(everything):
    _, kernels = everything
    for kernel, (said, _) in kernels.items():
        sizes = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
        assert sizes, (kernel, said)
        assert sizes.groups() == ("0", "0", "0"), kernel


@with_nvcc
def test_registers_are_few(everything):
    _, kernels = everything
    for (name, arch), (_, registers) in kernels.items():
        assert registers <= 64, (name, arch)  # 1024 threads have no more


def _listed(*command):
    return subprocess.check_output(command, text=True)


@with_nvcc
@pytest.mark.skipif(not shutil.which("readelf") or not shutil.which("nm"), reason="no readelf or nm")
def test_the_library_needs_neither_cuda_nor_torch_nor_python(everything):
    library, _ = everything
    needed = re.findall(r"NEEDED.*\[(.*)\]", _listed("readelf", "-d", library))
    assert needed
    assert not [
        name
        for name in needed
        if not name.startswith(("libc.", "libm.", "ld-linux", "libdl.", "libpthread.", "librt."))
    ]
    exported = {line.split()[-1] for line in _listed("nm", "-D", "--defined-only", library).splitlines()}
    header = (_build.SOURCES / "prio.h").read_text()
    assert exported == {*re.findall(r"RL_API [^(]*\b(rl_prio_\w+)\(", header), _build.STAMP}
    # nvcc makes it of a function for the device that the host calls.
    assert not re.search(r" exit(@|$)", _listed("nm", "-D", "--undefined-only", library), re.MULTILINE)


@with_nvcc
def test_the_library_loads_without_a_driver(everything):
    code = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "driver, runtime = ctypes.c_int(-1), ctypes.c_int(-1)\n"
        "status = library.rl_prio_driver(ctypes.byref(driver), ctypes.byref(runtime))\n"
        "print(status, driver.value, runtime.value)\n"
        "if driver.value == 0:\n"
        "    status = library.rl_prio_load(ctypes.c_int64(32))\n"
        "    library.rl_prio_message.restype = ctypes.c_char_p\n"
        "    assert status and library.rl_prio_message(status), status\n"
    )
    status, driver, runtime = map(int, _listed(sys.executable, "-c", code, everything[0]).split())
    assert status == 0
    assert driver >= 0
    assert runtime >= 11000


@pytest.fixture
def quick(tmp_path):
    """An nvcc that knows one architecture, and writes something where it is told."""
    program = tmp_path / "nvcc"
    program.write_text(
        "#!/bin/sh\n[ $1 = --list-gpu-code ] && { echo sm_90; exit 0; }\n"
        'while [ "$1" != -o ]; do shift; done\necho compiled > "$2"\n'
    )
    program.chmod(0o755)
    return str(program)


def test_it_builds_one_library_and_records_how(elsewhere, quick, monkeypatch):
    monkeypatch.setenv("NVCC", quick)
    assert _build.build() == "ok"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["build.json", "rl_prio_cuda.so"]
    assert _build.record() == {"state": "ok", "compiler": quick, "architectures": ["90"]}
    assert (elsewhere / "rl_prio_cuda.so").read_text() == "compiled\n"


@with_nvcc
@with_nvcc
def test_two_builds_give_the_same_bytes(tmp_path):
    built = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made = tmp_path / name / "library.so"
        subprocess.run(_build.command_line(NVCC, ["80"], made), check=True, capture_output=True)
        built.append(made.read_bytes())
    assert built[0] == built[1]


def test_the_library_holds_the_stamp_of_its_version(everything):
    library = ctypes.CDLL(str(everything[0]))
    assert (ctypes.c_char * 16).in_dll(library, _build.STAMP).value.decode() == _build.stamp()


@pytest.fixture
def copied(tmp_path):
    """The build in a copy of the package, whose files can be changed."""
    shutil.copytree(_build.SOURCES.parent, tmp_path / "copy", ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    return runpy.run_path(str(tmp_path / "copy" / "_build.py"))


@pytest.mark.parametrize("name", ["__about__.py", *sorted(path.name for path in _build.SOURCES.iterdir())])
def test_the_stamp_changes_with_any_source(copied, name):
    stamp = copied["stamp"]
    assert stamp() == _build.stamp()
    changed = copied["SOURCES"] / name if (copied["SOURCES"] / name).exists() else copied["SOURCES"].parent / name
    changed.write_text(changed.read_text() + " ")
    assert stamp() != _build.stamp()


def test_the_stamp_changes_if_sources_are_renamed_or_added(copied):
    sources, stamp = copied["SOURCES"], copied["stamp"]
    (sources / "notes.txt").write_text("nothing that is compiled")
    assert stamp() == _build.stamp()
    (sources / "more.h").write_text("")
    added = stamp()
    assert added != _build.stamp()
    (sources / "more.h").rename(sources / "other.h")
    assert stamp() not in {added, _build.stamp()}


@with_nvcc
def test_an_architecture_that_nvcc_does_not_know_is_named(elsewhere, monkeypatch):
    monkeypatch.setenv("RL_CUDA_ARCHS", "90, 12")
    assert re.search(r"architectures 90 12; it knows .*90", _build.build())


def test_nvcc_is_taken_from_the_environment(monkeypatch, tmp_path):
    program = tmp_path / "bin" / "nvcc"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert _build.compiler() == str(program)
    monkeypatch.setenv("NVCC", "no-such-compiler")
    assert _build.compiler() is None


def test_without_nvcc_the_reason_is_recorded(elsewhere, monkeypatch):
    monkeypatch.setenv("NVCC", "no-such-compiler")
    assert _build.build() == "the build found no nvcc: NVCC names 'no-such-compiler'"
    assert "no nvcc" in json.loads((elsewhere / "build.json").read_text())["state"]
    with pytest.raises(RuntimeError, match="RL_NATIVE=require"):
        _build.build("require")


def test_an_nvcc_that_fails_is_named(elsewhere, monkeypatch, tmp_path):
    monkeypatch.setenv("NVCC", "false")
    assert re.search(r"false --list-gpu-code failed with status 1", _build.build())
    program = tmp_path / "nvcc"
    program.write_text("#!/bin/sh\n[ $1 = --list-gpu-code ] && { echo sm_90; exit 0; }\necho out of luck >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("NVCC", str(program))
    assert _build.build() == f"{program} failed with status 2: out of luck"
    program.write_text("neither a script nor a program")
    assert _build.build().startswith(f"{program} does not run: ")
    assert not (elsewhere / "rl_prio_cuda.so").exists()


def test_off_builds_nothing_and_another_mode_is_refused(elsewhere, monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "off")
    assert "RL_NATIVE=off" in _build.build()
    assert not (elsewhere / "rl_prio_cuda.so").exists()
    with pytest.raises(RuntimeError, match="auto, off, require"):
        _build.build("perhaps")


@pytest.mark.parametrize(("name", "value"), [("NVCC", "no-such-compiler"), ("NVCC", "false"), ("RL_NATIVE", "off")])
def test_a_late_build_that_fails_keeps_the_library_that_is_there(elsewhere, monkeypatch, capsys, name, value):
    elsewhere.mkdir()
    (elsewhere / "rl_prio_cuda.so").write_text("the old one")
    (elsewhere / "build.json").write_text('{"state": "ok"}')
    monkeypatch.setenv(name, value)
    assert _build.main() == 1
    assert "stays" in capsys.readouterr().out
    assert (elsewhere / "rl_prio_cuda.so").read_text() == "the old one"
    assert _build.record() == {"state": "ok"}
    assert _build.build() != "ok"  # one that is not late leaves no library of other sources
    assert not (elsewhere / "rl_prio_cuda.so").exists()


def test_a_late_build_into_a_read_only_folder_is_reported(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(_build, "LIBRARY", tmp_path / "file" / "_lib" / "rl_prio_cuda.so")
    assert _build.main() == 1
    assert "virtual environment" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "no json"])
def test_a_damaged_record_is_ignored(elsewhere, content):
    elsewhere.mkdir()
    (elsewhere / "build.json").write_text(content)
    assert _build.record() == {}


def test_without_a_compiler_the_host_library_names_the_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "'unclosed")
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler"):
        _build.build_host(tmp_path)
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match="false failed with status 1"):
        _build.build_host(tmp_path)


def _wheel(folder, **environment):
    pytest.importorskip("hatchling")
    source = folder / "source"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("_lib", "__pycache__", "tests"))
    (source / "README.md").touch()
    environment = {"PATH": os.environ["PATH"], **environment}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((folder / "dist").glob("*.whl"))


def test_a_wheel_with_the_library_is_of_its_platform(tmp_path, quick):
    wheel = _wheel(tmp_path, NVCC=quick, RL_CUDA_ARCHS="90")
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rl/prio_cuda/_lib/rl_prio_cuda.so" in names
    assert "rl/prio_cuda/csrc/prio.cu" in names


def test_a_wheel_without_nvcc_is_pure_and_carries_the_sources(tmp_path):
    wheel = _wheel(tmp_path, NVCC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert "no nvcc" in json.loads(archive.read("rl/prio_cuda/_lib/build.json"))["state"]
    assert "rl/prio_cuda/csrc/prio.cu" in names
    assert not [name for name in names if name.endswith(".so")]
