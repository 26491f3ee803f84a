"""The conformance check of the logger, and a run that continues."""

import json

from rl.testing import check_logger

from rl_plugin_example.lines import Lines


def test_the_logger_keeps_the_protocol(tmp_path):
    def read():
        found = {}
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            for name in row.keys() - {"step"}:
                found.setdefault(name, {})[row["step"]] = row[name]
        return found

    assert check_logger(lambda: Lines(tmp_path), read=read).not_exercised == []


def test_a_run_that_continues_drops_later_rows(tmp_path):
    for resume_step, steps in ((None, (10, 20)), (10, (15,))):
        logger = Lines(tmp_path, resume_step=resume_step)
        for step in steps:
            logger.log_scalars({"loss": 0.5}, step)
        logger.close()
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [10, 15]
