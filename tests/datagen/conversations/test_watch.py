"""The reports about samples that are being made."""

import asyncio

from tests.datagen.conversations.cast import NOTES, SCENARIO, Cast, make_studio, spec

from treadle.datagen.conversations.make import make_sample


async def test_each_step_of_a_sample_is_reported_with_its_id():
    heard: list[tuple[str, str]] = []
    users = [{"message": "Again.\nPlease.", "is_done": False}, {"message": "", "is_done": True}]
    studio = make_studio(NOTES, Cast(users=users), on_step=lambda *step: heard.append(step))
    made = await asyncio.gather(*[make_sample(studio, spec(turns=2, number=number)) for number in (1, 2)])
    assert all(item.row is not None for item in made)
    for item in ("s000001", "s000002"):
        assert [line for sample, line in heard if sample == item] == [
            f"user: {SCENARIO['message']}",
            "assistant: I read the file.",
            'assistant: read_file({"file_path":"notes.txt"})',
            "read_file: milk",
            "assistant: It says: milk",
            "user: Again. Please.",
            "assistant: I read the file.",
            'assistant: read_file({"file_path":"notes.txt"})',
            "read_file: milk",
            "assistant: It says: milk",
        ]
    row = made[0].row
    assert row is not None
    assert row.lineage.model == "scripted"


async def test_long_lines_are_cut():
    heard: list[str] = []
    studio = make_studio({}, Cast(lambda request: "x" * 5000), on_step=lambda _, line: heard.append(line))
    await make_sample(studio, spec())
    assert max(map(len, heard)) == 240
