"""Time to import `rl.torchrl` after `rl.core`: at most 50 ms, the best of several processes.

Run it with `python packages/rl-torchrl/benchmarks/import_time.py`.
"""

from __future__ import annotations

import subprocess
import sys

CODE = """
import time, rl.core
start = time.perf_counter()
import rl.torchrl
print(time.perf_counter() - start)
"""
PROCESSES = 5


def measure() -> float:
    """Return the least number of seconds."""
    command = [sys.executable, "-c", CODE]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(PROCESSES))


if __name__ == "__main__":
    sys.stdout.write(f"import rl.torchrl: {1000 * measure():.1f} ms over rl.core\n")
