"""The mediocre model lies as often as it was told to, and its ledger says where."""

import json
import shutil
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from benchmarks.lies import SPLITS, find_texts

from treadle import model
from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.types import Message, Role, ToolSpec
from treadle.datagen.scenarios.scenario import write_facts
from treadle.tasks.draws import Draw
from treadle.tasks.files.materials import COMPANIES
from treadle.testbed.built_in import BuiltInRequest
from treadle.testbed.mediocre.composition import compose
from treadle.testbed.mediocre.figures import FIGURES, rewrite, spell
from treadle.testbed.mediocre.mediocre_model import MediocreModel, answer, read_options, truth_of
from treadle.testbed.mediocre.mock_world import (
    define_tools,
    load_phrases,
    load_world,
    make_documents,
    record_tools,
)
from treadle.testbed.mediocre.observations import Grid, Observed, to_fact
from treadle.testbed.mediocre.remarks import Remark, remarks_of
from treadle.testbed.mediocre.voice import Voice, say
from treadle.testbed.mediocre.wants import draw_request, find_want
from treadle.testbed.roles.errands import Shelf
from treadle.tools.mock.mocks import mock

TEXTS = [pytest.param(find_texts(name), id=name) for name in SPLITS]
SHARED = {
    "eleventh": 11,
    "fourteenth": 6,
    "sixteenth": 4,
    "eighteenth": 2,
    "twentythird": 2,
    "twentyninth": 4,
}
"""How many sentences of some splits may stand in another."""
LATER, FOURTH, SEVENTH, EIGHTH, NINTH = map(find_texts, ("later", "fourth", "seventh", "eighth", "ninth"))


def requests(split):
    """Return a request for each wording about a mock tool, and some about tables."""
    made = []
    for tool in record_tools(split).values():
        for number, texts in enumerate(tool.entry["asks"].values()):
            made += [text.replace("{id}", tool.ids()[number]) for text in texts]
    tables = [path for path in make_documents(split) if path.endswith(".csv")]
    for want in load_world(split)["wants"].values():
        if set(want.get("draw", ())) <= {"path"} and want["needs"] in ("read", "list"):
            made += [text.replace("{path}", path) for text in want["asks"] for path in tables]
    return made


async def converse(options, split, tmp_path):
    """Return the truths about the answers to all requests, each with the messages before it."""
    (tmp_path / "tools.json").write_text(json.dumps(define_tools(split)))
    name = f"mediocre:texts={split},{options}"
    tools = [mock(str(tmp_path / "tools.json")), "files"]
    found = []
    async with Agent(model(f"mock:{name}"), tools=tools, journal="memory:") as agent:
        for text in requests(split):
            run = await agent.run(text, files=make_documents(split))
            messages = list(run.state.transcript)
            truths = truth_of(messages, run.state.tools, read_options(name))
            assert len(truths) == 1, messages
            found.append((truths[0], messages))
    return found


@pytest.mark.parametrize("split", TEXTS)
async def test_the_ledger_names_the_sentence_of_every_lie(split, tmp_path):
    kinds = Counter()
    honest = {item[1][0].content: item[1][-1] for item in await converse("lies=0,cuts=0", split, tmp_path)}
    for truth, messages in await converse("lies=1,cuts=0,refusals=0", split, tmp_path):
        if truth.falsehood is None:
            continue
        kinds[truth.falsehood.kind] += 1
        answer = messages[-1].content
        assert truth.falsehood.sentence in answer
        said = truth.falsehood.sentence.casefold()
        assert all([value.casefold() in said for value in truth.falsehood.claimed])
        assert answer != honest[messages[0].content].content
    assert kinds.total() > 0.9 * len(honest)
    assert len(kinds) >= 14
    assert set(kinds) <= set(FIGURES["kinds"])


@pytest.mark.parametrize("split", TEXTS[1:])
async def test_an_honest_model_says_nothing_untrue(split, tmp_path):
    sorts = Counter(
        [item[0].sort for item in await converse("lies=0,faults=0,refusals=0,cuts=0", split, tmp_path)]
    )
    assert set(sorts) == {"honest"}


@pytest.mark.parametrize("split", TEXTS)
def test_a_request_takes_its_words_from_its_own_split(split):
    tools = [ToolSpec("search_files", "", {"type": "object", "properties": {"pattern": {"type": "string"}}})]
    words = set(load_world(split)["documents"]["words"].split("|"))
    drawn = [draw_request(split, "single", tools, Shelf({}), Draw(str(seed))) for seed in range(20)]
    assert {find_want(item.request, split).values["word"] for item in drawn} <= words


