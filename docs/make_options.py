"""Write the table of options of each algorithm, from its settings, which are imported without torch."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
OUT = DOCS / "algorithms" / "options"
sys.path[:0] = map(str, DOCS.parent.glob("packages/*/src"))


def table(config: Any) -> list[str]:
    """Rows for the settings that an algorithm adds to those of every run, or gives another default."""
    from rl.trainers.config import RunConfig, config_fields

    shared = {one.name: one.default for one in config_fields(RunConfig)}
    lines = ["| option | default | |", "|---|---|---|"]
    for one in config_fields(config):
        if one.name in config.absent or shared.get(one.name, ...) == one.default:
            continue
        option = f"--{one.name.replace('_', '-')}"
        text = " ".join(one.doc.split()).replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{option}` | `{shown(one.default)}` | {text} |")
    return lines


def shown(default: Any) -> str:
    """A default as a user writes it on the command line."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{','.join(map(str, default))}]"
    return str(default) or "''"


def main() -> None:
    """Write a table for every recipe that has a page."""
    from rl.plugins.trainers import rl_components

    OUT.mkdir(exist_ok=True)
    for one in rl_components():
        if one.kind == "recipe" and (DOCS / "algorithms" / f"{one.name}.md").is_file():
            module, _, name = one.target.partition(":")
            lines = table(getattr(import_module(module), name).config)
            (OUT / f"{one.name}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
