"""The card: its metadata is what the Hub expects, its numbers are those of the dataset, and it has no secrets."""

import re
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace
from tests.datagen.dataset import made

from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.card import license_on, write_card
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.splits import write_splits
from treadle.datagen.quality.protocol import FilterVerdict

SECRET = "sk-0123456789abcdef"


def configured(**sections: Any) -> GenerationConfig:
    return GenerationConfig.model_validate({**made.CONFIG.model_dump(exclude_unset=True), **sections})


def write(folder: Path, config: GenerationConfig) -> tuple[dict[str, Any], str]:
    """Write splits and card, and return the card's metadata and its text."""
    write_splits(folder, config)
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", write_card(folder, config).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1]), found[2]


def test_the_metadata_leads_to_the_files_of_the_splits(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 50, leaves=10)
    output = {"splits": {"train": 0.8, "test": 0.2}, "formats": ["trl", "openai"]}
    publish = {"license": "CC-BY-4.0", "sources": {"The shop's files": "CC0-1.0"}}
    meta, text = write(folder, configured(output=output, publish=publish))
    assert meta["license"] == "cc-by-4.0"
    assert meta["size_categories"] == ["n<1K"]
    assert meta["configs"][0] == {
        "config_name": "trl",
        "default": True,
        "data_files": [
            {"split": "train", "path": "train.trl.jsonl"},
            {"split": "test", "path": "test.trl.jsonl"},
        ],
    }
    assert [config["config_name"] for config in meta["configs"]] == ["trl", "openai"]
    assert all((folder / file["path"]).is_file() for item in meta["configs"] for file in item["data_files"])
    assert "| The shop's files | CC0-1.0 |" in text
    assert "| train | 40 |" in text


def test_the_settings_of_models_are_told(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 3)
    by_name = {"default": "mock:teacher"}
    _, text = write(folder, configured(models=by_name))
    assert "| agent | mock:teacher |  |  | 3 |" in text
    given = {"agent": {"model": "mock:teacher", "temperature": 0.5, "format": "hermes"}, **by_name}
    _, text = write(folder, configured(models=given))
    assert "| agent | mock:teacher | temperature 0.5, format hermes |  | 3 |" in text


def test_the_numbers_and_the_author_are_told(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 20, rejected=3)
    with DatasetFolder(folder).rejected.open("ab") as file:
        file.write(made.encode(made.plain_row(90), FilterVerdict("near_duplicates", False, "like s000001")))
    _, text = write(folder, configured())
    assert "All rows were written by Treadle's built-in teacher, and not by a language model" in text
    assert "20 of the 20 rows with tool calls are verified" in text
    assert "4 samples were rejected, 1 of them as duplicates" in text
    assert r"| near\_duplicates | 0 | 1 |" in text
    assert "| grounding | 0 | 3 |" in text
    assert "Every tool result is real" in text
    assert "No licence was named" in text


def test_rows_of_the_model_that_lies_are_told(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 3)
    rows = [made.plain_row(1), made.plain_row(2, models={"agent": "mock:mediocre:lies=1"})]
    made.write_rows(DatasetFolder(folder).rows, rows)
    _, text = write(folder, configured())
    assert "1 of the rows were written by Treadle's built-in model that lies on purpose" in text
    assert "1 of the rows were written by Treadle's built-in teacher, and not by a language model" in text


def test_simulated_results_are_told(tmp_path: Path) -> None:
    from msgspec.structs import replace

    folder = made.plain_folder(tmp_path / "d", 2)
    rows = [made.plain_row(number) for number in (1, 2)]
    rows[0] = replace(rows[0], lineage=replace(rows[0].lineage, simulated=("c1",)))
    made.write_rows(DatasetFolder(folder).rows, rows)
    _, text = write(folder, configured())
    assert "The results of 1 of the 2 tool calls, in 1 rows, were simulated" in text
    assert "is real" not in text


def test_nothing_secret_and_no_path_of_the_machine_is_in_the_card(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 5)
    row = made.plain_row(1, environment=str(tmp_path / "private" / "shop"))
    made.write_rows(DatasetFolder(folder).rows, [row])
    model = {
        "model": "openai:gpt-5",
        "base_url": f"https://user:{SECRET}@models.internal/v1",
        "api_key_env": "INTERNAL_KEY",
        "headers": {"x-key": SECRET},
        "extra": {"key": SECRET},
        "temperature": 0.3,
    }
    tools = {"use": ["files", f"mcp:server --token {SECRET}"], "files": str(tmp_path / "private" / "shop")}
    _, text = write(folder, configured(models={"agent": model}, tools=tools))
    for hidden in (SECRET, "models.internal", "INTERNAL_KEY", str(tmp_path)):
        assert hidden not in text
    assert "temperature 0.3" in text
    assert "| initial files | shop |" in text


def test_texts_of_the_dataset_cannot_change_the_metadata_or_the_tables(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 1)
    evil = "x\n---\nlicense: mit\n---\n| a | b |\n<script>"
    config = configured(name=evil, topics={"prompt": evil}, publish={"license": evil})
    made.write_rows(DatasetFolder(folder).rows, [made.plain_row(1, models={"agent": evil})])
    meta, text = write(folder, config)
    assert meta["license"] == "other"
    assert meta["license_name"] == evil
    assert meta["pretty_name"] == evil
    assert "<script>" not in text
    assert not [line for line in text.splitlines() if line.startswith(("| a |", "license:", "---"))]


def test_a_text_with_a_backtick_brings_no_link_and_no_picture(tmp_path: Path) -> None:
    """A dataset from elsewhere could put a picture that reports its readers into the card."""
    folder = made.plain_folder(tmp_path / "d", 1)
    evil = "a ` ![x](http://127.0.0.1:9/x)"
    made.write_rows(DatasetFolder(folder).rows, [made.plain_row(1, models={"agent": evil})])
    _, text = write(folder, configured())
    assert re.search(r"(?<!\\)\]\(http", text) is None
    assert r"\`" in text


def test_licences_have_the_names_of_the_services() -> None:
    assert [license_on("hub", name) for name in ("CC-BY-4.0", "GPL-3.0-only", "ODC-By-1.0", "Mine")] == [
        "cc-by-4.0",
        "gpl-3.0",
        "odc-by",
        "other",
    ]
    assert [license_on("kaggle", name) for name in ("cc0-1.0", "Apache-2.0", "ODC-By-1.0", "MIT")] == [
        "CC0-1.0",
        "apache-2.0",
        "ODC-BY-1.0",
        "other",
    ]


def test_rows_with_a_lower_weight_are_told(tmp_path: Path) -> None:
    folder = made.plain_folder(tmp_path / "d", 8)
    row = replace(made.plain_row(20, lowered={"grounding": "Anna is not shown"}), weight=0.5)
    with DatasetFolder(folder).rows.open("ab") as file:
        file.write(made.encode(row))
    _, text = write(folder, configured(output={"formats": ["trl", "axolotl"]}))
    assert "1 of 9 rows were kept with a lower weight (by filter: grounding 1)." in text
    assert "`train.axolotl.jsonl` lacks the weight of 1 row" in text
    assert "`train.trl.jsonl` lacks" not in text
    assert '"weight":0.5' in (folder / "train.trl.jsonl").read_text()
