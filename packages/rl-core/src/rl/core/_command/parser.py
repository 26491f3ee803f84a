"""The command line of the commands that rl-core brings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that names the nearest option instead of only refusing; exit status 2."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments, or leave with a sentence."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            close = get_close_matches(unknown[0].partition("=")[0], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            self.error(f"there is no option {unknown[0]}{hint} All of them: {self.prog} --help")
        return options

    def error(self, message: str) -> NoReturn:
        """Leave with exit status 2."""
        self.exit(2, f"{self.prog}: {message}\n")
