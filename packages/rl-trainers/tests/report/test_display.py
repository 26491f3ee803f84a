import io
import math

import pytest

from rl.core.errors import ArgumentError

# displays write into a stream of the test, or into a terminal that is pretended
from rl.trainers._report import PlainDisplay, QuietDisplay, RichDisplay, make_display

VALUES = {"rollout/return_mean": 21.5, "train/loss_actor": -0.0123, "eval/return_mean": math.nan}
TIMES = {"collect": 3.0, "update": 1.0}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(display):
    display.start("ppo on X, seed 0: runs/x", 1000, 0)
    display.update(500, VALUES, TIMES)
    display.note("a note")
    display.update(1000, VALUES, TIMES)
    display.stop()
    display.stop()


def test_plain_lines_say_what_matters():
    out = io.StringIO()
    run(PlainDisplay(out, interval=0.0))
    title, line, note, _ = out.getvalue().splitlines()
    assert title == "ppo on X, seed 0: runs/x"
    assert line.startswith("500/1000 frames | ")
    assert "rollout return mean 21.5 | loss actor -0.0123 | collect 75 %, update 25 % | " in line
    assert line.endswith(" left")
    assert "eval" not in line
    assert note == "a note"


def test_plain_lines_keep_their_interval():
    out = io.StringIO()
    run(PlainDisplay(out, interval=60.0))
    assert out.getvalue().splitlines() == ["ppo on X, seed 0: runs/x", "a note"]


def test_the_panel_shows_progress_metrics_and_times():
    out = Terminal()
    display = RichDisplay(out)
    run(display)
    text = out.getvalue()
    for expected in ("1000 of 1000", "frames/s", "time left", "return mean", "21.5", "collect 75 %", "a note"):
        assert expected in text


@pytest.mark.parametrize(
    ("mode", "stream", "kind"),
    [
        pytest.param("auto", Terminal(), RichDisplay, id="auto-terminal"),
        pytest.param("auto", io.StringIO(), PlainDisplay, id="auto-file"),
        pytest.param("plain", Terminal(), PlainDisplay, id="plain"),
        pytest.param("none", Terminal(), QuietDisplay, id="none"),
    ],
)
def test_the_display_follows_the_mode_and_the_stream(mode, stream, kind):
    assert type(make_display(mode, stream)) is kind


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ArgumentError, match="auto, rich, plain, none, got 'fancy'"):
        make_display("fancy")


def test_the_quiet_display_says_nothing(capsys):
    run(make_display("none"))
    assert capsys.readouterr().out == ""


def test_the_panel_says_what_happens_before_there_are_metrics():
    out = Terminal()
    display = RichDisplay(out)
    display.start("ppo on X, seed 0: runs/x", 1000, 0)
    display.stop()
    assert "first batch" in out.getvalue()
    assert "0 of 1000" in out.getvalue()
