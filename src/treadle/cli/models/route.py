"""`treadle models route`: the tier that a router would choose for a message."""

from typing import Annotated

import typer
from msgspec.structs import replace

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_json, stdout
from treadle.models.config.recipe import load_config
from treadle.models.wrappers.tiered import TieredModel
from treadle.routing import choose, facts_of, make_router

EXAMPLES = (
    "treadle models route 'Prove that there are infinitely many primes.'",
    "treadle models route 'What is in this picture?' --images 1 --router scored",
)


def route(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The user's message.", show_default=False)],
    router: Annotated[
        str | None,
        typer.Option("--router", metavar="NAME", help="A router, by default that of treadle.toml."),
    ] = None,
    images: Annotated[
        int, typer.Option("--images", metavar="N", min=0, help="How many images the request has.")
    ] = 0,
    tools: Annotated[
        int, typer.Option("--tool-count", metavar="N", min=0, help="How many tools the model is offered.")
    ] = 0,
    tokens: Annotated[
        int,
        typer.Option("--prompt-tokens", metavar="N", min=0, help="The tokens of the conversation so far."),
    ] = 0,
    is_first_turn: Annotated[
        bool, typer.Option("--first-turn/--later-turn", help="Whether the message begins a session.")
    ] = True,
    is_json: o.IsJson = False,
) -> int:
    """Say which tier a router would choose for a message, and why.

    No model is asked. The message is taken as one of a session.
    """
    model = load_config().model("auto" if router is None else f"auto:{router}")
    assert isinstance(model, TieredModel)
    facts = facts_of(model, text)
    facts = replace(
        facts,
        images=images,
        tools=tools,
        prompt_tokens=facts.prompt_tokens + tokens,
        is_first_turn=is_first_turn,
        is_session=True,
        is_boilerplate=facts.is_boilerplate and not images,
    )
    chosen = choose(make_router(model), facts)
    if is_json:
        print_json(chosen)
        return ExitCode.DONE
    console = stdout()
    console.print(clean(f"{chosen.tier}  {chosen.model}"), style="bold", soft_wrap=True)
    for reason in chosen.reasons:
        console.print(clean(f"  because {reason}"), soft_wrap=True)
    for tier in model.tiers:
        if tier in chosen.rejected:
            console.print(
                clean(f"  {tier:<8}  not possible: {chosen.rejected[tier]}"), soft_wrap=True, style="dim"
            )
        else:
            score = chosen.scores.get(tier)
            text = "no score" if score is None else f"score {score:.3f}"
            console.print(f"  {tier:<8}  {text}", soft_wrap=True, style="dim")
    return ExitCode.DONE