@pytest.mark.parametrize("options", ["lies=2", "truth=1", "lies=often"])
def test_unknown_options_are_refused(options):
    with pytest.raises(ConfigError, match=options):
        model(f"mock:mediocre:{options}")


def test_texts_are_a_split_of_the_package_or_a_folder(tmp_path):
    for name in ("world", "phrases"):
        shutil.copy(Path(FOURTH) / f"{name}.toml", tmp_path)
    assert read_options(f"mediocre:texts={tmp_path}").texts == str(tmp_path)
    for texts in ("mine", tmp_path / "none"):
        with pytest.raises(ConfigError, match=f"{texts}.*write texts=held, or the path of a folder"):
            model(f"mock:mediocre:texts={texts}")


def test_remarks_without_wordings_are_named(tmp_path):
    shutil.copy(Path(FOURTH) / "world.toml", tmp_path)
    text = (Path(FOURTH) / "phrases.toml").read_text()
    (tmp_path / "phrases.toml").write_text(text.replace("[remarks.gap]", "[remarks.other]"))
    with pytest.raises(ConfigError, match="have no wording for the remarks gap"):
        model(f"mock:mediocre:texts={tmp_path}")


@pytest.mark.parametrize(
    ("content", "message"),
    [("[tools]\n", r"lacks \[documents\], \[wants\]"), ("[tools", "cannot be read: ")],
)
def test_damaged_texts_are_named(content, message, tmp_path):
    (tmp_path / "world.toml").write_text(content)
    with pytest.raises(ConfigError, match=f"world.toml.*{message}"):
        model(f"mock:mediocre:texts={tmp_path}")


@pytest.mark.parametrize(
    ("text", "sort", "forms"),
    [
        ("10 %", "gap", {"10 percentage points", "10 pp"}),
        ("7.5 kg", "value", {"7½ kg", "7 and a half kg", "7,5 kg", "7.5 kg"}),
        ("half", "share", {"one half", "one in two", "½", "half"}),
        ("4 March 2026", "moment", {"4th March 2026", "the 4th day of March 2026", "March the 4th, 2026"}),
        ("about €1,200", "value", {"between €1,100 and €1,300", "€1,100 to €1,300", "€1,100–€1,300"}),
    ],
)
def test_a_split_has_other_forms_of_figures(text, sort, forms):
    styles = load_phrases(LATER)["figures"]
    made = {rewrite(text, sort, styles, Draw(str(seed))) for seed in range(200)}
    shown = {item.replace("\u00a0", " ").replace("\u202f", " ") for item in made}
    assert forms <= shown | {text}
    assert len(made) > 1


@pytest.mark.parametrize(
    ("text", "sort", "field", "forms"),
    [
        ("2026-03-04", "moment", "", {"04-Mar-2026", "2026-W10-3", "Wednesday, March 04"}),
        ("14:05", "moment", "", {"five past two in the afternoon"}),
        ("11:45", "moment", "", {"a quarter to twelve in the morning"}),
        ("420 s", "value", "", {"7 min 0 s", "7 minutes and 0 seconds"}),
        ("90 min", "value", "", {"1 h 30 min", "1h30"}),
        ("42", "value", "", {"forty-two"}),
        ("about 1,200 kg", "value", "", {"1,200 ± 100 kg", "anywhere from 1,100 to 1,300 kg"}),
        ("33.3 %", "share", "", {"333 ‰"}),
        ("highest", "extreme", "most", {"top", "largest"}),
        ("hut/parcels.csv", "count", "owner", {"`hut/parcels.csv`", "./hut/parcels.csv"}),
        ("hut/parcels.csv", "count", "", {"hut/parcels.csv"}),
    ],
)
def test_rules_read_numbers_times_and_other_fields(text, sort, field, forms):
    styles = load_phrases(FOURTH)["figures"]
    assert forms <= {rewrite(text, sort, styles, Draw(str(seed)), field) for seed in range(400)}


