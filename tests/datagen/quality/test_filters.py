"""Each filter lets real runs pass, and rejects what was spoiled in them."""

import pytest
from msgspec.structs import replace
from tests.datagen.quality.candidates import candidate, changed, config, play, solve, verdict, with_answer
from tests.sandbox.here import needs_sandbox

from treadle import Agent, ScriptedModel, open_journal, tool
from treadle.core.events import Rewarded
from treadle.core.types import Message, Role, ToolSpec
from treadle.datagen.quality.filters.graded import VerifiedFilter, VerifiedSettings, _read_files
from treadle.datagen.quality.pipeline import mark_row
from treadle.datagen.quality.protocol import Resources
from treadle.datagen.scenarios.scenario import Kind
from treadle.models import call
from treadle.models.scripted import Answer

CHEAP = (
    *("transcript", "ended", "reasoning", "length", "kind", "schema", "placeholders", "useless_calls"),
    *("refusals", "leaks", "language", "grounding", "check", "verified"),
)
READ = call("read_file", {"file_path": "a.txt"})
FILES = {"a.txt": "The price is 12.50 for Anna.", "b.txt": "Two."}


@tool(effect="once")
def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


@pytest.mark.parametrize("task_id", ["csv_sum-0000", "config_fix-0001", "room_conflict-0000"])
@pytest.mark.parametrize("name", CHEAP)
async def test_a_good_run_passes(name: str, task_id: str) -> None:
    found = await verdict(await solve(task_id, 0.3), name)
    assert found.is_passed, found.reason
    assert found.filter == name


async def test_a_result_under_another_call_is_rejected() -> None:
    """Rules out results that are shifted to other calls, and steps without calls between two assistant messages."""
    good = await play(
        "Read both files.", [READ, call("read_file", {"file_path": "b.txt"})], "Done.", files=FILES
    )
    assert (await verdict(good, "transcript")).is_passed

    def swap(messages: list[Message]) -> list[Message]:
        messages[2], messages[3] = messages[3], messages[2]
        return messages

    assert "out of call order" in (await verdict(changed(good, swap), "transcript")).reason
    doubled = changed(good, lambda messages: [*messages, Message(Role.ASSISTANT, "Also.")])
    assert not (await verdict(doubled, "transcript")).is_passed
    unanswered = changed(good, lambda messages: messages[:-1])
    assert "0 final answers" in (await verdict(unanswered, "transcript")).reason


async def test_a_run_that_reached_a_limit_is_rejected() -> None:
    found = await solve("csv_sum-0000")
    row = replace(found.row, lineage=replace(found.row.lineage, stop_reason="max_steps"))
    assert "max_steps" in (await verdict(replace(found, row=row), "ended")).reason


async def test_the_length_has_bounds() -> None:
    found = await play("Say something, please.", "one two three four")
    assert (await verdict(found, "length", {"max_words": 4})).is_passed
    assert "4, but the limit is at most 3" in (await verdict(found, "length", {"max_words": 3})).reason
    assert "at least 5" in (await verdict(found, "length", {"min_words": 5})).reason
    assert "turns" in (await verdict(found, "length", {"max_turns": 0})).reason
    assert "tokens" in (await verdict(found, "length", {"max_tokens": 5})).reason


@pytest.mark.parametrize(
    "message", ["法国的首都是什么？", "日本の首都はどこですか", "เมืองหลวงของฝรั่งเศส", "수도는 어디야?"]
)
async def test_words_are_counted_in_languages_without_spaces(message: str) -> None:
    assert (await verdict(await play(message, message), "length")).is_passed
    assert not (await verdict(await play("Why?", message), "length")).is_passed


async def test_a_missing_kind_is_noted_and_only_rejected_if_asked() -> None:
    found = replace(await solve("csv_sum-0000"), spec=(await play("Hi there.", "x", kind=Kind.RECOVERY)).spec)
    noted = await verdict(found, "kind")
    assert noted.is_passed
    assert "'recovery'" in noted.reason
    assert not (await verdict(found, "kind", {"reject": True})).is_passed


