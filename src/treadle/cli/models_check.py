"""`treadle models check`."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle models check openai:gpt-5-mini",
    "treadle models check my-model --base-url http://localhost:8000/v1",
)


def check(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A model of treadle.toml, or provider:name.", show_default=False),
    ],
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    is_json: o.IsJson = False,
) -> None:
    """Ask a live endpoint a dozen short questions: tools, parallel calls, streaming, JSON schema, logprobs, ids.

    Says what works, what to write into treadle.toml, and the grade of the data that runs will carry: tokens,
    logprobs or text. Exit code 1 if it does not answer.
    """
    from treadle.cli.model_check import check_model
    from treadle.cli.terminal.output import exit_with

    exit_with(check_model(name, base_url, api_key, is_json=is_json))
