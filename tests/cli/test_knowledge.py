"""`--persona`, `--memory`, `--skills` and `--user`, and the commands of `treadle persona` and `treadle skills`."""

import json

from tests.cli.command import Cli
from tests.cli.scripted import Json, Script, say

ADA = """
name: Ada
role: an analyst
greeting: What shall we count?
self_facts: [{facts}]
memory: true
skills: [skills]
"""
SKILL = "---\nname: csv\ndescription: Sum columns.\n---\nSum them.\n"


def _system(body: Json) -> str:
    return str(body["messages"][0]["content"])


def test_a_chat_with_a_persona_that_remembers(cli: Cli, script: Script) -> None:
    asked: list[Json] = []

    def answer(body: Json) -> Json:
        asked.append(body)
        return say(f"answer {len(asked)}")

    server = script(answer)
    facts = ", ".join(f'"Fact {n} {"x" * 90}"' for n in range(100))
    cli.write("ada.yaml", ADA.replace("{facts}", facts))
    cli.write("skills/csv/SKILL.md", SKILL)
    base = ["-m", "m", "--base-url", server.url]
    first = cli(
        "chat", *base, "--persona", "ada.yaml", "--user", "bo", text="My favourite drink is green tea.\n"
    )
    assert first.code == 0, first
    assert "Ada: What shall we count?" in first.out
    assert "no memories about 'bo' yet" in first.out
    assert "self facts: " in first.err
    assert "did not fit into 1,000 tokens" in first.err
    assert "the skill 'csv' is not trusted yet" in first.out
    assert _system(asked[0]).startswith("You are Ada, an analyst.")
    second = cli("run", "Which drink is my favourite?", *base, "--persona", "ada.yaml", "--user", "bo")
    assert second.code == 0, second
    assert "green tea" in asked[1]["messages"][1]["content"]
    told = next(line for line in cli("show", "last").out.splitlines() if "Treadle recalled" in line)
    assert told.startswith("! Treadle recalled: <memory-")
    assert "green tea" in told
    assert "green tea" in "".join(cli("show", "last", "--full").out.split("</memory-")[:1])
    other = cli("run", "Which drink is my favourite?", *base, "--persona", "ada.yaml", "--user", "eve")
    assert other.code == 0, other
    assert "green tea" not in asked[2]["messages"][1]["content"]
    again = cli("chat", "--continue", text="And now?\n")
    assert again.code == 0, again
    assert _system(asked[3]) == _system(asked[0])
    assert "2 memories about 'bo' from earlier" in again.out
    refused = cli("chat", "--continue", "--persona", "ada.yaml", text="")
    assert (refused.code, "a session keeps its persona" in refused.err) == (2, True), refused


def test_pieces_of_documents_are_not_called_memories(cli: Cli) -> None:
    """They are found by a search, and shown in a line each."""
    sections = "\n\n".join([f"## Machine {n}\n\nIt needs oil.\n{'Clean it. ' * 90}" for n in range(60)])
    cli.write("manual.md", f"# Manual\n\n{sections}\n")
    base = ("chat", "-m", "mock:echo", "--memory", "--user", "bo", "--document", "manual.md")
    first = cli(*base, text="/memory\n/remember I like tea\n/memory\n/memory machine 7\n")
    assert first.code == 0, first
    assert "no memories about 'bo' yet" in first.out
    assert "recalled in pieces: manual.md" in first.out
    assert "nothing is remembered" in first.err
    listed = [line for line in first.out.splitlines() if line.startswith(("self_facts-", "documents-"))]
    assert listed[0].endswith("I like tea")
    assert len(listed) > 1
    assert all("Machine 7" in line and len(line) < 250 for line in listed[1:])
    assert "1 memory about 'bo' from earlier" in cli(*base, text="").out


def test_a_user_without_a_memory_is_a_mistake(cli: Cli) -> None:
    """Unless the configuration names the user, for chats that have a memory."""
    cli.write("ada.yaml", "name: Ada\nmemory: true\n")
    of_ada = ["chat", "--persona", "ada.yaml", "--no-memory"]
    for command in (["chat"], ["run", "hello"], ["chat", "--no-memory"], of_ada):
        done = cli(*command, "-m", "mock:echo", "--user", "bo", text="hello\n")
        assert done.code == 2, done
        assert "add --memory, or leave --user out" in done.err
    cli.write("treadle.toml", 'model = "mock:echo"\n[chat]\nuser = "bo"\n')
    assert "You said: hello" in cli("chat", text="hello\n").out


def test_a_chat_begins_with_the_persona_of_the_configuration(cli: Cli) -> None:
    """`treadle memory` means the memory of that persona too."""
    cli.write("me/ada.yaml", "name: Ada\ngreeting: Hello.\nmemory: true\n")
    cli.write("eve.yaml", "name: Eve\ntools: [files]\n")
    cli.write("treadle.toml", 'model = "mock:echo"\n[chat]\npersona = "me/ada.yaml"\nuser = "bo"\n')
    first = cli("chat", text="My boat is called Alma.\n")
    assert "Ada: Hello." in first.out
    assert "no memories about 'bo' yet" in first.out
    assert "boat" in cli("memory", "list").out
    assert "--persona Ada --user bo" in cli("memory", "list", "--user", "eve").err
    assert "1 memory about 'bo'" in cli("chat", "-c", text="").out
    assert "1 memory about 'bo'" in cli("chat", text="").out
    assert "no memories about 'eve'" in cli("chat", "--user", "eve", text="").out
    assert "Eve" in cli("chat", "--persona", "eve.yaml", "--no-memory", text="").out
    none = cli("chat", "--persona", "none", text="")
    assert (none.out, none.code) == ("", 0), none