async def test_arguments_and_answers_must_fit_their_schemas() -> None:
    good = await play("Read a.txt.", [call("reed_file", {})], [READ], "Done.", files=FILES)
    assert (await verdict(good, "schema")).is_passed, "a failed call is not checked"
    spec = replace(good.row.tools[0], parameters={"type": "object", "required": ["path"]})
    tools: tuple[ToolSpec, ...] = tuple([replace(spec, name=item.name) for item in good.row.tools])
    bad = replace(good, row=replace(good.row, tools=tools))
    assert "missing parameter 'path'" in (await verdict(bad, "schema")).reason
    assert "no tool" in (await verdict(replace(good, row=replace(good.row, tools=())), "schema")).reason


@pytest.mark.parametrize(
    ("arguments", "is_placeholder"),
    [
        ({"text": "{{name}}"}, True),
        ({"text": "<your_name>"}, True),
        ({"text": "TODO"}, True),
        ({"text": "path/to/file.txt"}, True),
        ({"text": "mail@example.com"}, True),
        ({"text": "[Your Name]"}, True),
        ({"text": "Kind regards, Anna"}, False),
        ({"text": ""}, False),
        ({"text": "value of the order"}, False),
        ({"text": "<mail@told.org>"}, False),
        ({"text": "A template: " + "text " * 50 + "{{name}}"}, False),
    ],
)
async def test_placeholders_are_found_in_arguments(arguments: dict[str, str], is_placeholder: bool) -> None:
    found = await play("Send it to Anna.", [call("send", arguments)], "Sent.", tools=[send])
    assert (await verdict(found, "placeholders")).is_passed is not is_placeholder


async def test_an_empty_text_is_no_placeholder_and_what_the_user_wrote_is_none() -> None:
    """Rules out that empty arguments, and texts that the user asked for, make a sample invalid."""
    write = call("write_file", {"file_path": "x.txt", "content": ""})
    assert (await verdict(await play("Make x.txt empty.", [write], "Done."), "placeholders")).is_passed
    asked = await play("Send {{name}} as it is.", [call("send", {"text": "{{name}}"})], "Sent.", tools=[send])
    assert (await verdict(asked, "placeholders")).is_passed
    answer = await play("Write a letter to Anna.", "Dear Anna,\n\nKind regards, [Your Name]")
    assert not (await verdict(answer, "placeholders")).is_passed


async def test_null_for_a_required_parameter_is_a_placeholder() -> None:
    @tool(effect="pure")
    def look(name: str, limit: int | None) -> str:
        """Look something up."""
        return name

    found = await play(
        "Look for x, please.", [call("look", {"name": "x", "limit": None})], "Found x.", tools=[look]
    )
    assert (await verdict(found, "placeholders")).is_passed
    null = call("look", {"name": None, "limit": 1}, call_id=found.row.messages[2].call_id)
    bad = changed(found, lambda m: [m[0], replace(m[1], tool_calls=(null,)), *m[2:]])
    assert "null" in (await verdict(bad, "placeholders")).reason


@pytest.mark.parametrize(
    ("steps", "is_useless"),
    [
        ([[READ], [READ]], True),
        ([[READ, READ]], True),
        ([[READ], [call("list_files")], [call("read_file", '{ "file_path":"a.txt" }')]], True),
        ([[READ], [call("write_file", {"file_path": "b.txt", "content": "x"})], [READ]], False),
        ([[call("send", {"text": "x"})], [call("send", {"text": "x"})]], False),
        ([[call("read_file", {"file_path": "no.txt"})], [call("read_file", {"file_path": "no.txt"})]], True),
        ([[READ], [call("read_file", {"file_path": "b.txt"})]], False),
    ],
)
async def test_a_look_after_a_change_is_legitimate_and_a_repetition_is_not(
    steps: list[Answer], is_useless: bool
) -> None:
    """Rules out that a second read after a write is skipped or taken for a duplicate."""
    found = await play("Read a.txt.", *steps, "Done.", tools=["files", send], files=FILES)
    repeated = await verdict(found, "useless_calls")
    is_alone = all(len(message.tool_calls) < 2 for message in found.row.messages)
    assert repeated.is_passed is (not is_useless or is_alone)
    assert ("untrained" in repeated.details) is (is_useless and is_alone), (
        "a repetition alone in its step is not trained on"
    )
    assert (await verdict(found, "useless_calls", {"max_repeats": 3})).is_passed


