"""The teacher plays every role of a generation: it writes topics, scenarios, users' turns and judgements, and it is
the agent."""

import json
import os
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from treadle import model, tool
from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.types import Json, Message, Role
from treadle.datagen.config.generation_config import GenerationConfig, Personas
from treadle.datagen.conversations.dialogue import REPAIR
from treadle.datagen.conversations.make import MadeSample, make_sample
from treadle.datagen.conversations.studio import Studio, is_farewell
from treadle.datagen.quality.signatures import content_words
from treadle.datagen.scenarios.cast import draw_persona, read_population
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.kinds import plan_kind, possible_kinds
from treadle.datagen.scenarios.scenario import Difficulty, Kind, SampleSpec, write_facts
from treadle.datagen.topics.topic_graph import SimilarIndex, words_of
from treadle.journal.memory import MemoryJournal
from treadle.models.wrappers.format_model import FormatModel
from treadle.tasks.draws import Draw
from treadle.tasks.files import TASK_SET
from treadle.testbed.built_in import BuiltInRequest
from treadle.testbed.roles.agent_role import find_request
from treadle.testbed.roles.errands import Shelf, errands, find_errand
from treadle.testbed.roles.speakers import (
    WritingManner,
    ask_more,
    frame,
    keeps_style,
    manner_of,
    tell,
    write_user_turn,
)
from treadle.testbed.roles.talks import find_talk, talks
from treadle.testbed.roles.words import words
from treadle.testbed.teacher import TeacherModel
from treadle.trajectory.run_verification import verify_run

SAMPLES = 300 if os.environ.get("TREADLE_FULL") else 40
"""How many samples of each kind are made."""
TASKS: Mapping[str, Json] = {"use": ["files"], "files": "tasks:files"}


def ask(facts: Mapping[str, Json]) -> dict[str, Json]:
    messages = [Message(Role.SYSTEM, "You write."), Message(Role.USER, write_facts(dict(facts)))]
    return json.loads(TeacherModel().answer(BuiltInRequest(messages)).message.content)


def topic_of(number: int) -> tuple[str, ...]:
    made = ask({"write": "subtopics", "path": ["Office work"], "count": 1, "seed": number})
    return ("Office work", made["subtopics"][0]["topic"])


class Making:
    """Samples that are made by the teacher with the given tools and form of conversation."""

    def __init__(self, tools: Mapping[str, Json], turns: int = 1, name: str = "mock:teacher", **form: Json):
        conversation = {"max_turns": turns, "min_turns": turns, **form}
        config = GenerationConfig.model_validate(
            {
                "topics": {"prompt": "Office work"},
                "tools": tools,
                "generation": {"conversation": conversation},
            }
        )
        self.journal = MemoryJournal()
        self.turns = turns
        environments = open_environments(config.tools, 0)
        self.studio = Studio(config, {"default": model(name)}, self.journal, environments)

    async def make(self, number: int, kind: Kind | None) -> MadeSample:
        spec = SampleSpec(
            number=number,
            topic_id="t",
            topic=topic_of(number),
            kind=kind,
            difficulty=Difficulty.EASY,
            persona=draw_persona(0, number, Personas()),
            turns=self.turns,
            seed=number * 7919,
        )
        made = await make_sample(self.studio, spec)
        assert made.error is None, made.error
        assert made.row is not None
        return made


