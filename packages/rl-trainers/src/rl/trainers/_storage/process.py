"""What a run folder records about the process that trains."""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["this_process"]


def this_process() -> dict[str, str]:
    """Time, command line and, in a git checkout, the commit of the working folder.

    Returns:
        ``started`` (UTC), ``command``, and ``git_commit``, which ends with ``-dirty`` if tracked files were changed;
        there is no ``git_commit`` outside a checkout.

    Example:
        >>> sorted(this_process())[0]
        'command'
    """
    found = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    commit = _git_commit()
    return found if commit is None else {**found, "git_commit": commit}


def _git_commit() -> str | None:
    """The commit that is checked out here; None if there is none, or no git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
