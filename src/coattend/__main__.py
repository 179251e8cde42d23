"""``python -m coattend``."""

from coattend.cli import main

main()
