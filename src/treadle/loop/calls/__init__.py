"""How one tool call is made: the workbench, and what it needs."""
