"""`treadle doctor`: what works on this machine."""

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle doctor",
    "treadle doctor --json",
)


def doctor(journal: o.Journal = None, is_json: o.IsJson = False) -> None:
    """Say what works on this machine, what does not and why, and what to do about it.

    Exit code 0 if runs can be run and kept; sandboxes, extras and keys may be missing.
    """
    from treadle.cli.checkup import print_checks
    from treadle.cli.terminal.output import exit_with

    exit_with(0 if print_checks(journal, is_json=is_json) else 1)
