"""docs/upgrading.md has the names that `rl migrate --from rl==SERIES` renames."""

from __future__ import annotations

from fresh_env import ROOT

from rl.torchrl._migrate_sources import NAMES  # the table itself, which the page shows


def table() -> str:
    rows = [f"| {since} | `{old}` | `{new}` |" for since, names in NAMES.items() for old, new in sorted(names.items())]
    return "\n".join(["| since | before | now |", "|---|---|---|", *rows])


def test_the_page_lists_the_names_that_changed():
    page = (ROOT / "docs" / "upgrading.md").read_text()
    listed = page.partition("<!-- names: begin -->\n")[2].partition("<!-- names: end -->")[0].strip()
    assert listed == table(), "paste what `python tests/test_upgrading.py` prints"


if __name__ == "__main__":
    print(table())
