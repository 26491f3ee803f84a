"""The build: with a compiler, without one, with one that fails, and as a wheel."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# the build writes into a folder of the test in place of the package
from rl.native import _build

PACKAGE = Path(__file__).parents[1]


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Build into a folder of the test."""
    monkeypatch.delenv("RL_NATIVE", raising=False)
    monkeypatch.setattr(_build, "LIBRARY", tmp_path / "_lib" / "rl_native.so")
    monkeypatch.setattr(_build, "RECORD", tmp_path / "_lib" / "build.json")
    return tmp_path / "_lib"


def _symbols(library, which):
    listed = subprocess.check_output(["nm", "-D", which, library], text=True)
    return {line.split()[-1] for line in listed.splitlines()}


@pytest.mark.skipif(_build.compiler() is None, reason="no C compiler")
def test_it_builds_one_library_that_needs_neither_python_nor_torch(elsewhere):
    assert _build.build() == "ok"
    assert (elsewhere / "rl_native.so").is_file()
    assert _build.record()["state"] == "ok"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["build.json", "rl_native.so"]
    if shutil.which("nm"):
        exported = _symbols(elsewhere / "rl_native.so", "--defined-only")
        assert exported
        assert all(name.startswith("rl_") for name in exported)
        needed = _symbols(elsewhere / "rl_native.so", "--undefined-only")
        assert not [name for name in needed if name.startswith(("Py", "_Py", "_Z"))]


def test_without_a_compiler_the_reason_is_recorded(elsewhere, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in _build.build()
    assert "no C compiler" in json.loads((elsewhere / "build.json").read_text())["state"]
    with pytest.raises(RuntimeError, match="RL_NATIVE=require"):
        _build.build("require")


def test_a_compiler_that_fails_is_named(elsewhere, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert _build.build().startswith("false failed with status 1")


def test_off_builds_nothing(elsewhere, monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "off")
    assert "RL_NATIVE=off" in _build.build()
    assert not (elsewhere / "rl_native.so").exists()


@pytest.mark.parametrize("named", ["/nowhere/cc", "'unclosed", "/tmp"])
def test_what_cc_names_is_in_the_message(elsewhere, monkeypatch, named):
    monkeypatch.setenv("CC", named)
    assert _build.build() == f"the build found no C compiler: CC names {named!r}"


def test_a_blank_cc_is_none(monkeypatch):
    monkeypatch.setenv("CC", "")
    usual = _build.compiler()
    monkeypatch.setenv("CC", "  ")
    assert _build.compiler() == usual


def test_a_compiler_that_does_not_start_is_named(elsewhere, monkeypatch, tmp_path):
    program = tmp_path / "cc"
    program.write_text("neither a script nor a program")
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))
    assert _build.build().startswith(f"{program} does not run: ")


def test_a_build_that_fails_leaves_no_library_of_other_sources(elsewhere):
    elsewhere.mkdir()
    (elsewhere / "rl_native.so").write_text("an old one")
    assert _build.build("off") != "ok"
    assert not (elsewhere / "rl_native.so").exists()


@pytest.mark.parametrize(("name", "value"), [("CC", "no-such-compiler"), ("CC", "false"), ("RL_NATIVE", "off")])
def test_a_late_build_that_fails_keeps_the_library_that_is_there(elsewhere, monkeypatch, capsys, name, value):
    elsewhere.mkdir()
    (elsewhere / "rl_native.so").write_text("the old one")
    (elsewhere / "build.json").write_text('{"state": "ok"}')
    monkeypatch.setenv(name, value)
    assert _build.main() == 1
    assert "is kept" in capsys.readouterr().out
    assert (elsewhere / "rl_native.so").read_text() == "the old one"
    assert _build.record() == {"state": "ok"}


def test_a_late_build_into_a_read_only_folder_is_reported(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(_build, "LIBRARY", tmp_path / "file" / "_lib" / "rl_native.so")
    assert _build.main() == 1
    said = capsys.readouterr().out
    assert str(tmp_path / "file" / "_lib") in said
    assert "virtual environment" in said


def test_a_late_build_with_require_fails_in_one_line(elsewhere, monkeypatch, capsys):
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("RL_NATIVE", "require")
    assert _build.main() == 1
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("content", ["", "[]", "no json"])
def test_a_damaged_record_is_ignored(elsewhere, content):
    elsewhere.mkdir()
    (elsewhere / "build.json").write_text(content)
    assert _build.record() == {}


def test_another_mode_is_refused(elsewhere):
    with pytest.raises(RuntimeError, match="auto, off, require"):
        _build.build("perhaps")


@pytest.fixture
def copied(tmp_path):
    """The build, from a copy of the package whose files may be changed."""
    folder = tmp_path / "copied"
    shutil.copytree(_build.SOURCES.parent, folder, ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    return folder, runpy.run_path(str(folder / "_build.py"))["stamp"]


@pytest.mark.parametrize(
    "name",
    ["__about__.py", *sorted(f"csrc/{path.relative_to(_build.SOURCES)}" for path in _build.SOURCES.rglob("*.[ch]"))],
)
def test_the_stamp_changes_with_a_source(copied, name):
    folder, stamp = copied
    assert stamp() == _build.stamp()
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert stamp() != _build.stamp()


def test_the_stamp_changes_if_a_source_is_added_removed_or_renamed(copied):
    folder, stamp = copied
    seen = [stamp()]
    for change in (
        lambda: (folder / "csrc/new.h").write_text(""),
        lambda: (folder / "csrc/new.h").rename(folder / "csrc/other.h"),
        (folder / "csrc/priority_tree/tree.c").unlink,
    ):
        change()
        assert stamp() not in seen
        seen.append(stamp())


def test_the_stamp_changes_with_the_flags(monkeypatch):
    before = _build.stamp()
    monkeypatch.setattr(_build, "FLAGS", (*_build.FLAGS, "-O1"))
    assert _build.stamp() != before


def _wheel(folder, **environment):
    pytest.importorskip("hatchling")
    source = folder / "source"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("_lib", "__pycache__", "tests"))
    environment = {"PATH": os.environ["PATH"], **environment}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.mark.skipif(_build.compiler() is None, reason="no C compiler")
def test_a_wheel_with_the_library_is_of_its_platform(tmp_path):
    wheel = _wheel(tmp_path)
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rl/native/_lib/rl_native.so" in names
    assert "rl/native/csrc/priority_tree/tree.c" in names


def test_a_wheel_without_a_compiler_is_pure_and_carries_the_sources(tmp_path):
    wheel = _wheel(tmp_path, CC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rl/native/csrc/priority_tree/tree.c" in names
    assert "rl/native/_lib/build.json" in names
    assert not [name for name in names if name.endswith(".so")]
