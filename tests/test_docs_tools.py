"""The programs that build the site: results, options, links."""

from __future__ import annotations

import re
import sys

import pytest
from fresh_env import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import check_links
import make_options
import make_reference
import make_results


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([500.0, 500.0, 500.0], "500 ± 0"),
        ([500.0], "500"),  # one seed has no spread
        ([1.0, 2.0, 3.0], "2.0 ± 1.0"),
        ([0.25, 0.75], "0.50 ± 0.35"),
    ],
)
def test_returns_are_shown_with_their_deviation_over_seeds(values, shown):
    assert make_results.spread(values) == shown


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ({"name": "ppo-CartPole-v1", "recipe": "ppo", "env": "CartPole-v1"}, "Classic control, discrete actions"),
        ({"name": "sac-Hopper-v5", "recipe": "sac", "env": "Hopper-v5"}, "MuJoCo"),
        ({"name": "bc-Hopper-expert", "recipe": "bc", "env": "Hopper-v5"}, "Hopper, from data"),
        ({"name": "qmix-vmas-balance", "recipe": "qmix", "env": "vmas/balance"}, "Several agents"),
        ({"name": "x-y", "recipe": "x", "env": "y"}, "Other tasks"),
    ],
)
def test_results_are_sorted_by_kind_of_task(case, kind):
    assert make_results.kind_of(case) == kind


def test_algorithms_of_the_same_task_share_a_plot():
    cases = [{"name": f"{name}-Pendulum-v1", "recipe": name, "env": "Pendulum-v1"} for name in ("sac", "td3")]
    assert list(make_results.by_task(cases).values()) == [cases]


def test_options_of_an_algorithm_leave_out_shared_ones_with_the_same_default():
    from rl.trainers import PPOConfig

    lines = make_options.table(PPOConfig)
    assert any(line.startswith("| `--clip-epsilon` | `0.2` |") for line in lines)
    assert not any("--seed`" in line for line in lines)


def test_broken_links_of_a_site_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">1</a><a href="b.html#no">2</a><img src="no.png">')
    (tmp_path / "b.html").write_text('<p id="here"><a href="https://x.org/">3</a><a href="#here">4</a></p>')
    assert list(check_links.broken(tmp_path)) == ["a.html: b.html#no", "a.html: no.png"]


PAGES = [page for page in sorted((ROOT / "docs" / "algorithms").glob("*.md")) if page.stem != "index"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_of_an_algorithm_has_its_formula_and_its_options(page):
    text = page.read_text()
    assert "```{math}\n" in text
    assert f"```{{include}} options/{page.stem}.md\n" in text


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Pages of rl-replay and rl-core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_reference, "OUT", tmp_path_factory.mktemp("reference"))
        packages = [make_reference.Package(ROOT / "packages" / name) for name in ("rl-core", "rl-replay")]
        writer = make_reference.Writer(packages)
        for package in packages:
            writer.package(package)
        yield make_reference.OUT


def test_each_public_name_has_an_entry_of_the_reference(reference):
    import rl.replay

    listed = (reference / "rl-replay" / "index.md").read_text()
    for name in set(rl.replay.__all__) - {"__version__"}:
        assert f"`{name}`" in listed or f"`{name} <rl.replay.{name}>`" in listed, name
    pages = "".join(page.read_text() for page in (reference / "rl-replay").glob("*.md"))
    entries = set(re.findall(r"{py:(?:class|function|data)} rl\.replay\.(\w+)", pages))
    assert entries == set(rl.replay.__all__) - {"__version__"}


def test_signatures_have_types_under_the_names_of_the_reference(reference):
    page = (reference / "rl-replay" / "ReplayBuffer.md").read_text()
    assert "storage: rl.core.interfaces.Storage | None = None" in page
    assert re.search(r"{py:method} sample\(.*\) -> ", page)


def test_an_entry_links_to_the_line_of_its_source(reference):
    page = (reference / "rl-core" / "Contract.md").read_text()
    link = 'href="../../../source/rl/core/contract.html#L-'
    line = int(page.partition(link)[2].partition('"')[0])
    source = (ROOT / "packages/rl-core/src/rl/core/contract.py").read_text().splitlines()
    assert "class Contract" in "\n".join(source[line - 1 : line + 2])


@pytest.mark.parametrize("name", ["SACLoss", "KLPENPPOLoss", "GAE", "VTrace"])
def test_losses_and_estimators_have_formulas(name):
    assert "```{math}" in "\n".join(make_reference.formulas()[name])