def test_a_persona_that_starts_programs_needs_trust(cli: Cli) -> None:
    cli.write("eve.yaml", "name: Eve\ntools: [evil.py]\n")
    cli.write("evil.py", "open('evil', 'w').close()\n\n\ndef look() -> str:\n    'Look.'\n    return ''\n")
    base = ("run", "hi", "-m", "mock:echo", "--persona", "eve.yaml")
    refused = cli(*base)
    assert refused.code != 0
    assert "would do more than work in its sandbox" in refused.err
    assert "pass --trust" in refused.err
    assert not (cli.folder / "evil").exists()
    shown = cli("persona", "show", "eve.yaml")
    assert "would import the file" in shown.err
    assert not (cli.folder / "evil").exists()
    assert cli("persona", "trust", "eve.yaml").code == 0
    assert cli(*base).code == 0
    assert (cli.folder / "evil").exists()
    cli.write("eve.yaml", "name: Eve\nrole: other\ntools: [evil.py]\n")
    assert cli(*base).code != 0
    assert cli(*base, "--trust").code == 0
    assert cli(*base).code == 0


def test_the_commands_of_personas(cli: Cli) -> None:
    cli.write("ada.yaml", "nmae: Ada\ntone: 7\n")
    checked = cli("persona", "check", "ada.yaml")
    assert checked.code != 0
    for part in ("ada.yaml:1: nmae: there is no such key; did you mean 'name'?", "ada.yaml:2: tone"):
        assert part in checked.err
    cli.write("ada.yaml", "name: Ada\nconstraints: [Never guess.]\n")
    assert cli("persona", "check", "ada.yaml").code == 0
    assert "1. Never guess." in cli("persona", "show", "ada.yaml").out
    schema = json.loads(cli("schema", "persona").out)
    assert "constraints" in schema["properties"]


def test_the_commands_of_skills(cli: Cli) -> None:
    cli.write("skills/csv/SKILL.md", SKILL)
    cli.write("skills/bad/SKILL.md", "---\nname: good\n---\n")
    listed = {item["name"]: item["trust"] for item in cli("skills", "list", "--json").lines}
    assert listed == {"csv": "untrusted", "skill-writing": "builtin"}
    checked = cli("skills", "check", "skills")
    assert checked.code == 1
    assert "description: it is missing" in checked.err
    assert "Sum them." in cli("skills", "show", "csv").out
    assert "did you mean 'csv'" in cli("skills", "show", "cvs").err
    assert cli("skills", "trust", "csv").code == 0
    assert " trusted" in cli("skills", "list").out
    assert cli("skills", "trust", "csv", "--allow").code == 0
    assert " allowed" in cli("skills", "list").out
    assert cli("skills", "trust", "csv", "--revoke").code == 0
    assert "untrusted" in cli("skills", "list").out


def test_an_untrusted_skill_is_not_used_where_nobody_can_be_asked(cli: Cli) -> None:
    cli.write("skills/csv/SKILL.md", SKILL)
    base = ("run", 'call use_skill {"name": "csv"}', "-m", "mock:echo", "--skills", "skills")
    first = cli(*base)
    assert first.code == 0, first
    assert "treadle skills trust csv" in first.out + first.err
    assert cli("skills", "trust", "csv").code == 0
    second = cli(*base)
    assert "Sum them." in second.out, second


def test_who_judges_the_messages_of_a_chat(cli: Cli) -> None:
    """The option counts before the persona, and the persona before the configuration."""
    cli.write("eve.yaml", "name: Eve\njudge: patterns\n")

    def judge_of(*options: str, command: str = "chat") -> Json:
        given = ("-m", "mock:echo", *options)
        shown = cli("run", "hi", *given) if command == "run" else cli("chat", *given, text="hi\n")
        assert shown.code == 0, shown
        started = cli("show", "last", "--json").lines[0]
        return (started["agent"].get("context") or {}).get("judge")

    assert judge_of() == {"name": "patterns"}
    assert judge_of(command="run") is None
    assert judge_of("--judge", "none") is None
    assert judge_of("--judge", "patterns", command="run") == {"name": "patterns"}
    cli.write("treadle.toml", 'judge = "none"\n')
    assert judge_of() is None
    assert judge_of("--persona", "eve.yaml") == {"name": "patterns"}
    assert judge_of("--persona", "eve.yaml", "--judge", "none") is None
    wrong = cli("chat", "-m", "mock:echo", "--judge", "pattern", text="hi\n")
    assert (wrong.code, "did you mean 'patterns'" in wrong.err) == (2, True), wrong
    kept = cli("chat", "--continue", "--judge", "patterns", text="hi\n")
    assert (kept.code, "a session keeps its persona" in kept.err) == (2, True), kept
