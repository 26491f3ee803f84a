"""The scripts of `examples/` run with few frames, and stay on one page."""

import importlib.util
import math
import re
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.filterwarnings("ignore:total_frames=")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs_and_reports_returns(path, capsys):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert math.isfinite(module.main(total_frames=2048, seed=0))
    assert "frames" in capsys.readouterr().out


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_uses_public_names_on_at_most_250_lines(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 250
    assert re.search(r"\brl(\.\w+)*\._", text) is None
    assert re.search(r"from rl\S* import .*\b_\w", text) is None
