"""The commands, one file for each group of them. `cli/table.py` says which function is which command.

A command's function takes the options, calls the function that does the work, prints, and returns the exit code.
Its docstring is the help: the first line stands in `cli/table.py` too, and `Examples:` has two command lines.
"""
