"""The command line `poolplan`: reads a model and options, prints a plan. Nothing is planned here."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `poolplan` with the arguments of the process, and exit with 0, 2 (bad input) or 3 (too little memory)."""
    from poolplan.cli.commands import run

    sys.exit(run(sys.argv[1:]))
