"""The script ``x`` around a hatch that is only a stand-in."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SLOW_TO_SAVE = f"""#!{sys.executable}
import signal, sys, time
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
print("started", sys.argv[1:], flush=True)
deadline = time.monotonic() + 30
while not stop and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(1)
print("saved", flush=True)
sys.exit(STATUS)
"""


@pytest.mark.skipif(os.name == "nt", reason="process groups and #! lines are POSIX")
@pytest.mark.parametrize(("given", "expected"), [(130, 130), (254, 130), (0, 0)])
def test_ctrl_c_waits_until_the_command_has_saved(given, expected, tmp_path):
    """Hatch reports an interrupted command as 254; a run that ended all the same as 0."""
    shutil.copy(ROOT / "x", tmp_path / "x")
    (tmp_path / "packages").mkdir()
    home = tmp_path / ".hatch" / "tool"
    (home / "bin").mkdir(parents=True)
    hatch = home / "bin" / "hatch"
    hatch.write_text(SLOW_TO_SAVE.replace("STATUS", str(given)))
    hatch.chmod(0o755)
    wanted = next(line for line in (ROOT / "x").read_text().splitlines() if line.startswith("HATCH = "))
    version = wanted.split('"')[1]
    stamp = f"{version} {sys.version_info[0]}.{sys.version_info[1]} {home}"
    (home / "stamp").write_text(stamp)
    words = [sys.executable, str(tmp_path / "x"), "train", "ppo", "{skip: 4}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started ['run', 'train', 'ppo', '{{skip: 4}}']\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert process.wait(timeout=30) == expected
    assert process.stdout.read() == "saved\n"  # before x has ended, not after it
    process.stdout.close()
