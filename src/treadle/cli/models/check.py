"""`treadle models check`: what a live endpoint supports."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_json, stdout
from treadle.models.protocol import Model

if TYPE_CHECKING:
    from treadle.models.config.probe import Finding, Probed, Prober

EXAMPLES = (
    "treadle models check openai:gpt-5-mini",
    "treadle models check my-model --base-url http://localhost:8000/v1",
)
_GRADES = {
    "token_exact": "token ids and logprobs of the engine: runs are good for RL and for fine-tuning",
    "token_ids": "token ids of the engine without logprobs: runs are good for RL that computes logprobs itself",
    "text": "texts alone: runs are good for fine-tuning, and not for RL",
}


def check(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A model of treadle.toml, or provider:name.", show_default=False),
    ],
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    renderer: o.Renderer = None,
    is_json: o.IsJson = False,
) -> int:
    """Ask a live endpoint a dozen short questions to find out what it supports.

    They try tools, parallel calls, streaming, JSON Schema, logprobs and token ids, and find out which engine
    answers. The command prints what works, what to write into treadle.toml, and the grade of the data that runs
    will have: token_exact, token_ids or text. The exit code is 1 if the endpoint does not answer.
    """
    from treadle.models.config.probe import Prober
    from treadle.models.config.recipe import load_config

    config = load_config()

    def make(**settings: Any) -> Model:
        given = {"base_url": base_url, "api_key": api_key, "renderer": renderer, **settings}
        return config.bare(name, timeout_seconds=120.0, **given)

    probed = execute(_probe(Prober(make), is_json=is_json))
    if not probed.is_usable:
        return ExitCode.FAILED
    if is_json:
        print_json({"grade": probed.grade, "output_mode": probed.output_mode})
        return ExitCode.DONE
    console = stdout()
    console.print(f"\ngrade   {probed.grade}", style="bold")
    console.print(f"        {_GRADES[probed.grade]}", style="dim", soft_wrap=True)
    console.print(f'answers that must fit a schema: output_mode = "{probed.output_mode}"', soft_wrap=True)
    return ExitCode.DONE


async def _probe(prober: "Prober", *, is_json: bool) -> "Probed":
    async for finding in prober.findings():
        if is_json:
            print_json(finding)
        else:
            _print(finding)
    return prober.result()


def _print(finding: "Finding") -> None:
    marks = {True: ("yes    ", "green"), False: ("no     ", "yellow"), None: ("unknown", "dim")}
    mark, style = marks[finding.is_there]
    console = stdout()
    console.print(mark, style=style, end="  ")
    console.print(f"{finding.name:<16} {clean(finding.seen)}", soft_wrap=True)
    if finding.advice is not None:
        console.print(f"{'':<26}{clean(finding.advice)}", style="dim", soft_wrap=True)
