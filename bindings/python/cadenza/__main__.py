"""The command ``cadenza``, also as ``python -m cadenza``."""

import sys

from ._core import cli_main


def main() -> int:
    """Runs the command with this process's arguments and returns its exit code."""
    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
