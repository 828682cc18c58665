"""The command ``cadenza``, also as ``python -m cadenza``."""

import signal
import sys

from ._core import cli_main


def main() -> int:
    """Runs the command with this process's arguments and returns its exit code."""
    # The command has its own idea of Ctrl-C; Python's handler would only take note of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
