"""`treadle approve`: decide about a call that a run waits with, and go on."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle approve last call_1 yes",
    'treadle approve last call_1 edit \'{"to": "b@example.org"}\'',
)


def approve(
    run: o.RunId,
    call: Annotated[
        str | None,
        typer.Argument(metavar="CALL", help="A call's id, its beginning, or 'all'.", show_default=False),
    ] = None,
    decision: Annotated[
        str | None, typer.Argument(metavar="yes|no|edit", help="What is decided.", show_default=False)
    ] = None,
    arguments: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="With edit: the arguments to run it with.", show_default=False),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="With no: what the model is told.")
    ] = None,
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    model: o.Model = None,
    tools: o.Tools = None,
    journal: o.Journal = None,
    is_json: o.IsStreamJson = False,
    is_quiet: o.IsQuiet = False,
) -> None:
    """Decide about a call that a run waits with, and go on with the run. Without a CALL: show what waits.

    A run waits where --approve says to ask and nobody was there. An edit runs the call with other arguments, and
    tells the model so.
    """
    from contextlib import closing

    from treadle.cli.approve_call import approve_call, list_waiting, read_decision
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.resuming import Resuming
    from treadle.cli.terminal.setup import ModelOptions, open_existing
    from treadle.core.errors import ConfigError

    given = ModelOptions(model=model, base_url=base_url, tools=tuple(tools or ()))
    with closing(open_existing(journal)) as opened:
        if call is None:
            code = list_waiting(opened, run, is_json=is_json)
        elif decision is None:
            raise ConfigError(f"say yes, no or edit: treadle approve {run} {call} yes")
        else:
            resuming = Resuming(opened, journal, given, api_key)
            said = read_decision(decision, arguments, reason)
            code = approve_call(resuming, run, call, said, is_json=is_json, is_quiet=is_quiet)
    exit_with(code)