def test_a_date_is_also_told_by_another_day_near_it_and_by_its_weekday():
    styles = load_phrases(SEVENTH)["figures"]
    made = {rewrite("2026-03-04", "moment", styles, Draw(str(seed))) for seed in range(400)}
    near = {"the day before March 5", "the day after March 3", "a week after February 25"}
    assert near | {"the first Wednesday of March"} <= made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "zero"),
        ("21", "twenty-one"),
        ("105", "one hundred and five"),
        ("1,250", "one thousand two hundred and fifty"),
        ("30,040", "thirty thousand and forty"),
    ],
)
def test_numbers_are_spelt(text, words):
    assert spell(text) == words


@pytest.mark.parametrize("split", TEXTS)
def test_layouts_show_every_line(split):
    parts = ("opener", "heading", "advice", "closer")
    for layouts in load_phrases(split).get("layouts", {}).values():
        for layout in filter(None, layouts):
            assert "{items}" in layout["text"]
            assert ("row" in layout) == ("{rows}" in layout["text"])
            assert not any(
                [f"{{{part}}}" in layout.get("head", "") + layout.get("foot", "") for part in parts]
            )


@pytest.mark.parametrize("split", TEXTS)
def test_a_request_about_a_tool_is_understood(split):
    for tool in record_tools(split).values():
        for texts in tool.entry["asks"].values():
            for text in texts:
                assert find_want(text.replace("{id}", tool.ids()[0]), split).calls == (
                    (f"{tool.name} {{id}}",),
                )


def test_a_lie_is_untrue_of_small_numbers_and_of_rows_with_the_same_name():
    rows = [{"name": "one", "size": 5}, {"name": "two", "size": 5}, {"name": "two", "size": 3}]
    fact = to_fact("rain_mm", "it", 10)
    small, none = to_fact("way_km", "it", 8), to_fact("way_km", "that", 0)
    seen = Observed([fact, small, none], [Grid("it", "rows", tuple(rows))], {}, [], [], {}, [], "")
    for seed in range(80):
        for remark in remarks_of(seen, load_phrases(LATER), Draw(str(seed))):
            for twist in remark.twists:
                assert not {"about 10 mm", "0 miles", "5 miles"} & set(twist.changed.values())
                if twist.kind == "wrong_order" and remark.values.get("most") == "highest":
                    assert twist.changed["item"] != "two"
            assert remark.values.get("all") != "among others "


def test_what_is_said_without_a_lie_is_true_and_a_lie_is_not():
    """Small values are not converted to 0, lines without the heading are no lie, and no amount is negative."""
    facts = [
        to_fact("wait_minutes", "it", 2),
        to_fact("run_seconds", "it", 20),
        to_fact("salt_percent", "it", 2.9),
    ]
    grid = Grid("a.csv", "rows", ({"name": "one"}, {"name": "two"}))
    seen = Observed(facts, [grid], {"a.csv": ["name", "one", "two"]}, [], [], {}, [], "")
    for seed in range(80):
        for remark in remarks_of(seen, load_phrases(LATER), Draw(str(seed))):
            if remark.sort == "converted":
                assert remark.values["other"] in ("0.033 hours", "0.0056 hours")
            for twist in remark.twists:
                assert remark.sort != "lines" or twist.changed["count"] not in ("2", "two")
                assert "-" not in twist.changed.get("value", "").removeprefix("twenty-")


@pytest.mark.parametrize("split", TEXTS)
def test_a_path_keeps_its_first_letter(split):
    voice = Voice("report", load_phrases(split), has_owners=True, mark="")
    remark = Remark("lines", {"owner": "hut/list.csv", "count": "3"}, "3")
    said = [say(remark, voice, Draw(str(seed))).text for seed in range(40)]
    assert all(["hut/list.csv" in text for text in said])


@pytest.mark.parametrize("split", TEXTS)
@pytest.mark.parametrize("kind", ["invented_quote", "undone_action", "made_up_path", "false_absence"])
def test_every_layout_shows_the_lie(split, kind):
    lines = ["The gate is locked at nine.", "Ask Ingrid for a key."]
    facts = [to_fact("rain_mm", "day 7", 12)]
    seen = Observed(facts, [], {"a/b.txt": lines}, ["a/b.txt", "c.md"], [("write", "d.txt")], {}, [], "day 7")
    for seed in range(300):
        made = compose(seen, split, (), (kind,), Draw(str(seed)))
        assert made.falsehood is not None
        assert made.falsehood.sentence in made.text


