"""The work that commands share: on journals, runs, agents and files."""
