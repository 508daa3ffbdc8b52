"""Loss masks choose among the sampled tokens."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trajectory.tokens.engine import TemplateModel, cut, decode, encode, say, think
from tests.trajectory.tokens.test_drift import LOOK, agent

from treadle import tool
from treadle.core.errors import ConfigError, ExportError, ToolError, UserCodeError
from treadle.core.types import Completion, Message, ToolCall
from treadle.models import call
from treadle.trajectory.tokens import Trajectory, read_tokens
from treadle.trajectory.tokens.masks import make_mask
from treadle.trajectory.tokens.trajectories import split_text


async def rows(*answers: Message | Completion, prefill: str = "", strips: bool = False) -> list[Trajectory]:
    model = TemplateModel(answers, prefill=prefill, strips_thinking=strips)
    made = agent(model)
    async with made.session("run") as session:
        while len(model.records) < len(answers):
            run = await session.send("Look.")
    return list(read_tokens(run.events).trajectories)


def trained(row: Trajectory, loss_T: list[float]) -> str:
    """Return the text of the tokens that have a weight."""
    return decode([item for item, weight in zip(row.token_ids_T, loss_T, strict=True) if weight])


async def test_all_answers_are_what_was_sampled() -> None:
    (row,) = await rows(say("One.", LOOK), say("Two."))
    loss_T = make_mask("all")(row)
    assert loss_T.tolist() == [float(flag) for flag in row.sampled_T] == make_mask()(row).tolist()


async def test_a_function_with_a_mistake_is_told_with_its_line() -> None:
    def weigh(message: Message) -> float:
        return message.absent  # type: ignore[attr-defined, no-any-return]

    (row,) = await rows(say("One."))
    with pytest.raises(
        UserCodeError, match=r"the loss mask failed: AttributeError: .*test_masks.py, line \d+\)"
    ):
        make_mask(weigh)(row)


async def test_the_last_turn() -> None:
    (row,) = await rows(say("One."), say("Two.", LOOK), say("Three."))
    loss_T = list(make_mask("last_turn")(row))
    assert trained(row, loss_T) == 'Two.<call>look {"b":1,"a":2}</call><|end|>Three.<|end|>'


async def test_answers_whose_calls_failed_through_the_models_own_fault() -> None:
    right = say("Right.", LOOK)
    wrong = [
        call("peek", {}),
        ToolCall("broken", "look", '{"a": 1'),
        call("look", {"a": "one"}),
    ]
    for item in wrong:
        (row,) = await rows(say("Both.", LOOK, item), right, say("Done."))
        loss_T = list(make_mask("no_failed_calls")(row))
        assert [span.has_failed_call for span in row.spans] == [True, False, False]
        assert trained(row, loss_T) == 'Right.<call>look {"b":1,"a":2}</call><|end|>Done.<|end|>'


async def test_a_call_that_failed_through_no_fault_of_the_model_is_trained_on() -> None:
    @tool(effect="pure")
    async def fail() -> str:
        """Fail."""
        raise ToolError("there is no connection")

    model = TemplateModel([say("One.", call("fail", {})), say("Two.")])
    made = agent(model, tools=[fail])
    async with made.session("run") as session:
        run = await session.send("Look.")
    (row,) = read_tokens(run.events).trajectories
    assert make_mask("no_failed_calls")(row) == make_mask("all")(row)


@pytest.mark.parametrize("prefill", ["", "<think>\n"])
async def test_answers_without_their_reasoning(prefill: str) -> None:
    (row,) = await rows(
        think("Let me think.", "It is.", LOOK),
        think("Hm, 日本.", "", LOOK),
        think("It is the end."),
        prefill=prefill,
    )
    told = list(make_mask("no_reasoning", decode=decode)(row))
    call = '<call>look {"b":1,"a":2}</call><|end|>'
    assert trained(row, told) == f"It is.{call}\n\n{call}\n\n<|end|>"


async def test_an_answer_that_was_cut_in_its_reasoning_is_all_reasoning() -> None:
    (row,) = await rows(cut(think("It is endless")), say("Two."))
    pieces = trained(row, list(make_mask("no_reasoning", decode=decode)(row)))
    assert pieces.endswith("Two.<|end|>")
    assert "endless" not in pieces


async def test_parts_are_multiplied_and_messages_weighed(tmp_path: Path) -> None:
    (row,) = await rows(say("One."), think("Why?", "Two."))

    def weigh(message: Message) -> float:
        return 0.5 if message.content == "Two." else 2.0

    assert set(make_mask(weigh)(row)) == {0.0, 0.5, 2.0}
    assert set(make_mask(weigh, "last_turn")(row)) == {0.0, 0.5}
    both = list(make_mask("last_turn,no_reasoning", decode=decode)(row))
    assert trained(row, both) == "Two.<|end|>"
    path = tmp_path / "weights.py"
    path.write_text("def weigh(message):\n    return 0.25\n")
    assert set(make_mask(f"{path}:weigh")(row)) == {0.0, 0.25}


async def test_tokens_of_other_branches_stay_without_weight() -> None:
    first, second = await rows(think("Hm.", "One."), say("Two."), strips=True)
    for row in (first, second):
        loss_T = make_mask("all")(row)
        assert [bool(weight) for weight in loss_T] == [bool(flag) for flag in row.sampled_T]


async def test_reasoning_is_not_guessed() -> None:
    (row,) = await rows(think("Hm.", "One."))
    with pytest.raises(ExportError, match="give the renderer that made them"):
        make_mask("no_reasoning")(row)
    with pytest.raises(ExportError, match="does not find the reasoning"):
        make_mask("no_reasoning", decode=lambda ids: "x" * len(ids))(row)
    with pytest.raises(ConfigError, match="did you mean 'last_turn'"):
        make_mask("last_tern")


@given(st.text(max_size=30))
def test_the_texts_of_tokens_are_the_whole_text(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    for is_merged in (True, False):
        ids = encode(text, is_merged=is_merged)
        pieces = split_text(ids, decode)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == text
