"""`python -m minfer` is the `minfer` command."""

import sys

from minfer.cli import main

if __name__ == "__main__":
    sys.exit(main())
