"""The site of all versions, and the page of plugins that is made from metadata."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from fresh_env import ROOT


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_versions_lie_side_by_side_and_the_root_leads_to_the_newest(tmp_path):
    build, html, site = load("build"), tmp_path / "html", tmp_path / "site"
    html.mkdir()
    for version in ("0.9", "latest", "0.10", "0.10"):
        (html / "index.html").write_text(version)
        build.add_version(html, site, version)
    assert json.loads((site / "versions.json").read_text()) == ["0.10", "0.9", "latest"]
    assert "url=0.10/index.html" in (site / "index.html").read_text()
    assert [(site / name / "index.html").read_text() for name in ("0.9", "latest")] == ["0.9", "latest"]
    with pytest.raises(SystemExit, match="must be a word"):
        build.add_version(html, site, "../0.9")


def test_each_page_loads_the_list_of_versions():
    text = (ROOT / "docs" / "conf.py").read_text()
    (name,) = re.findall(r'html_js_files = \[\("([\w.]+)"', text)
    assert "versions.json" in (ROOT / "docs" / "_static" / name).read_text()


def test_the_page_of_plugins_has_every_plugin_with_its_names(monkeypatch):
    pytest.importorskip("griffe")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    projects = [path.parent for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))]
    page = "\n".join(load("make_reference").plugins_page([*projects, ROOT / "template" / "rl-plugin-example"]))
    plugins = [path.name for path in projects if any(Path(path, "src/rl/plugins").glob("*.py"))]
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [*plugins, "rl-plugin-example"]
    assert re.search(r"^\| loss \|.*`sac`", page, re.MULTILINE)
    assert "| command | `rl migrate` |" in page
    assert re.search(r"^\| hook \|.*`rl_priority_tree`", page, re.MULTILINE)