def test_a_made_up_name_is_one_that_the_rows_could_have():
    rows = [{"trail": "Birch Loop", "trail_km": 3}, {"trail": "Raven Ridge", "trail_km": 8}]
    fact = to_fact("brought_by", "it", COMPANIES[0])
    seen = Observed(
        [fact], [Grid("it", "rows", tuple(rows))], {}, [], [], {}, [], COMPANIES[0], load_world(FOURTH)
    )
    trails = load_world(FOURTH)["documents"]["tables"]["trails"]["trail"].removeprefix("choice ").split("|")
    made = {
        twist.changed.get("items", twist.changed.get("value", ""))
        for seed in range(20)
        for remark in remarks_of(seen, load_phrases(FOURTH), Draw(str(seed)))
        for twist in remark.twists
        if twist.kind == "made_up_name"
    }
    lists = made - set(COMPANIES)
    assert made & set(COMPANIES[1:])
    assert lists
    assert all([sum(trail in text for trail in trails) == 2 for text in lists])


def test_a_value_that_is_nearly_the_same_is_no_lie_about_its_owner():
    facts = [to_fact("spectators", "one", 12310), to_fact("spectators", "two", 12290)]
    facts += [to_fact("cars_aboard", "one", 12), to_fact("cars_aboard", "two", 13)]
    seen = Observed(facts, [], {}, [], [], {}, [], "")
    found = [
        (remark.focus, twist.kind)
        for seed in range(20)
        for remark in remarks_of(seen, load_phrases(LATER), Draw(str(seed)))
        for twist in remark.twists
    ]
    assert ("spectators", "wrong_owner") not in found
    assert ("cars_aboard", "wrong_owner") in found


def test_a_span_is_the_distance_of_two_dates_or_times_and_its_lies_are_not():
    facts = [
        to_fact(name, owner, value, load_world(EIGHTH)["labels"])
        for name, owner, value in (
            ("mounted_since", "probe 1", "2026-03-01"),
            ("recalibration_due", "probe 1", "2026-02-01"),
            ("first_entry", "log 2", "09:50"),
            ("last_entry", "log 2", "10:05"),
            ("spudded_on", "hole 3", "2026-02-01"),
            ("fed_at", "hole 3", "10:05"),
        )
    ]
    seen = Observed(facts, [], {}, [], [], {}, [], "")
    for seed in range(40):
        found = {
            remark.values["owner"]: remark
            for remark in remarks_of(seen, load_phrases(EIGHTH), Draw(str(seed)))
            if remark.sort == "span"
        }
        days, minutes = found.pop("probe 1"), found.pop("log 2")
        assert not found
        assert (days.values["first"], days.values["value"]) == ("recalibration date", "28 days")
        assert (minutes.values["first"], minutes.values["value"]) == ("first log entry", "15 min")
        for remark in (days, minutes):
            assert len(remark.twists) == 2
            assert all(
                [
                    remark.values[name] != text
                    for twist in remark.twists
                    for name, text in twist.changed.items()
                ]
            )
    assert not [item for item in remarks_of(seen, load_phrases(LATER), Draw("0")) if item.sort == "span"]


def test_an_answer_says_what_failed_and_repeats_only_what_is_true():
    facts = [to_fact("spindle_rpm", "job 7", 900), to_fact("cycle_seconds", "job 7", 45)]
    failures = ["nothing is known about 'job 6'"]
    seen = Observed(facts, [], {}, [], [], {}, failures, "job 7 900 45")
    begins = [text.partition("{")[0] for text in load_phrases(EIGHTH)["recaps"]["all"]]
    repeated = failed = 0
    for seed in range(300):
        made = compose(seen, EIGHTH, (), ("made_up_value",), Draw(str(seed)))
        assert made.falsehood is not None
        failed += failures[0] in made.text
        found = next((begin for begin in begins if begin in made.text), "")
        repeated += bool(found)
        assert not found or made.falsehood.claimed[0] not in made.text.partition(found)[2]
    assert min(repeated, failed) > 5


