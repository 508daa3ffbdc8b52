"""Questions on the command line: asked on a real terminal, or answered later with `treadle answer`."""

import json
from collections.abc import Iterator

import pytest
from tests.cli.command import Cli
from tests.cli.test_approve import Terminal

OPTIONS = [{"label": "a.txt", "description": "the new one"}, {"label": "b.txt"}]
FORM = '''
from treadle import Question, ToolContext, tool

FIELDS = {"name": {"type": "string", "description": "Your name."}, "age": {"type": "integer", "minimum": 1},
          "size": {"type": "string", "enum": ["s", "m"], "default": "m"}, "vip": {"type": "boolean"}}

@tool(effect="pure")
async def order(context: ToolContext) -> str:
    """Asks with a form."""
    schema = {"type": "object", "properties": FIELDS, "required": ["name", "age"]}
    answer = await context.ask(Question("Who are you?", schema=schema))
    return "declined" if answer.is_declined else answer.text
'''


def ask(question: str, **more: object) -> str:
    return "call ask_user " + json.dumps({"question": question, **more})


def begin(text: str, *more: str) -> list[str]:
    return ["run", text, "-m", "mock:echo", "--tools", "ask", "--run-id", "r", *more]


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for item in started:
        if item.process.poll() is None:
            item.process.kill()
            item.process.wait()


def test_without_anybody_the_run_waits_and_is_answered_from_another_process(cli: Cli) -> None:
    done = cli(*begin(ask("Which file?", options=OPTIONS)))
    assert done.code == 4, done
    assert "? Which file?\n  1. a.txt  the new one\n  2. b.txt\n" in done.err
    assert "answer with: treadle answer r TEXT --resume\n" in done.err
    listed = cli("answer", "r")
    assert (listed.code, "  2. b.txt" in listed.out) == (0, True), listed
    assert cli("answer", "r", "--json").lines[0]["options"][1] == {"label": "b.txt"}
    assert cli("runs", "--status", "waiting").out.count("r ") >= 1
    answered = cli("answer", "r", "--option", "2")
    assert (answered.code, answered.out) == (0, "")
    assert answered.err == "answered; continue with: treadle resume r\n"
    assert "r " not in cli("runs", "--status", "waiting").out
    resumed = cli("resume", "r", "-q")
    assert (resumed.code, "b.txt" in resumed.out) == (0, True), resumed
    shown = cli("show", "r").out
    assert "? Which file?\n  1. a.txt\n  2. b.txt\n" in shown
    assert "› b.txt\n" in shown
    assert "ask_user begins again, with the answer" in shown
    assert "was lost" not in shown
    assert "-- resumed\n" in shown
    assert "interrupted" not in shown
    assert cli("replay", "r").code == 0


def test_several_questions_are_answered_one_by_one(cli: Cli) -> None:
    cli.write(
        "two.py",
        '''
from treadle import ToolContext, tool

@tool(effect="pure")
async def two(context: ToolContext) -> str:
    """Asks twice."""
    return f"{(await context.ask('One?')).text} {(await context.ask('Two?')).text}"
''',
    )
    text = "call two {}"
    assert cli(*begin(text, "--tools", "two.py")).code == 4
    assert cli("answer", "nope", "first").code == 2
    done = cli("answer", "r", "first", "--resume")
    assert (done.code, "? Two?" in done.err) == (4, True), done
    done = cli("answer", "r", "second", "--resume", "-q")
    assert (done.code, "first second" in done.out) == (0, True), done


def test_what_cannot_be_an_answer_is_said(cli: Cli) -> None:
    done = cli(*begin(ask("Which?", options=OPTIONS, allow_text=False), "--json"))
    (question_id,) = done.lines[-1]["questions"]
    choices = "answer 'Which?' with one of 1 'a.txt', 2 'b.txt'"
    wrong = {
        ("c.txt",): f"'c.txt' is not one of the options; {choices}",
        ("c.txt", "--resume"): f"'c.txt' is not one of the options; {choices}",
        ("--option", "3"): f"there is no option 3; {choices}",
        ("other", "a.txt"): f"no open question begins with 'other'; the open questions are: {question_id}",
        (question_id,): f"say what the answer to '{question_id}' is: a TEXT, --option N or --decline",
        (question_id, "a.txt", "b.txt"): "put an answer in quotes",
        ("--option", "1", "--decline"): "give --option or --decline, not both",
    }
    for words, message in wrong.items():
        done = cli("answer", "r", *words)
        assert (done.code, message in done.err, "Traceback" in done.err) == (2, True, False), done
    done = cli("answer", "r", question_id[:9], "A.TXT", "--resume", "-q")
    assert (done.code, "a.txt" in done.out) == (0, True), done


