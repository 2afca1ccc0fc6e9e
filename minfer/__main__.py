"""The `minfer` command, also as `python -m minfer`."""

import sys


def main() -> int:
    """Run the process's command line and return the exit status."""
    try:
        from minfer.cli import main as command  # here, where an interrupt of its slow imports is caught

        return command()
    except KeyboardInterrupt:
        print("minfer: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
