"""The page about training lists every preset once, with its measured returns."""

from pathlib import Path

from rl.core import components, load

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "training.md"


def test_the_table_of_presets_is_that_of_the_recipes():
    rows = []
    for recipe in [load("recipe", component.name) for component in components("recipe")]:
        for preset in recipe.load_presets().values():
            frames = preset.settings.get("total_frames", recipe.config.total_frames)
            returns = ", ".join(f"{value:.1f}" for value in preset.returns)
            rows.append(f"| {recipe.name} | {preset.name} | {frames:,} | {returns} |")
    text = PAGE.read_text(encoding="utf-8")
    assert [row for row in rows if text.count(row) != 1] == []
