"""Recipes and loggers keep what `rl train` relies on."""

import pytest

from rl.core import components, load
from rl.testing import check_logger, check_recipe
from rl.trainers.loggers import CSVLogger, TensorBoardLogger, read_metrics


@pytest.mark.parametrize("name", [component.name for component in components("recipe")])
def test_a_recipe_conforms(name):
    recipe = load("recipe", name)
    if recipe.config.multi_agent:  # its presets are of environments of these libraries
        pytest.importorskip("vmas")
        pytest.importorskip("mpe2")
    assert check_recipe(recipe).not_exercised == ["training: call `train` in a test of its own"]


def test_the_csv_logger_conforms(tmp_path):
    def read():
        columns = read_metrics(tmp_path / "metrics.csv")
        steps = [int(step) for step in columns.pop("frames")]
        return {name: dict(zip(steps, values, strict=True)) for name, values in columns.items()}

    assert check_logger(lambda: CSVLogger(tmp_path), read=read).not_exercised == []


def test_the_tensorboard_logger_conforms(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read():
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        return {name: {one.step: one.value for one in events.Scalars(name)} for name in events.Tags()["scalars"]}

    assert check_logger(lambda: TensorBoardLogger(tmp_path), read=read).not_exercised == []
