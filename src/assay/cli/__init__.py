"""The ``assay`` command: list, show, run, check, report, and a sub-command per family for files of the user's own.

Exit codes: 0 done and certified, 1 a claim or a certificate failed, 2 bad usage or bad input, 130 interrupted.
"""

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    from assay.cli.app import app

    app()
