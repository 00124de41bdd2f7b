"""`python -m poolplan`, the same as the command `poolplan`."""

from poolplan.cli import main

main()
