"""The ``assay`` command: list, show, run, check, report, and a sub-command per family for files of the user's own.

Exit codes: 0 done and certified, 1 a claim or a certificate failed, 2 bad usage or bad input, 130 interrupted.
"""

import signal
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a terminal that cannot show a letter shows its number
                stream.reconfigure(errors="backslashreplace")
        from assay.cli.app import app

        app(prog_name="assay")
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        print("interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except SystemExit as leaving:
        if leaving.code == _INTERRUPTED:  # a second Ctrl-C would only spoil what is said about the first
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