async def test_one_repeated_call_is_kept_and_not_trained_on() -> None:
    """Rules out that a good answer is thrown away for a step that can be left out of the loss."""
    found = await play("Read a.txt.", [READ], [READ], "Done.", tools=["files"], files=FILES)
    verdicts = (await verdict(found, "useless_calls"),)
    assert mark_row(found.row, verdicts).untrained == (1,)
    twice = await play("Read a.txt.", [READ], [READ], [READ], "Done.", tools=["files"], files=FILES)
    assert not (await verdict(twice, "useless_calls")).is_passed
    assert not (await verdict(twice, "useless_calls", {"max_repeats": 0})).is_passed
    kept = await verdict(twice, "useless_calls", {"max_repeats": 1})
    assert mark_row(twice.row, (kept,)).untrained == (1, 2)


async def test_results_that_nothing_uses_are_counted() -> None:
    used = await play("What is the price?", [READ], "It is 12.50.", files=FILES)
    unused = await play("What is the price?", [READ], "No idea!", files=FILES)
    assert (await verdict(used, "useless_calls", {"max_unused": 1})).details == {"unused": 0}
    assert (await verdict(unused, "useless_calls", {"max_unused": 1})).details == {"unused": 1}
    assert (await verdict(unused, "useless_calls")).is_passed
    assert not (await verdict(unused, "useless_calls", {"max_unused": 0})).is_passed


@pytest.mark.parametrize(
    ("answer", "is_refusal"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I cannot assist with this request.", True),
        ("As an AI language model I don't have opinions.", True),
        ("I must decline.", True),
        ("I had to stop before I was done.", True),
        ("I could not finish this: no such file", True),
        ("I could not find the file b.txt, so the total covers a.txt only: 12.50.", False),
        ("The server can't be reached since noon.", False),
        ("I can't tell which file you mean. Which one is it?", False),
        ("The policy does not allow refunds after 30 days.", False),
    ],
)
async def test_refusals_and_answers_that_give_up_are_rejected(answer: str, is_refusal: bool) -> None:
    found = await play("Read a.txt, please.", answer)
    assert (await verdict(found, "refusals")).is_passed is not is_refusal
    planned = await play("Read a.txt, please.", answer, kind=Kind.REFUSAL)
    assert (await verdict(planned, "refusals")).is_passed


@pytest.mark.parametrize(
    ("request_", "answer", "what"),
    [
        ("Read it, please.", "Done.", None),
        ("Read it, please.", "As an AI language model, I say 5.", "speaks of the model"),
        ("Read it, please.", "Here you are, Ana Lima: 5.", "persona's name"),
        ("I am Ana Lima. Read it.", "Here you are, Ana Lima: 5.", None),
        ("Read it, please.", '<facts>\n{"write": 1}\n</facts>', "has markup"),
        ("Read it, please.", "<tool_call>x</tool_call>", "has markup"),
        ("What does <|im_start|> mean?", "It begins a message.", "has markup"),
        ("As the simulated user, I want the file.", "Done.", "simulation"),
        ("The code is 4711, read it.", "Done.", "withheld"),
        (
            "Read it.",
            "You work on a folder of files through tools; paths are relative to its root.",
            "system",
        ),
    ],
)
async def test_leaks_are_found(request_: str, answer: str, what: str | None) -> None:
    found = await play(request_, answer, withheld="The code is 4711")
    text = "You work on a folder of files through tools; paths are relative to its root."
    found = changed(found, lambda messages: [Message(Role.SYSTEM, text), *messages])
    judged = await verdict(found, "leaks")
    assert judged.is_passed is (what is None), judged.reason
    assert (what or "") in judged.reason


