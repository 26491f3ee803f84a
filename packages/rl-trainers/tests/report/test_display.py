import io
import math
import sys
from types import SimpleNamespace

import pytest

from rl.core.errors import ArgumentError
from rl.trainers import train

# displays write into a stream of the test, or into a terminal that is pretended
from rl.trainers.display import PlainDisplay, QuietDisplay, RichDisplay, make_display

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


class Notebook:
    """What of IPython in a notebook is used: a shell with a kernel, and outputs that can be updated."""

    version_info = (9, 0)  # matplotlib asks

    def __init__(self, kernel):
        self.shown = []
        self.display = SimpleNamespace(display=self.show)
        self.shell = SimpleNamespace(kernel=kernel)

    def get_ipython(self):
        return self.shell

    def show(self, data, *, raw, display_id):
        assert raw
        assert display_id
        self.update(data, raw=raw)
        return self

    def update(self, data, *, raw):
        assert raw
        self.shown.append(data)


@pytest.fixture
def notebook(monkeypatch):
    made = Notebook(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", made)
    monkeypatch.setitem(sys.modules, "IPython.display", made.display)
    return made


def test_a_notebook_shows_one_panel_that_is_redrawn(notebook, capsys):
    run(make_display())
    first, *_, last = notebook.shown
    assert "<b>ppo on X, seed 0: runs/x</b>" in first["text/html"]
    assert '<progress max="1000" value="0"' in first["text/html"]
    assert '<progress max="1000" value="1000"' in last["text/html"]
    assert "<td>rollout return mean</td><td>21.5</td>" in last["text/html"]
    assert "rollout return mean 21.5" in last["text/plain"].splitlines()
    assert capsys.readouterr().out == "a note\n"


def test_titles_are_no_markup_of_a_notebook(notebook):
    make_display().start("<b>&", 10, 0)
    assert "<b>&lt;b&gt;&amp;</b>" in notebook.shown[0]["text/html"]


def test_training_in_a_notebook_shows_the_panel_and_the_curve(notebook, capsys):
    result = train("ppo", total_frames=128, frames_per_batch=64, minibatch_size=32, epochs=1, eval_episodes=1,
                   final_eval_episodes=1, preset="none", out="run", max_episode_steps=20, loggers=("csv",))  # fmt: skip
    assert "128 of 128" in notebook.shown[-1]["text/html"]
    assert "run folder: run" in capsys.readouterr().out
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


def test_ipython_on_a_terminal_is_no_notebook(notebook):
    notebook.shell.kernel = None
    assert type(make_display()) is PlainDisplay