def test_json_lines_have_the_question(cli: Cli) -> None:
    done = cli(*begin(ask("Which?", options=OPTIONS), "--json"))
    assert done.code == 4
    asked = [line for line in done.lines if line["type"] == "question_asked"]
    assert asked[0]["options"][0] == OPTIONS[0]
    assert done.lines[-1]["questions"] == {asked[0]["question_id"]: "Which?"}


def test_the_person_at_the_terminal_answers(cli: Cli, terminals: list[Terminal]) -> None:
    terminal = Terminal(cli, *begin(ask("Which?", options=OPTIONS, allow_text=False)))
    terminals.append(terminal)
    terminal.wait_for("  1. a.txt")
    terminal.wait_for("answers later")
    terminal.type("3\r")
    terminal.wait_for("is not one of the options")
    terminal.wait_for("answers later")
    terminal.type("B.TXT\r")
    terminal.wait_for("completed")
    assert terminal.close() == 0


@pytest.mark.parametrize("key", ["\r", "\x1b", "\x04"], ids=["enter", "esc", "ctrl-d"])
def test_an_answer_is_postponed(cli: Cli, terminals: list[Terminal], key: str) -> None:
    terminal = Terminal(cli, *begin(ask("Which?")))
    terminals.append(terminal)
    terminal.wait_for("answers later")
    terminal.type(key)
    terminal.wait_for("answer with: treadle answer r TEXT --resume")
    assert terminal.close() == 4
    resumed = Terminal(cli, "resume", "r")
    terminals.append(resumed)
    resumed.wait_for("answers later")
    resumed.type("a.txt\r")
    resumed.wait_for("completed")
    assert resumed.close() == 0


def test_ctrl_c_at_a_question_interrupts_the_run(cli: Cli, terminals: list[Terminal]) -> None:
    terminal = Terminal(cli, *begin(ask("Which?")))
    terminals.append(terminal)
    terminal.wait_for("answers later")
    terminal.type("\x03")
    terminal.wait_for("interrupted")
    assert terminal.close() == 130
    done = cli("answer", "r", "a.txt", "--resume", "-q")
    assert (done.code, "a.txt" in done.out) == (0, True), done


def test_a_form_is_filled_in(cli: Cli, terminals: list[Terminal]) -> None:
    cli.write("forms.py", FORM)
    terminal = Terminal(cli, *begin("call order {}", "--tools", "forms.py"))
    terminals.append(terminal)
    terminal.wait_for("age: integer")
    terminal.wait_for("answers later")
    terminal.type("f\r")
    for prompt, typed in (("name: string:", "Ada"), ("age: integer:", "0"), ("age: integer:", "36")):
        terminal.wait_for(prompt)
        terminal.type(typed + "\r")
    terminal.wait_for("size: s, m (Enter for 'm'):")
    terminal.type("\r")
    terminal.wait_for("vip: yes or no (Enter for none):")
    terminal.type("yes\r")
    terminal.wait_for("completed")
    assert terminal.close() == 0
    answer = cli("show", "r", "--events").out
    assert (
        '{\\"name\\":\\"Ada\\",\\"age\\":36,\\"size\\":\\"m\\",\\"vip\\":true}' in answer or "Ada" in answer
    )


def test_a_form_is_answered_with_json_or_declined(cli: Cli) -> None:
    cli.write("forms.py", FORM)
    assert cli(*begin("call order {}", "--tools", "forms.py")).code == 4
    done = cli("answer", "r", '{"name": "Ada", "age": "x"}')
    assert (done.code, "does not fit the form" in done.err) == (2, True), done
    done = cli("answer", "r", "--decline", "--resume", "-q")
    assert (done.code, "declined" in done.out) == (0, True), done


def test_chat_asks_with_the_same_prompt(cli: Cli, terminals: list[Terminal]) -> None:
    first = Terminal(cli, "chat", "-m", "mock:echo", "--tools", "ask")
    terminals.append(first)
    first.wait_for("›")
    first.type(ask("Which file?", options=OPTIONS) + "\r")
    first.wait_for("answers later")
    first.type("\r")
    first.wait_for("asks the question again")
    first.wait_for("›")
    first.type("\x04")
    assert first.close() == 0
    again = Terminal(cli, "chat", "--continue")
    terminals.append(again)
    again.wait_for("  2. b.txt")
    again.wait_for("answers later")
    again.type("2\r")
    again.wait_for("session: 1 turn,")
    again.wait_for("›")
    again.type("\x04")
    assert again.close() == 0
