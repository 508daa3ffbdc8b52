"""The repair of an answer: it alone is asked for again, with the reasons, and the row shows only the last one."""

from contextlib import closing
from pathlib import Path

from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.dialogue import REPAIR, count_repairs, drop_repaired
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.entries import read_entries
from treadle.datagen.dataset.verification import verify_rows
from treadle.datagen.generation import generate
from treadle.journal.registry import open_journal


def test_a_repaired_answer_is_left_out_with_the_message_about_it() -> None:
    user, made = Message(Role.USER, "How many?"), Message(Role.ASSISTANT, "", (ToolCall("c", "count", "{}"),))
    result = Message(Role.TOOL, "3", call_id="c", name="count")
    again = Message(Role.USER, REPAIR.format(reasons="- the number '5' does not occur before"), is_own=True)
    wrong, right = Message(Role.ASSISTANT, "5"), Message(Role.ASSISTANT, "3")
    assert drop_repaired([user, made, result, wrong, again, wrong, again, right]) == (
        user,
        made,
        result,
        right,
    )
    assert drop_repaired([user, made, result, right]) == (user, made, result, right)


async def test_a_generation_repairs_answers_before_it_makes_samples_again(tmp_path: Path) -> None:
    config = GenerationConfig.model_validate(
        {
            "models": {"default": "mock:mediocre:lies=0.8"},
            "topics": {"prompt": "Office work", "degree": 2, "depth": 1},
            "generation": {"num_samples": 8, "conversation": {"min_turns": 2, "max_turns": 2}},
            "tools": {
                "use": ["files"],
                "files": {"team/stock.csv": "article,on_hand\nclamp,69\nscrew,183\n"},
            },
            "output": {"path": str(tmp_path)},
        }
    )
    result = await generate(config, DatasetFolder(tmp_path))
    assert result.progress.kept == 8
    rows = [entry.row for entry in read_entries(tmp_path, is_rejected=False)]
    repaired = [row for row in rows if row.lineage.sample is not None and row.lineage.sample.repairs]
    assert repaired, "no answer was asked for again"
    assert not any(message.is_own for row in rows for message in row.messages)
    with closing(open_journal(tmp_path / "journal.db")) as journal:
        assert [item.problems async for item in verify_rows(tmp_path, journal)] == [()] * 8
        turns = [count_repairs(journal.read(row.lineage.run_id)) for row in repaired]
    assert any(0 in found[found.index(1) :] for found in turns if 1 in found), (
        "only last answers were repaired"
    )
