"""`treadle models tiers`, `treadle models route`, `--tier` and `--model auto`."""

from tests.cli.command import Cli
from tests.cli.conftest import Script

FILE = """
[models.big]
model = "openai:big"
price = { input_usd_per_million = 3, output_usd_per_million = 15 }
[tiers.frontier]
model = "big"
sees_images = true
[tiers.small]
model = "openai:tiny"
fallback = ["vllm:x"]
context_tokens = 8000
sees_images = false
price = { input_usd_per_million = 0.05, output_usd_per_million = 0.08 }
"""


def test_tiers_are_listed_with_what_is_missing(cli: Cli) -> None:
    assert "there are no tiers; add [tiers]" in cli("models", "tiers").err
    cli.write("treadle.toml", FILE)
    frontier, mid, small = cli("models", "tiers", "--json").lines
    assert "OPENAI_API_KEY" in frontier["missing"]
    assert mid["missing"] == "not configured; frontier takes its place"
    cli.env["OPENAI_API_KEY"] = "k"
    frontier, _, small = cli("models", "tiers", "--json").lines
    assert (frontier["models"], frontier["input_usd_per_million"]) == (["big"], 3)
    assert small == {
        "tier": "small",
        "models": ["openai:tiny", "vllm:x"],
        "context_tokens": 8000,
        "input_usd_per_million": 0.05,
        "output_usd_per_million": 0.08,
        "sees_images": False,
    }
    shown = cli("models", "tiers")
    assert "not measured" in shown.out
    cli.env["TREADLE_SMALL_MODELS"] = "openai/a,vllm/b"
    shown = cli("models", "tiers")
    assert "'openai/a' is left out, because TREADLE_OPENAI_API_KEY is not set" in shown.err, shown


def test_a_route_is_explained_and_no_model_is_asked(cli: Cli) -> None:
    cli.write("treadle.toml", FILE)
    cli.env["OPENAI_API_KEY"] = "k"
    shown = cli("models", "route", "takk!")
    assert shown.out.startswith("small  openai:tiny\n  because the message needs no thinking"), shown
    assert "frontier  score 0.667" in shown.out
    (found,) = cli("models", "route", "What is this?", "--images", "1", "--router", "scored", "--json").lines
    assert (found["tier"], found["rejected"]) == ("frontier", {"small": "openai:tiny cannot see images"})
    done = cli("models", "route", "x", "--router", "rlues")
    assert (done.code, "unknown router 'rlues'; did you mean 'rules'" in done.err) == (2, True), done


def test_runs_with_tiers(cli: Cli, script: Script) -> None:
    server = script(lambda body: {"content": f"I am {body['model']}"})
    cli.write("treadle.toml", FILE)
    cli.env |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.url}
    assert cli("run", "takk", "-q", "--run-id", "r").out.strip() == "I am tiny"
    assert "tier small: openai:tiny · the message needs no thinking" in cli("show", "r").out
    assert cli("run", "takk", "-q", "--tier", "frontier").out.strip() == "I am big"
    assert cli("run", "takk", "-q", "--model", "tier:mid").out.strip() == "I am big"
    assert cli("run", "takk", "-q", "--model", "auto:fixed").out.strip() == "I am big"
    # Another process makes the model again, and may choose another tier.
    assert cli("fork", "r", "--at", "2", "-q").out.strip() == "I am tiny"
    assert cli("fork", "r", "--at", "2", "-q", "--tier", "frontier").out.strip() == "I am big"
    assert '"route":{"tier":"small"' in cli("run", "takk", "--json").out
    for arguments, message in (
        (("--tier", "smal"), "there is no tier 'smal'; did you mean 'small'?"),
        (("--tier", "small", "--model", "big"), "give --model or --tier, not both"),
        (("--base-url", "http://h/v1"), "base_url cannot be given for the model 'auto'"),
    ):
        done = cli("run", "takk", *arguments)
        assert (done.code, message in done.err) == (2, True), done
