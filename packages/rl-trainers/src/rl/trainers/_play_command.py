"""``rl play``: the policy of a run in a window, or as a video where there is no display."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from rl.core.errors import CheckpointError, RLError
from rl.trainers._arguments import OneLineParser, UsageError, add_policy_options
from rl.trainers._device import seeds_of
from rl.trainers._play import FPS, MAX_STEPS, Episode, describe_keys, open_video, play
from rl.trainers._runs import find_records
from rl.trainers._storage import RunFolder, check_video, only_run
from rl.trainers.evaluation import TrainedRun, load_run

#: sides that a window has at least
SMALLEST_WINDOW = 400


def has_display() -> bool:
    """Whether a window can be opened here, and be seen."""
    import pygame

    try:
        pygame.display.init()
    except pygame.error:
        return False
    return pygame.display.get_driver() not in ("dummy", "offscreen")


class Window:
    """A window that shows pictures at the speed of the environment, until it is closed or Escape is pressed.

    Raises:
        RLError: If no window can be opened.
    """

    def __init__(self) -> None:
        import pygame

        self._pygame = pygame
        self._fps = float(FPS)
        self._held: set[str] = set()
        self._tapped: set[str] = set()
        self._clock = pygame.time.Clock()
        try:
            pygame.display.init()
        except pygame.error as error:
            raise _no_window(error) from error

    def at(self, fps: float) -> Window:
        """Show that many pictures per second from now on."""
        self._fps = fps
        return self

    def show(self, picture: Any, title: str) -> bool:
        """Show a picture, uint8 ``[H, W, 3]``, larger if it is small; returns whether the window was closed."""
        pygame = self._pygame
        height, width = picture.shape[:2]
        scale = max(1, round(SMALLEST_WINDOW / max(height, width)))
        size = (width * scale, height * scale)
        try:
            screen = pygame.display.get_surface()
            screen = screen if screen is not None and screen.get_size() == size else pygame.display.set_mode(size)
        except pygame.error as error:
            raise _no_window(error) from error
        surface = pygame.surfarray.make_surface(np.ascontiguousarray(picture.swapaxes(0, 1)))
        screen.blit(pygame.transform.scale(surface, size), (0, 0))
        pygame.display.set_caption(title)
        pygame.display.flip()
        self._clock.tick(self._fps)
        ends = [self._take(event) for event in pygame.event.get()]  # all of them
        return any(ends)

    def _take(self, event: Any) -> bool:
        """Note a key; returns whether the event ends the play."""
        pygame = self._pygame
        if event.type == pygame.KEYDOWN:
            self._held.add(pygame.key.name(event.key))
            self._tapped.add(pygame.key.name(event.key))
        elif event.type == pygame.KEYUP:
            self._held.discard(pygame.key.name(event.key))
        return event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE)

    def keys(self) -> set[str]:
        """Return the names of the keys that are held, or were pressed since the last call."""
        found, self._tapped = self._held | self._tapped, set()
        return found

    def close(self) -> None:
        """Close the window. May be called twice."""
        self._pygame.display.quit()


def _no_window(error: Exception) -> RLError:
    return RLError(f"no window can be opened: {error}; write a video with --video FILE")


def run_play(argv: Sequence[str]) -> int:
    """Run ``rl play ARGUMENTS``.

    Raises:
        UsageError: If the arguments cannot be understood.
        RLError: If there is no such run, or it can be neither shown nor written.
    """
    options = _parse(argv)
    folder = _newest() if options.run is None else only_run(options.run, "one is played")
    windowed = options.video is None and has_display()
    if options.keyboard and not windowed:
        raise RLError("--keyboard needs a window, and there is no display here; leave it out for a video")
    out = None if windowed else Path(options.video or _free_name(folder.path))
    if out is not None:
        check_video(out)
    run = load_run(folder.path, options.checkpoint, options.device, trust=options.trust)
    _write(f"{folder.path}: {run.recipe.name} on {run.config.env}, {run.checkpoint} policy, {run.frames} frames\n")
    seed = seeds_of(run.config.seed).later_evaluation if options.seed is None else options.seed
    how: dict[str, Any] = {"seed": seed, "deterministic": options.deterministic}
    if out is None:
        _show(run, how, episodes=options.episodes, keyboard=options.keyboard)
        return 0
    if options.video is None:
        _write("there is no display here, so a video is written\n")
    with open_video(out) as file:
        _report(play(run, file.at, episodes=options.episodes or 1, max_steps=MAX_STEPS, **how))
    _write(f"{out}: {file.count} frames\n")
    return 0


def _report(episodes: Iterable[Episode]) -> None:
    """Print a line for each episode when it has ended."""
    for number, episode in enumerate(episodes, start=1):
        success = "" if episode.success is None else ", success" if episode.success else ", no success"
        cut = "" if episode.whole else " (not to its end)"
        _write(f"episode {number}: return {episode.total:.2f} in {episode.steps} steps{success}{cut}\n")


def _show(run: TrainedRun, how: dict[str, Any], *, episodes: int | None, keyboard: bool) -> None:
    """Play in a window until it is closed."""
    if keyboard:
        env = run.make_env(1, 0)
        _write(f"while one of these keys is held, it acts in place of the policy:\n{describe_keys(env)}")
        env.close()
    window = Window()
    _write("close the window or press Escape to end\n")
    try:
        _report(play(run, window.at, episodes=episodes, keys=window.keys if keyboard else None, **how))
    except KeyboardInterrupt:
        _write("\n")
    finally:
        window.close()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        "rl play",
        description="Show the policy of a run in a window; without a display write a video.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run folder (default: the newest one in runs)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--best",
        action="store_const",
        dest="checkpoint",
        const="best",
        help="the policy of the best evaluation (default)",
    )
    which.add_argument("--latest", action="store_const", dest="checkpoint", const="last", help="the newest policy")
    parser.set_defaults(checkpoint="best")
    parser.add_argument(
        "--episodes", type=int, metavar="N", help="how many (default: until the window is closed; one in a video)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of the first episode (default: as in rl eval)")
    parser.add_argument("--video", metavar="FILE", help="write this .mp4 or .gif instead of opening a window")
    parser.add_argument(
        "--keyboard", action="store_true", help="act yourself while a key is held, where actions are discrete"
    )
    add_policy_options(parser)
    options = parser.parse_args(list(argv))
    if options.episodes is not None and options.episodes < 1:
        raise UsageError(f"--episodes must be above 0, got {options.episodes}")
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise UsageError(f"--seed must be in [0, 2147483647], got {options.seed}")
    if options.video is not None and options.keyboard:
        raise UsageError("--keyboard is for a window, and with --video there is none: leave one of them out")
    return options


def _newest() -> RunFolder:
    """Return the run in ``runs`` that was started last."""
    records = find_records("runs")[0] if Path("runs").is_dir() else []
    if not records:
        raise CheckpointError("there is no run in the folder runs: name the folder that `rl train` printed")
    return max(records, key=lambda record: record.facts["started"] or "").folder


def _free_name(folder: Path) -> Path:
    """Return a name for a video in a run folder that is not there."""
    names = (folder / "videos" / f"play-{number}.mp4" for number in count(1))
    return next(name for name in names if not name.exists())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
