"""`rl.core._discovery`: what hides the namespace package."""

import subprocess
import sys

import pytest

# folders are searched that are not on the path of this process
from rl.core import _discovery as namespace


def test_a_clean_environment_has_no_intruder(tmp_path):
    (tmp_path / "rl").mkdir()  # a plain folder is a part of the namespace, and harmless
    assert namespace.intruders([tmp_path]) == []


def test_a_users_module_is_found(tmp_path):
    (tmp_path / "rl.py").write_text("")
    (found,) = namespace.intruders([tmp_path])
    assert found.owner is None
    assert "hides packages of the namespace 'rl'" in found.problem
    assert found.remedy == f"rename {(tmp_path / 'rl.py').resolve()}"


def test_a_package_is_found_once(tmp_path):
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "__init__.py").write_text("")
    (found,) = namespace.intruders([tmp_path, tmp_path, str(tmp_path)])
    assert "delete" in found.remedy
    assert "rename the folder" in found.remedy


@pytest.mark.parametrize("file", ["rl/replay.py", "rl/replay/__init__.py"])
def test_a_module_of_the_name_of_our_package_is_found_and_named_in_errors(tmp_path, monkeypatch, file):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("")
    (found,) = namespace.intruders([tmp_path])
    assert "hides packages" in found.problem
    monkeypatch.chdir(tmp_path)
    code = "from rl.core.targets import import_target; import_target('rl.replay:Buffer', 'storage', 'rl-replay')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{(tmp_path / file).resolve()} hides packages of the namespace 'rl': " in done.stderr
    assert "pgrade" not in done.stderr


def test_our_own_packages_hide_nothing(tmp_path):
    (tmp_path / "rl" / "replay").mkdir(parents=True)
    for name in ("__init__", "__about__"):
        (tmp_path / "rl" / "replay" / f"{name}.py").write_text("")
    assert namespace.intruders([tmp_path]) == []


def _foreign_distribution(folder):
    (folder / "rl").mkdir()
    (folder / "rl" / "__init__.py").write_text("")
    info = folder / "other_rl-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-rl\nVersion: 1.0\n")
    (info / "RECORD").write_text("rl/__init__.py,,\nother_rl-1.0.dist-info/METADATA,,\n")


def test_a_foreign_distribution_is_named(tmp_path, monkeypatch):
    _foreign_distribution(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = namespace.intruders([tmp_path])
    assert found.owner == "other-rl"
    assert found.remedy.startswith("pip uninstall other-rl")


def test_the_hint_is_for_our_namespace_only(tmp_path, monkeypatch):
    (tmp_path / "rl.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "rename" in namespace.hint("rl.envs")
    assert namespace.hint("gymnasium") == ""


def test_doctor_reports_it(tmp_path):
    (tmp_path / "rl.py").write_text("")
    code = "import sys; from rl.core.cli import main; sys.path.insert(0, '.'); sys.exit(main(['doctor', '--quick']))"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "WRONG" in done.stdout
    assert "-> rename" in done.stdout


def test_a_removed_folder_hides_nothing(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    assert namespace.intruders() == []
