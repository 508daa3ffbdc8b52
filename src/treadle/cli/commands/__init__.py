"""The commands, one file for each group of them. `cli/commands.txt` says which function is which command.

A command's function takes the options, calls the function that does the work, prints, and returns the exit code.
Its docstring is the help: the first line stands in `cli/commands.txt` too, and `Examples:` has two command lines.
"""
