"""The making of one tool call: the workbench, and the modules that it uses."""
