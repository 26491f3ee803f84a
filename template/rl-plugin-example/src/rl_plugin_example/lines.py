"""Metrics as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Lines"]


class Lines:
    """Metrics in `metrics.jsonl` of the run folder, one line of JSON for each row.

    Args:
        folder: Folder of the run.
        resume_step: Frames from which a run continues; None for a new run.
    """

    def __init__(self, folder: str | Path, *, resume_step: int | None = None) -> None:
        path = Path(folder) / "metrics.jsonl"
        kept = []
        if resume_step is not None and path.exists():  # rows of later steps were written by a run that stopped
            rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [row for row in rows if json.loads(row)["step"] <= resume_step]
        self._file = path.open("w", encoding="utf-8")
        self._file.writelines(kept)

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a row."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
