"""A distribution that is damaged, or made for another rl-core, is left out by name, and everything else is found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl.core import doctor

# `rl doctor` calls these for each distribution: they must not raise for a damaged one
from rl.core._discovery import installed_version, requirements
from rl.core.registry import Registry

DECLARES = """
from rl.core.component import Component
from rl.core.hookspecs import hookimpl
@hookimpl
def rl_components():
    return [Component("loss", "{0}", "json:loads")]
"""
POINTS = "[rl.plugins]\n{0} = rlt_{0}\n"
METADATA = "Metadata-Version: 2.1\nName: {0}\nVersion: 1.0\n"


def install(site: Path, name: str, metadata: bytes | None = None, points: bytes | None = None) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (site / f"rlt_{name}.py").write_text(DECLARES.format(name))
    (folder / "entry_points.txt").write_bytes(POINTS.format(name).encode() if points is None else points)
    if metadata != b"absent":
        (folder / "METADATA").write_bytes(METADATA.format(name).encode() if metadata is None else metadata)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("bad", "good"):
        sys.modules.pop(f"rlt_{name}", None)


DAMAGE = {
    "no-metadata": ({"metadata": b"absent"}, "METADATA"),
    "empty-metadata": ({"metadata": b""}, "METADATA"),
    "binary-metadata": ({"metadata": b"\xff\xfe\x00Name: bad"}, "METADATA"),
    "no-version": ({"metadata": b"Name: bad\n"}, "Version"),
    "hostile-version": ({"metadata": b"Name: bad\nVersion: \x1b]0;x\x07 && rm\n"}, "no usable Version ("),
    "long-version": ({"metadata": b"Name: bad\nVersion: " + b"9" * 5000}, "no usable Version ('9999"),
    "hostile-name": ({"metadata": b"Name: ../../x y\nVersion: 1\n"}, "no usable Name ('../../x y')"),
    "binary-points": ({"points": b"[rl.plugins]\n\xff\xfe\x00"}, "entry_points.txt cannot be read (UnicodeDecodeError"),
    "half-a-line": ({"points": b"[rl.plugins]\nbad\n"}, "entry_points.txt cannot be read"),
    "empty-value": ({"points": b"[rl.plugins]\nbad =\n"}, "Error"),
    "odd-value": ({"points": b"[rl.plugins]\nbad = \x1b[2J a b c\n"}, "Error"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGE.values(), ids=DAMAGE)
def test_it_is_left_out_by_name_and_the_rest_works(site, monkeypatch, damage, said):
    install(site, "bad", **damage)
    install(site, "good")
    monkeypatch.delenv("RL_PLUGINS_DISABLE", raising=False)
    registry = Registry.installed()
    (record,) = [record for record in registry.plugins if record.distribution == "bad"]
    assert record.state == "broken"
    assert said in record.reason
    assert "".join((record.reason, record.id, record.version)).isprintable()
    assert registry.load("loss", "good")("1") == 1
    assert "rlt_bad" not in sys.modules
    assert installed_version("bad") in (None, "unreadable", "1", "1.0")
    assert requirements("bad") == []
    monkeypatch.setenv("RL_PLUGINS_DISABLE", "bad")
    assert {r.state for r in Registry.installed().plugins if r.distribution == "bad"} == {"disabled"}


def test_commands_work_beside_it(site):
    for number, damage in enumerate(damage for damage, _ in DAMAGE.values()):
        install(site, f"bad{number}", **damage)
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for words in (["plugins"], ["plugins", "--json"], ["--help"], ["doctor", "--quick"]):
        done = subprocess.run(
            [sys.executable, "-m", "rl.core", *words], capture_output=True, text=True, check=False, env=env
        )
        assert done.returncode == (words[0] == "doctor"), done.stderr
        assert "Traceback" not in done.stderr


def test_torch_that_fails_on_it_is_no_fault_of_torch(site):
    install(site, "bad", points=b"[rl.plugins]\n\xff\xfe")
    code = (
        "from rl.core.doctor import examine\n[print(f.name, f.remedy) for f in examine() if f.section == 'libraries']"
    )
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert "import torch repair bad first, as the section plugins says" in done.stdout


def test_of_two_folders_of_one_distribution_the_first_on_the_path_counts(site, tmp_path_factory, monkeypatch):
    install(site, "good")
    first = tmp_path_factory.mktemp("first")
    install(first, "good", points=b"")
    monkeypatch.syspath_prepend(first)
    assert "good" not in {record.distribution for record in Registry.installed().plugins}


@pytest.mark.parametrize(
    ("wanted", "upgrade"),
    [(">=9.1,<9.2", "rl-core"), (">=0.0.1,<0.1", "good"), ("!=0.3.*,>=0.1", "good"), (">=0.1,<9", None), ("", None)],
)
def test_a_plugin_for_another_core_is_incompatible_and_says_what_to_upgrade(site, wanted, upgrade):
    install(site, "good", metadata=f"Name: good\nVersion: 1.0\nRequires-Dist: rl_core{wanted}\n".encode())
    registry = Registry.installed()
    (record,) = [record for record in registry.plugins if record.distribution == "good"]
    if upgrade is None:
        assert record.state == "loaded"
        return
    assert (record.state, record.components) == ("incompatible", ())
    assert record.reason.startswith(f"it needs rl-core{wanted}, this is rl-core 0.")
    assert record.reason.endswith(f": upgrade {upgrade}")
    assert "rlt_good" not in sys.modules
    (finding,) = [f for f in doctor.examine(quick=True, registry=registry) if f.name == "good:good"]
    assert finding.state == "problem"
    assert record.remedy == finding.remedy == f"pip install --upgrade {upgrade}"


def test_what_an_interrupted_installer_left_is_named_with_its_folder(site):
    install(site, "good")
    install(site, "~ood")
    shutil.copytree(site / "good-1.0.dist-info", site / "good-0.9.dist-info")
    registry = Registry.installed()
    records = {record.distribution: record for record in registry.plugins}
    assert records["~ood"].reason == f"it is what an interrupted pip left behind: delete {site}/~ood-1.0.dist-info"
    (doubled,) = records["good"].problems
    assert doubled.startswith("it is installed twice, as good-")
    assert doubled.endswith("reinstall good")
    wrong = [f for f in doctor.examine(quick=True, registry=registry) if f.state == "problem" and "ood" in f.name]
    assert [finding.remedy for finding in wrong] == ["", ""]  # the sentences say what to delete
