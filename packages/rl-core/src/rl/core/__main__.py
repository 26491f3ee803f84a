"""``python -m rl.core`` is the command ``rl``."""

import sys

from rl.core.cli import main

if __name__ == "__main__":
    sys.exit(main())