def shown(made: MadeSample) -> tuple[str, ...]:
    assert made.row is not None
    assert made.row.lineage.sample is not None
    return made.row.lineage.sample.kinds


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("kind", Kind)
async def test_each_kind_plays_out_with_real_tools(kind, turns):
    making = Making(TASKS, turns)
    for number in range(1, SAMPLES // turns + 1):
        made = await making.make(number, kind)
        assert kind in shown(made), made.row
        assert made.row.lineage.sample.turns == turns
        assert made.row.lineage.sample.is_from_teacher
        assert made.row.lineage.reward == (1.0 if made.dialogue.environment.task else None)
        assert all(item.reasoning for item in made.row.messages if item.tool_calls)
        verification = await verify_run(making.journal, made.run_id)
        assert verification.matched == verification.calls


WEATHER = {
    "name": "get_weather",
    "description": "Return the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city"],
    },
}
TICKET = {
    "name": "create_ticket",
    "description": "Create a ticket.",
    "parameters": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 3},
            "priority": {"type": "string", "enum": ["low", "high"]},
            "labels": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["title", "priority"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("kind", Kind)
async def test_each_kind_plays_out_with_any_tools(kind, turns):
    making = Making({"definitions": [WEATHER, TICKET]}, turns)
    for number in range(1, 16):
        assert kind in shown(await making.make(number, kind))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "files", [{"empty.bin": "\0"}, {"notes.txt": "milk\nbread\n", "prices.csv": "name,price\nbook,12\n"}]
)
async def test_each_kind_plays_out_with_the_tools_of_deepfabric(kind, files):
    """With few files, and with none that can be read."""
    making = Making({"use": ["vfs"], "files": files})
    for number in range(1, 13):
        made = await making.make(number, kind)
        assert kind in shown(made), made.row.messages


@pytest.mark.parametrize("kind", [Kind.SINGLE, Kind.CHAINED, Kind.PARALLEL])
async def test_mistakes_are_made_and_corrected(kind):
    making = Making({**TASKS, "max_steps": 40}, name="mock:teacher:0.5")
    errors = 0
    for number in range(1, 21):
        made = await making.make(number, kind)
        assert made.row.lineage.sample.is_from_teacher
        assert made.row.lineage.reward == (1.0 if made.dialogue.environment.task else None)
        errors += len(made.row.lineage.tool_errors)
    assert errors > 5


@pytest.mark.parametrize("reasoning", ["freetext", "agent"])
async def test_a_chain_of_thought_leads_to_a_correct_answer(reasoning):
    making = Making({}, type="cot", reasoning=reasoning)
    for number in range(1, 21):
        made = await making.make(number, None)
        last = made.row.messages[-1]
        assert last.reasoning
        assert len(last.reasoning) > len(last.content) / 2