def test_a_lie_that_is_said_again_is_a_lie():
    tool = record_tools(NINTH)["cafe_repair"]
    tools = [ToolSpec(tool.name, "", tool.define()["parameters"])]
    said_again = 0
    for seed, ident in enumerate(tool.ids()):
        options = read_options(
            f"mediocre:texts={NINTH},lies=1,cuts=0,refusals=0,faults=0,repeats=0,seed={seed}"
        )
        messages = [Message(Role.USER, f"Read me what the fixer wrote on card {ident}.")]
        result = json.dumps(tool.record(ident))
        while (made := answer(messages, tools, options).message).tool_calls:
            messages += [made, Message(Role.TOOL, result, call_id=made.tool_calls[0].call_id, name=tool.name)]
        messages += [made, Message(Role.USER, "Put that into a single sentence for me, please.")]
        messages.append(answer(messages, tools, options).message)
        first, again = truth_of(messages, tools, options)
        assert first.falsehood is not None
        assert again.falsehood is None or again.falsehood.sentence in messages[-1].content
        claimed = first.falsehood.claimed
        if claimed and first.falsehood.sentence in messages[-1].content:
            assert again.falsehood is not None
            assert (again.sort, again.falsehood.kind) == ("lie", first.falsehood.kind)
            said_again += 1
        elif claimed and not any([value in messages[-1].content for value in claimed]):
            assert again.falsehood is None
    assert said_again > 2


async def test_a_search_that_finds_nothing_is_told_as_such():
    async with Agent(
        model(f"mock:mediocre:texts={NINTH},lies=0,cuts=0,refusals=0,faults=0"), tools=["files"]
    ) as agent:
        run = await agent.run("Trawl the folder for wasps, I need the places.", files={"a.txt": "Nothing.\n"})
    assert "no matches" in run.state.transcript[-1].content


@pytest.mark.sets(0)
def test_the_splits_share_no_sentence():
    """A hand that has seen no other split writes a few of the plainest sentences again. They were not mended, so
    that what they measured stays what it was."""

    def texts(value):
        """Return the texts of a split without the lists of facts that a layout can show, which are no sentences."""
        if isinstance(value, dict):
            value = [item for name, item in value.items() if name != "sorts"]
        items = value if isinstance(value, list) else ()
        return {str(value)} if isinstance(value, str) else {text for item in items for text in texts(item)}

    for load in (load_phrases, load_world):
        for one, other in combinations(map(find_texts, SPLITS), 2):
            shared = texts(load(one)) & texts(load(other))
            same = {text for text in shared if len(text.split()) > 4 and not text.startswith("shell ")}
            most = max([SHARED.get(Path(folder).name, 0) for folder in (one, other)])
            assert len(same) <= most, (one, other, same)


@pytest.mark.parametrize("split", ["held", LATER])
async def test_the_judge_knows_the_lies_from_requests_and_calls_alone(split, tmp_path):
    """It sees no answer, as a judge of statements does."""
    right = Counter()
    for truth, messages in await converse("lies=0.6,cuts=0,judge=1", split, tmp_path):
        results = {item.call_id: item for item in messages}
        calls = [
            {"name": call.name, "arguments": call.arguments, "result": results[call.call_id].content,
             "is_error": results[call.call_id].is_error}
            for item in messages for call in item.tool_calls
        ]  # fmt: skip
        sentence = messages[-1].content if truth.falsehood is None else truth.falsehood.sentence
        facts = {
            "write": "statement_verdicts",
            "requests": [messages[0].content],
            "calls": calls,
            "statements": [{"statement": sentence, "sentence": sentence}],
        }
        judge = MediocreModel(read_options(f"mediocre:texts={split},lies=0.6,cuts=0,judge=1"))
        found = judge.answer(BuiltInRequest([Message(Role.USER, write_facts(facts))])).message.content
        right[found == f'{{"verdicts":["{"yes" if truth.falsehood is None else "no"}"]}}', truth.sort] += 1
    assert right[True, "lie"] > 20
    assert right[True, "honest"] > 20
    assert right[False, "lie"] == right[False, "honest"] == 0


@pytest.mark.parametrize("split", TEXTS)
def test_a_request_is_understood_in_any_style(split):
    """As a point of a list, or with a small letter at its beginning."""
    options = read_options(f"mediocre:texts={split},faults=0,refusals=0,lies=0")
    defined = [tool.define() for tool in record_tools(split).values()]
    tools = [ToolSpec(item["name"], "", item["parameters"]) for item in defined]
    for request in requests(split):
        plain, point, small = (
            answer([Message(Role.USER, f"hello.\n\n{text}")], tools, options).message
            for text in (request, f"- {request}", request[:1].lower() + request[1:])
        )
        names = [[call.name for call in message.tool_calls] for message in (plain, point, small)]
        assert names[0] == names[1] == names[2], request
