"""`treadle show RUN --tokens`: what was sampled, what is trained on, and how probable it was."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.command import Cli
from tests.trajectory.tokens.engine import TemplateModel, decode, say, think

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.spec import PartSpec
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason
from treadle.renderers.registry import load_renderer

CHATML = load_renderer("chatml")


def write(path: Path, model: Any, *texts: str) -> None:
    """Write a session to a journal."""

    async def talk(journal: Any) -> None:
        async with Agent(model, journal=journal).session("talk") as session:
            for text in texts:
                await session.send(text)

    with open_journal(path) as journal:
        asyncio.run(talk(journal))


def write_chatml(path: Path, *, has_renderer: bool = True) -> None:
    """Write a run whose ids the renderer `chatml` makes, with a probable and an improbable token."""
    prompt, output = CHATML.encode("Say ok."), CHATML.encode("ök\x1b[2J")
    record = TokenRecord.of(
        prompt=prompt,
        output=output,
        logprobs=[-0.01, -5.0, *[-0.7] * (len(output) - 2)],
        tokenizer=CHATML.fingerprint,
    )
    model = ScriptedModel([Completion(say("ök"), FinishReason.STOP, tokens=record, weight_version="7")])
    if has_renderer:
        model.part = PartSpec(name="vllm:tiny", settings={"renderer": "chatml"})  # type: ignore[attr-defined]
    write(path, model, "Say ok.")


def test_branches_are_shown_with_their_reasons(cli: Cli) -> None:
    answers = [think("Hm.", "One."), say("Two.")]
    write(cli.folder / "runs.db", TemplateModel(answers, strips_thinking=True), "Go.", "Go on.")
    shown = cli("show", "talk", "--journal", "runs.db", "--tokens")
    assert shown.code == 0, shown
    assert "2 inferences: " in shown.out
    assert "; every token once" in shown.out
    assert "branch 0 of talk · token_exact" in shown.out
    assert "begins because of reasoning_stripped: at token" in shown.out
    # The server made the ids, so they are shown as numbers, with brackets around what was sampled.
    assert "⟦258 " in shown.out


def test_tokens_as_json(cli: Cli) -> None:
    write(cli.folder / "runs.db", TemplateModel([say("One."), say("Two.")]), "Go.", "Go on.")
    row, proof = cli("show", "talk", "--journal", "runs.db", "--tokens", "--json").lines
    assert (row["grade"], row["drift"], len(row["spans"])) == ("token_exact", None, 2)
    sampled = [item for item, flag in zip(row["token_ids"], row["sampled"], strict=True) if flag]
    assert decode(sampled) == "One.<|end|>Two.<|end|>"
    assert row["logprobs"][0] is None
    assert proof["conservation"]["sampled"] == proof["conservation"]["delivered"] == len(sampled)


def test_ids_become_text_with_the_renderer_of_the_run(cli: Cli) -> None:
    write_chatml(cli.folder / "runs.db")
    shown = cli("show", "talk", "--journal", "runs.db", "--tokens")
    assert "Say ok.⟦ök�[2J⟧" in shown.out
    assert "weights 7" in shown.out


def test_a_renderer_can_be_given(cli: Cli) -> None:
    write_chatml(cli.folder / "runs.db", has_renderer=False)
    arguments = ("show", "talk", "--journal", "runs.db", "--tokens")
    assert "Say ok." not in cli(*arguments).out
    assert "Say ok.⟦ök" in cli(*arguments, "--renderer", "chatml").out
    wrong = cli(*arguments, "--renderer", "chatmal")
    assert wrong.code == 2
    assert "did you mean 'chatml'" in wrong.err


def test_colours_tell_how_probable_a_token_was(cli: Cli) -> None:
    write_chatml(cli.folder / "runs.db")
    shown = cli("show", "talk", "--journal", "runs.db", "--tokens", env={**cli.env, "FORCE_COLOR": "1"})
    assert "\x1b[30;42m" in shown.out  # at least 0.9: black on green
    assert "\x1b[37;41m" in shown.out  # less than 0.1: white on red
    assert "\x1b[2J" not in shown.out
    assert "⟦" not in shown.out


def test_a_run_without_ids_is_text(cli: Cli) -> None:
    write(cli.folder / "runs.db", ScriptedModel(["One."]), "Go.")
    shown = cli("show", "talk", "--journal", "runs.db", "--tokens")
    assert "1 inference, 1 as text" in shown.out
    assert "the run has no token ids" in shown.out


@pytest.mark.parametrize("is_full", [False, True])
def test_long_prompts_are_shortened(cli: Cli, is_full: bool) -> None:
    write(cli.folder / "runs.db", TemplateModel([say("One.")]), "word " * 500)
    options = ["--full"] if is_full else []
    shown = cli("show", "talk", "--journal", "runs.db", "--tokens", *options)
    assert ("tokens…]" in shown.out) is not is_full


def test_a_damaged_record_is_refused(cli: Cli) -> None:
    record = replace(TokenRecord.of(prompt=[1], output=[2]), prompt_shared_tokens=9)
    model = ScriptedModel([Completion(say("One."), FinishReason.STOP, tokens=record)])
    write(cli.folder / "runs.db", model, "Go.")
    shown = cli("show", "talk", "--journal", "runs.db", "--tokens")
    assert shown.code != 0
    assert "leaves out 9 ids" in shown.err
