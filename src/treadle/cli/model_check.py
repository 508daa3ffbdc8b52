"""What `treadle models check` does."""

from typing import Any

import msgspec

from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import clean, print_lines, stdout
from treadle.models.config.file import load_config
from treadle.models.config.probe import Finding, Grade, Probed, Prober
from treadle.models.protocol import Model

_GRADES = {
    Grade.TOKENS: "exact token ids and logprobs; runs can be trained on with RL",
    Grade.LOGPROBS: "texts with logprobs, without ids; runs can be fine-tuned on, and not trained on with RL",
    Grade.TEXT: "texts alone; runs can be fine-tuned on, and not trained on with RL",
}


def check_model(name: str, base_url: str | None, api_key: str | None, *, is_json: bool) -> int:
    """Probe, and tell it line by line; the exit code. Raises: `ConfigError` for a name that says nothing."""
    config = load_config()

    def make(**settings: Any) -> Model:
        return config.bare(name, base_url=base_url, api_key=api_key, timeout_seconds=120.0, **settings)

    probed = execute(_probe(Prober(make), is_json=is_json))
    if not probed.is_usable:
        return 1
    if is_json:
        print_lines([msgspec.json.encode({"grade": probed.grade, "output_mode": probed.output_mode})])
        return 0
    console = stdout()
    console.print(f"\ngrade   {probed.grade}", style="bold")
    console.print(f"        {_GRADES[probed.grade]}", style="dim", soft_wrap=True)
    console.print(f'answers in a schema: output_mode = "{probed.output_mode}"', soft_wrap=True)
    return 0


async def _probe(prober: Prober, *, is_json: bool) -> Probed:
    async for finding in prober.findings():
        if is_json:
            print_lines([msgspec.json.encode(finding)])
        else:
            _print(finding)
    return prober.result()


def _print(finding: Finding) -> None:
    marks = {True: ("yes    ", "green"), False: ("no     ", "yellow"), None: ("unknown", "dim")}
    mark, style = marks[finding.is_there]
    console = stdout()
    console.print(mark, style=style, end="  ")
    console.print(f"{finding.name:<16} {clean(finding.seen)}", soft_wrap=True)
    if finding.advice is not None:
        console.print(f"{'':<26}{clean(finding.advice)}", style="dim", soft_wrap=True)
