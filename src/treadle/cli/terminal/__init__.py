"""The output of commands on the terminal, and what they read from it."""
