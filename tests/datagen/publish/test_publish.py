"""Publishing, with the services' own clients over real sockets to servers that stand in for the services."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import Cli
from tests.datagen.dataset import made
from tests.datagen.publish.fake import Hub, Kaggle

from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.splits import SplitPlan, split_rows

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("huggingface_hub", "kaggle")),
    reason="the extra 'hub' is not installed",
)
TOKEN = "hf_0123456789abcdef"
NAMED = ("--license", "CC-BY-4.0")
HUB = ("publish", "d", "--to", "huggingface:me/shop-tools")
KAGGLE = ("publish", "d", "--to", "kaggle:me/shop-tools")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made.plain_folder(tmp_path / "d", 20, leaves=10)
    split_rows(tmp_path / "d", tmp_path / "d", SplitPlan(shares={"train": 0.8, "test": 0.2}))
    cli = Cli(tmp_path)
    cleared = ("HF_", "HUGGING", "KAGGLE_", "HTTP", "http", "NO_PROXY", "no_proxy")
    cli.env = {name: value for name, value in cli.env.items() if not name.startswith(cleared)}
    cli.env |= {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return cli


@pytest.fixture
def hub(cli: Cli) -> Iterator[Hub]:
    server = Hub()
    cli.env |= {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
    yield server
    server.stop()


@pytest.fixture
def kaggle(cli: Cli) -> Iterator[Kaggle]:
    server = Kaggle()
    cli.env |= {
        "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
        "HTTP_PROXY": server.url,
        "NO_PROXY": "127.0.0.1",
        "KAGGLE_API_TOKEN": TOKEN,
    }
    yield server
    server.stop()


def test_a_dataset_gets_to_the_hub(cli: Cli, hub: Hub) -> None:
    done = cli(*HUB, *NAMED, "--private", "--tag", "shops")
    assert (done.code, done.out) == (0, f"{hub.url}/datasets/me/shop-tools\n"), done
    files = hub.repositories["me/shop-tools"]
    assert set(files) == {".gitattributes", "README.md", "train.trl.jsonl", "test.trl.jsonl"}
    assert hub.private == {"me/shop-tools": True}
    assert files["train.trl.jsonl"] == (cli.folder / "d" / "train.trl.jsonl").read_bytes()
    card = files["README.md"].decode()
    assert "license: cc-by-4.0" in card
    assert "- shops" in card
    assert TOKEN in hub.tokens
    assert not [name for name, data in files.items() if TOKEN.encode() in data]


def test_a_dataset_that_exists_is_changed_only_with_update(cli: Cli, hub: Hub) -> None:
    hub.repositories["me/shop-tools"] = {"old.trl.jsonl": b"{}", "notes.txt": b"mine", "README.md": b"old"}
    refused = cli(*HUB, *NAMED)
    assert (refused.code, "exists on the Hub; add a version with --update" in refused.err) == (2, True), (
        refused
    )
    assert hub.repositories["me/shop-tools"]["README.md"] == b"old"
    done = cli(*HUB, *NAMED, "--update", "--message", "More rows")
    assert done.code == 0, done
    files = hub.repositories["me/shop-tools"]
    assert set(files) == {"notes.txt", "README.md", "train.trl.jsonl", "test.trl.jsonl"}


def test_without_a_licence_nothing_is_sent_and_none_is_chosen(cli: Cli, hub: Hub) -> None:
    """No licence is put on a user's data that the user has not named."""
    refused = cli(*HUB)
    assert (refused.code, "only you can choose it" in refused.err) == (2, True), refused
    assert hub.requests == []
    DatasetFolder(cli.folder / "d").card.write_text("---\nlicense: mit\n---\nMy own card.\n")
    done = cli(*HUB, *NAMED, "--keep-card")
    assert done.code == 2, done
    assert "names the licence 'mit'" in done.err
    done = cli(*HUB, "--license", "MIT", "--keep-card")
    assert done.code == 0, done
    assert b"My own card." in hub.repositories["me/shop-tools"]["README.md"]


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "does not accept the token"), (403, "may not write to 'me/shop-tools'"), (400, "failed: ")],
)
def test_what_the_hub_refuses_is_said(cli: Cli, hub: Hub, status: int, said: str) -> None:
    hub.status = status
    refused = cli(*HUB, *NAMED)
    assert (refused.code, said in refused.err) == (1, True), refused
    assert "Traceback" not in refused.err
    assert TOKEN not in refused.err


def test_without_a_token_it_is_said_how_to_get_one(cli: Cli) -> None:
    for command, advice in ((HUB, "HF_TOKEN"), (KAGGLE, "KAGGLE_API_TOKEN")):
        refused = cli(*command, *NAMED)
        assert (refused.code, advice in refused.err) == (2, True), refused


def test_a_dry_run_lists_what_would_be_uploaded(cli: Cli, hub: Hub) -> None:
    (found,) = cli(*HUB, *NAMED, "--dry-run", "--json").lines
    assert found["target"] == "huggingface:me/shop-tools"
    assert (found["license"], found["private"]) == ("CC-BY-4.0", False)
    assert set(found["files"]) == {"README.md", "train.trl.jsonl", "test.trl.jsonl"}
    assert hub.requests == []
    shown = cli(*HUB, *NAMED, "--dry-run")
    assert "huggingface:me/shop-tools, public, licence CC-BY-4.0" in shown.out
    assert "nothing was uploaded" in shown.err


def test_a_dataset_gets_to_kaggle(cli: Cli, kaggle: Kaggle) -> None:
    done = cli(*KAGGLE, "--license", "MIT", "--private")
    assert (done.code, done.out) == (0, "https://www.kaggle.com/datasets/me/shop-tools\n"), done
    assert set(kaggle.blobs) == {"README.md", "train.trl.jsonl", "test.trl.jsonl"}
    (created,) = kaggle.created
    assert created["isPrivate"] is True
    assert (created["ownerSlug"], created["slug"]) == ("me", "shop-tools")
    # Kaggle has no name for this licence, so the description says it.
    assert created["licenseName"] == "other"
    assert created["description"].startswith("Licence: MIT\n\n# shop")
    assert TOKEN not in json.dumps(created)


def test_a_dataset_of_kaggle_that_exists_is_changed_only_with_update(cli: Cli, kaggle: Kaggle) -> None:
    kaggle.known.add("me/shop-tools")
    refused = cli(*KAGGLE, *NAMED)
    assert (refused.code, "exists on Kaggle; add a version with --update" in refused.err) == (2, True), (
        refused
    )
    assert cli(*KAGGLE, *NAMED, "--update", "-m", "More rows").code == 0
    (version,) = kaggle.versions
    assert version["body"]["versionNotes"] == "More rows"
    assert kaggle.created == []


def test_a_place_that_is_none_and_a_folder_without_splits_are_refused(cli: Cli) -> None:
    for text in ("me/shop", "huggingface:me", "hub:me/shop", "huggingface:me/../x"):
        refused = cli("publish", "d", "--to", text, *NAMED)
        assert (refused.code, "write huggingface:OWNER/NAME" in refused.err) == (2, True), refused
    made.plain_folder(cli.folder / "bare", 2)
    refused = cli("publish", "bare", "--to", "kaggle:me/shop-tools", *NAMED)
    assert (refused.code, "treadle dataset split bare" in refused.err) == (2, True), refused
    refused = cli("publish", "d", *NAMED)
    assert (refused.code, "--to: name the place" in refused.err) == (2, True), refused