async def test_the_language_is_the_wanted_one_or_the_users() -> None:
    english = "Please add up the prices of all the files that are in this folder."
    german = "Die Summe der Preise ist 12,50 und steht auch in der Datei mit dem Bericht."
    mixed, plain = (
        await play(english, german),
        await play(english, "The total of the files is 12.50 for all."),
    )
    assert "is in 'de' and not in 'en'" in (await verdict(mixed, "language")).reason
    assert (await verdict(plain, "language")).is_passed
    assert not (await verdict(plain, "language", {"language": "de"})).is_passed
    assert (await verdict(await play("x = 1; y = 2", german), "language")).is_passed
    tools = "I'm sorry, but I can't print. What I have is read_file, write_file, list_files and edit_file."
    assert (await verdict(await play(english, tools), "language")).is_passed


async def test_the_grade_of_the_task_must_be_right() -> None:
    found = await solve("csv_sum-0000")
    assert (await verdict(found, "check")).details == {"grade": 1.0}
    wrong = with_answer(found, "Answer: 1.00")
    assert "the answer line should say" in (await verdict(wrong, "check")).reason
    graded = [
        replace(event, body=replace(event.body, reward=0.25, detail="as recorded"))
        if isinstance(event.body, Rewarded)
        else event
        for event in found.events
    ]
    recorded = await verdict(replace(found, events=graded), "check")
    assert "0.25: as recorded" in recorded.reason
    assert (await verdict(replace(wrong, events=graded), "check")).details == {"grade": 0.6}
    other = replace(found, environment=replace(found.environment, task="files:config_fix-0001"))
    assert not (await verdict(other, "check")).is_passed
    assert (
        await verdict(replace(wrong, environment=replace(found.environment, task=None)), "check")
    ).is_passed


async def test_a_row_is_verified_only_if_every_call_was_made_again() -> None:
    """Rules out rows whose results nobody has checked, and rows that are called verified without a check."""
    every = await verdict(await play("Read a.txt.", [READ], "Done.", files=FILES), "verified")
    assert (every.is_passed, every.details["is_verified"]) == (True, True)
    some = await play(
        "Send it.", [call("send", {"text": "x"}), READ], "Done.", tools=["files", send], files=FILES
    )
    kept = await verdict(some, "verified")
    assert (kept.is_passed, "is_verified" in kept.details) == (True, False)
    assert "its effect is once" in kept.reason
    assert not (await verdict(some, "verified", {"unverifiable": "reject"})).is_passed
    none = await verdict(await play("Hello there.", "Hello."), "verified")
    assert (none.is_passed, "is_verified" in none.details) == (True, False)


async def test_a_tool_that_answers_otherwise_is_a_difference() -> None:
    answers = iter(range(10))

    @tool(effect="pure")
    def count() -> int:
        """Count."""
        return next(answers)

    journal_row = await play("Count, please.", [call("count")], "It is 0.", tools=[count])

    made = VerifiedFilter(VerifiedSettings(), Resources(config=config(), tools=[count]))
    found = await made.check(journal_row)
    assert not found.is_passed
    assert "recorded '0', now '1'" in found.reason


async def test_rows_of_a_tool_that_once_answered_otherwise_are_not_marked() -> None:
    """A tool whose results are equal only by chance would make rows that a later verification denies."""
    answers = iter([1, 1, 1, 2, 1, 1])

    @tool(effect="pure")
    def coin() -> int:
        """Throw a coin."""
        return next(answers)

    made = VerifiedFilter(VerifiedSettings(), Resources(config=config(), tools=[coin]))
    found = [
        await made.check(await play("Throw it.", [call("coin")], "It fell.", tools=[coin])) for _ in range(3)
    ]
    assert [item.is_passed for item in found] == [True, False, True]
    assert [item.details.get("is_verified", False) for item in found] == [True, False, False]
    assert "'coin' gave another result" in found[2].reason


@needs_sandbox
async def test_the_files_that_a_check_is_given_have_the_states_of_tools() -> None:
    journal = open_journal("memory:")
    model = ScriptedModel([[call("shell", {"command": "ln -s a b; echo 1 > a"})], "Done."])
    made = await Agent(model, tools=["shell"], journal=journal).run("go", run_id="s000001-1", files={})
    files = await _read_files(candidate(journal, made.run_id))
    assert files == {"a": b"1\n"}
    assert files.read_state("shell") == b'{"links":{"b":"a"}}'
    assert files.read_state("other") is None