async def test_answers_fit_the_schema_of_the_rows():
    properties = {
        "question": {"type": "string"},
        "reasoning": {"type": "string"},
        "answer": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "level": {"enum": ["low", "high"]},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    making = Making({}, type="basic", output_schema=schema)
    levels = set()
    for number in range(1, 13):
        made = await making.make(number, None)
        value = json.loads(made.row.messages[-1].content)
        assert value["question"] == made.scenario.message != value["answer"]
        assert len(value["tags"]) >= 2
        levels.add(value["level"])
    assert levels == {"low", "high"}


@pytest.mark.full
async def test_requests_are_not_near_duplicates():
    """The words of two requests, without numbers and names, are less than 60 % the same."""
    making = Making(TASKS)
    count, kept = 7 * SAMPLES, []
    for number in range(1, count + 1):
        kind = list(Kind)[number % len(Kind)]
        spec_facts = await making.make(number, kind)
        words = content_words(spec_facts.scenario.message)
        if not any(len(words & other) >= 0.6 * len(words | other) for other in kept):
            kept.append(words)
    assert len(kept) >= 0.97 * count


@pytest.mark.parametrize("root", ["Office automation for small companies", "Python"])
def test_a_tree_of_topics_has_no_near_duplicates(root):
    index: SimilarIndex[str] = SimilarIndex(0.85)
    level, count, similar = [(root,)], 0, 0
    for degree in (17, 17, 17) if SAMPLES > 100 else (17, 17, 5):
        following = []
        for path in level:
            for item in ask({"write": "subtopics", "path": list(path), "count": degree, "seed": 1})[
                "subtopics"
            ]:
                words = words_of(item["topic"])
                similar += index.find(words) is not None
                index.add(words, item["topic"])
                following.append((*path, item["topic"]))
        level = following
        count += len(level)
    assert count >= 1700
    assert similar == 0


@pytest.mark.parametrize("mode", ["tree", "graph"])
def test_topics_depend_on_the_facts_alone(mode):
    facts = {
        "write": "subtopics",
        "path": ["Kitchens"],
        "count": 5,
        "mode": mode,
        "existing": [{"id": "a1", "topic": "Planning daily recipes"}],
        "seed": 1,
    }
    made = ask(facts)
    assert made == ask(facts) != ask({**facts, "seed": 2})
    assert made != ask({**facts, "attempt": 2})
    assert len({item["topic"] for item in made["subtopics"]}) == 5
    connections = [one for item in made["subtopics"] for one in item.get("connections", ())]
    assert set(connections) == ({"a1"} if mode == "graph" else set())


def test_siblings_and_existing_topics_are_not_repeated():
    facts = {"write": "subtopics", "path": ["Kitchens"], "count": 8, "seed": 1}
    first = [item["topic"] for item in ask(facts)["subtopics"]]
    again = ask({**facts, "siblings": first[:4], "existing": [{"id": "x", "topic": first[5]}]})
    assert not {item["topic"] for item in again["subtopics"]} & {*first[:4], first[5]}


def test_mistakes_of_the_writer_of_topics():
    existing = [{"id": "a1", "topic": "Planning daily recipes"}]
    facts = {
        "write": "subtopics",
        "path": ["K"],
        "count": 20,
        "mode": "graph",
        "existing": existing,
        "seed": 1,
    }
    answer = TeacherModel(mistake_rate=1.0).answer(BuiltInRequest([Message(Role.USER, write_facts(facts))]))
    made = json.loads(answer.message.content)["subtopics"]
    assert "unknown-topic" in made[0]["connections"]
    assert made[-1]["topic"] == "Planning daily recipes"


def test_each_wording_of_an_errand_is_understood():
    shelf = Shelf(
        {
            "notes.txt": "Ask about the budget.\nThe second line has words.\nAnd a third.\nThe end.\n",
            "a/data.csv": "name,price\nbook,12\ntable,90\n",
            "a/b/settings.json": '{\n  "colour": "green",\n  "size": 4,\n  "list": [1]\n}\n',
            "README.md": "Some words here, and more words.\nAnother line.\nThird.\nFourth.\n",
        },
        short=frozenset({"notes.txt", "a/data.csv", "README.md"}),
    )
    for errand in errands():
        for number in range(10):
            values = errand.draw(shelf, Draw(str(number)))
            assert values is not None, errand.name
            for prompt in (*errand.prompts, *errand.gapped):
                found = find_errand(prompt.render(values))
                assert found is not None
                assert found.errand.name == errand.name, prompt.text
                assert found.is_gapped is (prompt in errand.gapped)
                expected = {name: value for name, value in values.items() if name in prompt.fields}
                assert dict(found.values) == expected


@pytest.mark.parametrize("sort", ["problems", "definitions", "refusals"])
def test_each_wording_of_a_talk_is_understood(sort):
    for talk in talks(sort):
        for number in range(10):
            values = talk.draw("old invoices", Draw(str(number)))
            for wording in talk.prompts:
                found = find_talk(wording.render(values))
                assert found is not None, wording.text
                assert found[0] is talk, wording.text
                reply = talk.reply(found[1], ["read_file"])
                assert reply.text, wording.text
                assert reply.reasoning, wording.text
                assert "{" not in reply.text + reply.reasoning


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder", "glm45", "mistral"])
async def test_tools_can_be_text(format):
    agent = Agent(FormatModel(TeacherModel(mistake_rate=0.2), format), journal=MemoryJournal())
    for name in ("csv_sum-0001", "todo_count-0003", "version_bump-0002", "limit_rule-0002"):
        run = await agent.run(TASK_SET.get(name))
        assert run.reward == 1.0, run.error or run.output


async def test_a_text_format_that_cannot_be_told_is_an_error():
    run = await Agent(FormatModel(TeacherModel(), "kimi_k2"), journal=MemoryJournal()).run(
        TASK_SET.get("csv_sum-0001")
    )
    assert "cannot tell in which text format" in run.error


def test_a_further_request_is_no_farewell():
    """A message that only thanks would end the conversation."""
    answers = ("notes.txt has 14 lines.", "It is a/b.md.", "Thanks to Ada, it is done.")
    manners = [manner_of({"style": style}) for style in read_population().styles]
    messages = {ask_more("Name it.", answer, manner, 1) for manner in manners for answer in answers}
    assert len(messages) > 4
    assert not any(is_farewell(message) for message in messages)


async def test_a_text_about_errors_is_not_an_error(start):
    """Over HTTP a result has no flag that says whether it is an error."""
    remote = model("openai:teacher", base_url=(await start()).url, api_key="any")
    run = await Agent(remote, tools=["files"], journal=MemoryJournal()).run(
        "How many lines does a.txt have?", files={"a.txt": "Error codes\n\n404\n"}
    )
    assert run.output == "a.txt has 3 lines."


async def test_a_request_that_it_does_not_know_gets_an_honest_answer():
    @tool(effect="pure")
    async def ping() -> str:
        """Ping."""
        return "pong"

    run = await Agent(model("mock:teacher"), tools=["files"], journal=MemoryJournal()).run(
        "Could you look into data.txt and sing it?", files={"data.txt": "la\nla\n"}
    )
    assert run.output == "data.txt has 2 lines and begins with: la"
    run = await Agent(model("mock:teacher"), tools=[ping], journal=MemoryJournal()).run("Sing!")
    assert run.output == "I can say little about this: Sing!"


def test_the_judge_finds_what_is_missing():
    good = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Done."}]
    call = {"role": "assistant", "content": "", "calls": [{"name": "x", "arguments": "{}"}]}
    facts = {"write": "judgement", "rubric": "r", "goal": "g"}
    assert ask({**facts, "conversation": good})["score"] == 1.0
    assert ask({**facts, "conversation": good[:1]})["score"] < 1.0
    assert ask({**facts, "conversation": [good[0], call, good[1]]})["reason"] == "1 tool calls have 0 results"


@pytest.mark.parametrize("name", ["mock:teachers", "mock:teacher:often", "mock:teacher:2"])
def test_names_that_do_not_exist(name):
    with pytest.raises(ConfigError):
        model(name)


async def test_over_http_it_does_the_same_as_in_the_process(start):
    server = await start()
    here = Making(TASKS)
    there = Making(TASKS)
    remote = model("openai:teacher", base_url=server.url, api_key="any")
    there.studio = Studio(there.studio.config, {"default": remote}, there.journal, there.studio.environments)
    for number, kind in enumerate(Kind, 1):
        one, two = await here.make(number, kind), await there.make(number, kind)
        assert one.scenario == two.scenario
        assert [item.content for item in one.row.messages] == [item.content for item in two.row.messages]
        assert two.row.lineage.sample.is_from_teacher


def speak(style, number=1):
    """Return a message of a persona with this style, and its request."""
    request = "How many lines does notes.txt have?"
    manner = manner_of({"style": style, "role": "baker"})
    return frame(request, "Sorting invoices", manner, Draw(f"{style}/{number}")), request


@pytest.mark.parametrize("number", range(12))
def test_a_message_has_the_habits_that_its_style_claims(number):
    text, request = speak("dry, in lower case", number)
    assert text.replace("notes.txt", "").islower()
    assert speak("shy, with the background first and the request last", number)[0].endswith(request)
    assert speak("brief, with the request first and the reason after it", number)[0].partition("\n\n")[0] in (
        request,
        *words("greetings", "brief"),
    )
    text, request = speak("worried, as a list of points", number)
    assert all(part.startswith("- ") for part in text.split("\n\n"))
    assert speak("casual, with an occasional typing error", number)[0] != speak("casual", number)[0]
    short, long = [speak(f"precise, with {length} sentences", number)[0] for length in ("short", "long")]
    assert max(map(len, short.split(". "))) < max(map(len, long.split(". ")))
    text, _ = speak("businesslike, with a deadline in mind", number)
    assert any(closing in text for closing in words("closings", "deadline"))
    for message in (text, short, long, speak("dry, in lower case", number)[0]):
        assert find_request(message).errand.values["path"] == "notes.txt"


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize(
    ("habit", "request_"),
    [
        ("instruction", "How many lines does notes.txt have?"),
        ("question", "Add this line at the end of notes.txt: Call before noon."),
    ],
)
def test_a_request_in_another_form_than_its_style_ends_in_this_form(habit, request_, number):
    manner = manner_of(
        {"style": f"brief, as {'a' if habit == 'question' else 'an'} {habit}", "role": "baker"}
    )
    for text in (
        frame(request_, "Sorting invoices", manner, Draw(f"{number}")),
        ask_more(request_, "Done.", manner, number),
    ):
        assert text.endswith("?") is (habit == "question")
        assert find_request(text).errand is not None


def test_a_style_that_the_teacher_does_not_know_is_not_claimed():
    assert all(map(keeps_style, read_population().styles))
    assert not any(map(keeps_style, ["IN ALL CAPS", "in rhymes", "brief, in rhymes", ""]))


@pytest.mark.parametrize("style", read_population().styles)
def test_what_a_user_says_later_has_the_habits_too(style):
    request, answer = "How many lines does README.md have?", "Done. a/Notes.txt has 4 lines."
    manner = manner_of({"style": style, "role": "architect"})
    more = {ask_more(request, answer, manner, number) for number in range(20)}
    told = {tell("The file is README.md.", manner, number) for number in range(20)}
    for text in more | told:
        assert "{" not in text
        assert not text.islower() or "in lower case" in style
    for text in more:
        assert find_request(text).errand.values["path"] == "README.md"
        parts = text.split("\n\n")
        assert not style.endswith("points") or all(part.startswith("- ") for part in parts)
        assert parts[0].startswith("How many") is ("request first" in style)
        assert ("." in parts[0].replace(".txt", "")) <= ("long sentences" not in style)
        if "in lower case" in style:
            assert text.replace("README.md", "").islower()
        if "deadline" in style:
            assert any(closing in text for closing in words("closings", "deadline"))
    if "in lower case" in style:
        assert all(text.replace("README.md", "").islower() for text in told)
    if "typing error" in style:
        plain = {ask_more(request, answer, replace(manner, habit=""), number) for number in range(20)}
        assert more - plain
    user = Message(Role.USER, answer)
    persona = {"style": style, "role": "architect"}
    facts = {"goal": f"Say hello.\nAfterwards: {request}", "turns_left": 3, "persona": persona}
    first = write_user_turn(facts, [user])
    assert find_request(first["message"]).errand is not None
    said = Message(Role.ASSISTANT, json.dumps(first))
    assert write_user_turn(facts, [user, said, user])["is_done"]


@pytest.mark.parametrize(
    ("style", "tone"), [("informal, from a laundry", "plain"), ("formal", "formal"), ("dry", "dry")]
)
def test_a_style_is_not_found_within_other_words(style, tone):
    assert manner_of({"style": style}).tone == tone


def test_articles_fit_the_role():
    for role, article in (("university administrator", "a"), ("urban farmer", "an"), ("optician", "an")):
        manner = manner_of({"style": "with the terms of the trade", "role": role})
        text = " ".join(manner.words("closings", "trade"))
        assert f"{article} {role}" in text
        assert f"{'an' if article == 'a' else 'a'} {role}" not in text


def test_words_of_an_answer_are_quoted_whole_or_with_an_ellipsis():
    manner = manner_of({"style": "precise"})
    for answer, said in (
        ("So: 243 of the old dates were already accepted.", '"243 of the old dates were already …"'),
        ("Answer: +30 505 8034", '"+30 505 8034"'),
        ("Okay. They differ.", '"They differ"'),
        ("Result: get_weather says: status success", "get_weather"),
    ):
        assert all(said in ask_more("Name it.", answer, manner, number) for number in range(20))


def test_a_user_does_not_take_up_what_stands_around_a_result():
    manner = manner_of({"style": "precise"})
    said = {ask_more("Name it.", "Result: get_weather says: status success", manner, n) for n in range(20)}
    assert not any("says" in text for text in said)


async def test_nothing_follows_what_an_answer_quotes():
    agent = Agent(model("mock:teacher"), tools=["files"], journal=MemoryJournal())
    for number in range(30):
        said = f"Number {number}.\n\nQuote the first line of notes.txt for me."
        run = await agent.run(said, files={"notes.txt": "Storage\nOther\n"})
        assert run.output.endswith("is: Storage")


@pytest.mark.parametrize(
    "asked", ["Quote the first line of notes.txt for me.", "How many lines does notes.txt have?"]
)
async def test_an_answer_that_is_asked_for_again_is_about_the_same_request(asked):
    agent = Agent(model("mock:teacher"), tools=["files"], journal=MemoryJournal())
    async with agent.session(files={"notes.txt": "Storage\nOther\n"}) as session:
        await session.send(f"Hello.\n\n{asked}")
        for _ in range(2):
            run = await session.send(REPAIR.format(reasons="- nobody knows '7'"))
            assert run.output in ("The first line of notes.txt is: Storage", "notes.txt has 2 lines.")
            assert not run.state.transcript[-2].tool_calls


def test_subtopics_are_about_what_the_root_is_about():
    facts = {
        "write": "subtopics",
        "path": ["Running a small hotel with a restaurant"],
        "count": 20,
        "seed": 1,
    }
    made = [item["topic"] for item in ask(facts)["subtopics"]]
    assert not any("Running" in topic for topic in made)
    assert sum("small hotel" in topic for topic in made) > 10


async def test_further_requests_need_tools_and_take_up_the_answer():
    making, follow_ups, with_calls, answers = Making(TASKS, 3), 0, 0, []
    kinds = possible_kinds({}, has_tools=True)
    for number in range(1, SAMPLES + 1):
        messages = (await making.make(number, plan_kind(number, kinds))).row.messages
        asked = [index for index, message in enumerate(messages) if message.role is Role.USER]
        for start, end in zip(asked, [*asked[1:], len(messages)], strict=True):
            answers.append(messages[end - 1].content)
            before = messages[start - 1].content
            if start == asked[0] or before.rstrip().endswith("?"):
                continue
            follow_ups += 1
            with_calls += any(message.tool_calls for message in messages[start:end])
            parts = messages[start].content.split("\n\n")
            taken_up = " ".join([part for part in parts if find_request(part) is None]).casefold()
            assert any(word.strip(",.") in before.casefold() for word in taken_up.replace('"', " ").split())
    assert with_calls >= follow_ups / 2
    assert len(set(answers)) > 0.95 * len(answers)


def test_a_role_may_be_written_with_its_article():
    for role in ("nun", "a nun", "A nun"):
        assert WritingManner("plain", "", role).fill("{a_role}, {role}") == "a nun, nun"
    assert WritingManner("plain", "", "an owner of animals").fill("{a_role}") == "an owner of animals"


async def test_what_is_missing_is_asked_for_in_other_words_each_time():
    agent = Agent(model("mock:teacher"), tools=["files"], journal=MemoryJournal())
    note = "The guest lists were counted twice."
    request = f"Write down the following in a file of its own: {note} We use it for the guest lists."
    said = {(await agent.run(f"Note {number}.\n\n{request}")).output for number in range(40)}
    assert all(text.rstrip().endswith(("?", ".")) and "guest lists" in text for text in said)
    assert len(said) >= 25
