"""The command line. Each command is loaded only when it is used.

Read first: `commands.txt` (all commands), `options/options.txt` (their options), `app` (their help and errors),
then a file of `commands/`. `options/` makes options from parameters, `terminal/` has what commands print and read,
and `jobs/` their work with journals, runs and files. `chat/` is the conversation of `treadle chat`, `demo/` has the
demonstrations. `start` prepares the process.

A new command is a function in a file of `commands/`, a line in `commands.txt`, which `table` reads, and a section
in `options.txt` with a line for each parameter that has none under "shared". The function takes the options, calls
the function that does the work, prints, and returns the exit code if that may differ from 0. One about a run uses
`open_existing` and `find_run`; `show` in `commands/show.py` is an example. `python docs/reference.py` then adds the
command to `docs/cli.md`. Tests run commands with the fixture `cli` of `tests/cli`, and `test_help.py` checks all
help. What is removed or renamed gets a line in `MOVED` of `table`.

A new field of `Policy` or `Settings` becomes an option of all commands that drive runs; its help is one line in
`options.txt`. A command of a conversation is a function and a line of `COMMANDS` in `chat/slash.py`.
"""

from treadle.cli.start import main

__all__ = ["main"]
