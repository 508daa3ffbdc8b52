"""`treadle verify` with tools of one's own."""

from tests.cli.command import Cli
from tests.forks.process import FORKS

SHOP = '''
from treadle import tool


@tool(effect="pure")
def price(of: str) -> str:
    """Say a price.

    Args:
        of: The thing that it is the price of.
    """
    return "3 EUR"
'''
PROGRAM = """
import asyncio, shop
from treadle import Agent, ScriptedModel, open_journal
from treadle.models import call

with open_journal("runs.db") as journal:
    model = ScriptedModel([[call("price", {"of": "tea"})], "3 EUR"])
    asyncio.run(Agent(model, tools=[shop.price], journal=journal).run("go", run_id="r"))
"""


def test_tools_that_the_journal_names_are_taken(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    assert FORKS.run("-c", PROGRAM, cwd=cli.folder).returncode == 0
    checked = cli("verify", "r", "--journal", "runs.db")
    assert (checked.code, checked.out) == (0, "same    r  1 of 1 call\n")
    checked = cli("verify", "r", "--tools", "shop.py", "--journal", "runs.db")
    assert (checked.code, checked.out) == (0, "same    r  1 of 1 call\n")
    checked = cli("verify", "r", "--tools", "files", "--journal", "runs.db")
    assert (checked.code, checked.err) == (2, FAR)
    (cli.folder / "shop.py").write_text(SHOP.replace("3 EUR", "40 EUR"))
    checked = cli("verify", "r", "--tools", "shop.py", "--journal", "runs.db")
    assert (checked.code, checked.out.split()[0]) == (1, "differs")


def test_a_run_whose_tools_are_gone_does_not_keep_others_from_being_verified(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    cli("run", 'call price {"of": "tea"}', "-m", "mock:echo", "-t", "shop.py", "-q", "--run-id", "gone")
    cli("run", "call list_files", "-m", "mock:echo", "-t", "files", "-q", "--run-id", "here")
    (cli.folder / "shop.py").unlink()
    checked = cli("verify", "--all", "--trust")
    assert (checked.code, checked.out) == (1, "same    here  1 of 1 call\n"), checked
    assert "error: run gone: " in checked.err
    assert "shop.py" in checked.err


def test_a_run_without_calls_has_nothing_that_could_differ(cli: Cli) -> None:
    cli("run", "hello", "-m", "mock:echo", "-q", "--run-id", "quiet")
    checked = cli("verify", "quiet")
    assert (checked.code, checked.out) == (0, "no calls  quiet  0 of 0 calls\n")


FAR = (
    "error: --tools: no run has a tool 'delete_file' or 'edit_file' or 'list_files' or 'read_file' or "
    "'search_files' or 'write_file'; the tools are: price\n"
)
