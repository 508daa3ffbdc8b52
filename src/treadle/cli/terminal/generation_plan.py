"""The plan of a generation: its rows, and the calls, tokens, cost and time that are expected."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from treadle.cli.terminal.output import (
    print_json,
    print_line,
    print_note,
    stdout,
    write_cost,
    write_count,
    write_seconds,
)
from treadle.cli.terminal.printed_tables import make_table, print_table
from treadle.datagen.config.estimate import Estimate, toolsets_of
from treadle.datagen.config.generation_config import GenerationConfig

_NUMBERS = ("calls", "input", "output", "cost", "time")


def print_plan(
    config: GenerationConfig,
    plan: Estimate,
    *,
    kept: int = 0,
    notes: Sequence[str] = (),
    is_json: bool = False,
) -> None:
    """Print the plan of a generation for people, or as one JSON object.

    `kept` is the number of rows that the dataset has, and `notes` are those of `load_config`.
    """
    if is_json:
        value: dict[str, Any] = {"estimate": plan, "notes": list(notes)}
        print_json(value | {"config": config.model_dump(mode="json", exclude_defaults=True)})
        return
    for note in notes:
        print_note(note)
    made = "loaded" if config.topics.load is not None else f"a {config.topics.mode} with"
    kind = config.generation.conversation
    turns = f"{kind.min_turns} to {kind.max_turns} turns" if kind.min_turns < kind.max_turns else ""
    turns = turns or write_count(kind.max_turns, "turn")
    tools = ", ".join(part.name for part in toolsets_of(config)) or "none"
    if not plan.rows:
        print_line(f"{config.name}: {str(config.output.path)!r} has all rows that are asked for")
        return
    missing = f"{write_count(plan.rows, 'more row' if kept else 'row')} in {str(config.output.path)!r}"
    print_line(f"{config.name}: {missing}{f', which has {kept:,}' if kept else ''}")
    root = f": {config.topics.prompt!r}" if config.topics.prompt else f" of {str(config.topics.load)!r}"
    print_line(f"  topics        {made} {write_count(plan.leaves, 'leaf topic')}{root}")
    print_line(f"  conversations {kind.type}, {turns}; tools: {tools}")
    print_line(f"  samples       {plan.samples:,}, {config.generation.window} at a time")
    print_line("")
    table = make_table("role", "model", *_NUMBERS, numbers=_NUMBERS)
    for item in plan.roles:
        model = item.model or "?"
        counts = (f"{count:,}" for count in (item.calls, item.input_tokens, item.output_tokens))
        table.add_row(item.role, model, *counts, write_cost(item.cost_usd), write_seconds(item.seconds))
    sums = (f"{count:,}" for count in (plan.calls, plan.input_tokens, plan.output_tokens))
    table.add_row("all", "", *sums, write_cost(plan.cost_usd), write_seconds(plan.seconds), style="bold")
    print_table(table)
    print_line("")
    console = stdout()
    if plan.cost_usd is None:
        extra = "" if find_spec("genai_prices") else "pip install 'treadle[cost]', or "
        console.print(f"For the cost, {extra}give the price of each model, such as models.agent.price.")
    console.print(
        f"The real numbers may be {plan.spread:g} times lower or higher. The time of a role is that of its calls "
        "one after another; the time of all counts the window."
    )
    for text in plan.assumptions:
        console.print(f"  assumed: {text}")
