"""`treadle rollout report`: a report of rollouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.output import print_json, stdout
from treadle.export.groups import Group

EXAMPLES = (
    "treadle rollout report rollouts",
    "treadle rollout report rollouts -o report.html --renderer chatml",
)


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the rollouts.", show_default=False)
    ] = Path("rollouts"),
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file to write. Default: report.html in the folder."
        ),
    ] = None,
    renderer: Annotated[
        str | None,
        typer.Option(
            "--renderer",
            metavar="NAME",
            help="The renderer that converts token ids to text: hf:FOLDER or family:NAME.",
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            "-j",
            envvar="TREADLE_JOURNAL",
            metavar="PATH",
            help="The address of the rollouts' journal, if it needs a password.",
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> int:
    """Write a report of rollouts as one HTML file: rewards, groups, lengths, tools, drift and tokens.

    It shows the groups that are delivered so far, also while others are made.
    """
    # The modules of the report are not needed for the help.
    from treadle.rollout.report.write import write_report
    from treadle.rollout.rollout_folder import read_groups, read_stored

    stored = read_stored(folder)
    decode = None
    if renderer is not None:
        from treadle.renderers.registry import load_renderer

        decode = load_renderer(renderer).decode
    with bar("reading", len(stored.entries), is_json=is_json) as advance:

        def groups() -> Iterator[Group]:
            for group in read_groups(folder, stored, journal):
                yield group
                advance(group.group_id)

        path = write_report(
            groups(),
            out or folder / "report.html",
            name=stored.config.name,
            dropped=stored.counts.reasons,
            decode=decode,
        )
    if is_json:
        print_json({"report": str(path), "groups": len(stored.entries)})
    else:
        stdout().print(str(path), soft_wrap=True)
    return ExitCode.DONE
