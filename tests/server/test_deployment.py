"""The files of `deploy/`: what they start is accepted, and keeps what users wrote to itself."""

import configparser
import shlex
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.server.test_responses import journal, serving

from treadle.journal.postgres.link import Address
from treadle.journal.protocol import Journal

__all__ = ["journal"]

DEPLOY = Path(__file__).parents[2] / "deploy"


def read_compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def test_a_password_may_have_any_sign_and_stands_in_no_command() -> None:
    service = read_compose()["treadle"]
    name, address = service["command"]
    assert name == "--journal"
    assert Address(address.replace("${POSTGRES_PASSWORD}", "p@ss/w#rd:1%")).name == address
    assert "PASSWORD" not in address
    assert "POSTGRES_PASSWORD" in service["environment"]["PGPASSWORD"]


def test_what_ends_is_started_again() -> None:
    assert {service["restart"] for service in read_compose().values()} == {"unless-stopped"}


def test_other_users_cannot_read_the_journal_of_the_unit() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "treadle.service")
    service = unit["Service"]
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
    command = shlex.split(service["ExecStart"])
    assert Path(command[command.index("--journal") + 1]).parent == Path("/var/lib", service["StateDirectory"])


async def test_the_configuration_is_served(journal: Journal) -> None:
    async with serving(DEPLOY / "treadle.toml", journal) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/readyz")).status_code == 200
        models = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["default"]
