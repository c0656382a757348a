"""``python -m fixes``."""

import sys

from fixes.cli import main

if __name__ == "__main__":
    sys.exit(main())
