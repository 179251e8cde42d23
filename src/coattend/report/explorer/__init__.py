"""The explorer: an HTML page in which the user turns a digit while trained networks run beside it."""
