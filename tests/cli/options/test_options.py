"""Options that are rendered from the fields of `Policy` and `Settings`."""

import inspect
from importlib import import_module
from typing import Annotated, get_args

import msgspec
import pytest
import typer
from msgspec import Struct
from tests.cli.command import Cli
from tests.cli.scripted import Script, say
from tests.cli.test_help import ALL

from treadle.cli.commands.chatting import chat
from treadle.cli.commands.drive_runs import fork, resume, run
from treadle.cli.commands.replies import approve
from treadle.cli.options.agent_options import AgentFlags, PolicyOptions
from treadle.cli.options.option_groups import (
    FieldGroup,
    FieldOptions,
    OptionGroup,
    as_command,
    read_options,
)
from treadle.core.errors import ConfigError
from treadle.core.policy import Approval, InDoubt, Policy, ToolLimits
from treadle.core.types import Settings
from treadle.testbed.engines import EngineSettings


def flags(parameters: list[inspect.Parameter]) -> list[str]:
    """The names of options, as they are typed."""
    options = [get_args(parameter.annotation)[1] for parameter in parameters]
    return [flag for option in options for flag in (option.default, *(option.param_decls or ()))]


def test_every_field_has_an_option_with_a_help() -> None:
    assert set(read_options()["Policy"]) == set(Policy.__struct_fields__)
    assert set(read_options()["Settings"]) == set(Settings.__struct_fields__)
    assert flags(PolicyOptions.parameters())[:7] == [
        "--max-steps",
        "--max-tokens",
        "--max-tool-calls",
        "--max-cost",
        "--charges-lost/--no-charges-lost",
        "--deadline",
        "--parallel",
    ]


def test_every_parameter_has_a_line_and_every_line_a_parameter() -> None:
    declared: dict[str, set[str]] = {"shared": set()}
    for command in ALL.values():
        module_name, _, name = command.function.partition(":")
        function = getattr(import_module(module_name), name)
        module = module_name.removeprefix("treadle.cli.")
        for parameter in inspect.signature(as_command(function)).parameters.values():
            assert get_args(parameter.annotation)[1].help, (command.function, parameter.name)
        names = set(inspect.signature(function).parameters)
        for owner in (f"{module}:{name}", module, "shared"):
            declared.setdefault(owner, set()).update(names)
    groups = {*OptionGroup.__subclasses__(), *FieldGroup.__subclasses__()} - {FieldGroup}
    declared |= {group.__name__: {item.name for item in group.parameters()} for group in groups}
    fields = {kind.__name__: set(kind.__struct_fields__) for kind in (Policy, Settings, EngineSettings)}
    used = set().union(*declared.values())
    for section, rows in read_options().items():
        assert set(rows) <= {**declared, **fields, "shared": used}[section], section


@pytest.mark.parametrize("command", [run, chat, fork, resume, approve])
def test_all_commands_that_drive_a_run_take_the_same_groups(command: object) -> None:
    names = list(inspect.signature(as_command(command)).parameters)  # type: ignore[arg-type]
    for group in (AgentFlags, PolicyOptions):
        assert {parameter.name for parameter in group.parameters()} <= set(names)


class _Limits(Struct):
    max_wait_seconds: float = 2.5
    is_loud: bool = False
    words: tuple[str, ...] = ()
    table: dict[str, int] | None = None


def test_a_new_field_is_a_new_option_without_a_line() -> None:
    options = FieldOptions(_Limits, "Panel")
    assert flags(options.parameters()) == ["--max-wait", "--is-loud/--no-is-loud", "--words", "--table"]
    infos = [get_args(parameter.annotation)[1] for parameter in options.parameters()]
    assert [info.metavar for info in infos] == ["SECONDS", "", "TEXT", "JSON"]
    assert [info.help for info in infos] == ["Default: 2.5.", "", "", ""]
    nothing = dict.fromkeys(_Limits.__struct_fields__) | {"words": []}
    assert options.read(nothing) == {}
    given = {"max_wait_seconds": 1.0, "is_loud": False, "words": ["a"], "table": '{"a": 1}'}
    assert options.read(given) == {
        "max_wait_seconds": 1.0,
        "is_loud": False,
        "words": ("a",),
        "table": {"a": 1},
    }
    with pytest.raises(ConfigError, match=r"^--table '\{': "):
        options.read({**given, "table": "{"})


def test_groups_reach_the_function_as_one_value() -> None:
    seen: list[object] = []

    def command(
        name: Annotated[str, typer.Argument()], *, agent: AgentFlags, limits: PolicyOptions, n: int = 3
    ) -> int:
        seen.extend((name, agent, limits.over(Policy()), n))
        return 0

    app = typer.Typer()
    app.command()(as_command(command))
    words = ["x", "-m", "m", "-t", "a", "-t", "b", "--seed", "7", "--stop", "END", "--extra", '{"k": [1]}']
    words += ["--max-cost", "0.5", "--approve", "ask", "--approve", "send_*=never", "--in-doubt", "ask"]
    words += ["--tool-limit", "web_*:calls=3,chars=20", "--no-logprobs", "--last-step-message", "Stop."]
    app(words, standalone_mode=False)
    settings = Settings(seed=7, stop=("END",), extra={"k": [1]}, logprobs=False)
    policy = Policy(
        max_cost_usd=0.5,
        approve={"once": Approval.ASK, "send_*": Approval.NEVER},
        in_doubt=InDoubt.ASK,
        tool_limits={"web_*": ToolLimits(max_calls=3, max_result_chars=20)},
        last_step_message="Stop.",
    )
    assert seen == ["x", AgentFlags(model="m", tools=("a", "b"), settings=settings), policy, 3]


def test_the_key_is_not_shown() -> None:
    assert "sk-1" not in repr(AgentFlags(model="m", api_key="sk-1"))
    assert msgspec.json.encode(AgentFlags(model="m")) == b'{"model":"m"}'


def test_settings_and_limits_reach_the_server_and_the_journal(cli: Cli, script: Script) -> None:
    server = script(lambda body: say("hi"))
    options = ["--top-p", "0.5", "--stop", "END", "--extra", '{"mood": "calm"}', "--max-output-attempts", "2"]
    done = cli("run", "hi", "-m", "m", "--base-url", server.url, *options, "--run-id", "r", "-q")
    assert (done.code, done.out) == (0, "hi\n"), done
    body = server.requests[0]
    assert (body["top_p"], body["stop"], body["mood"]) == (0.5, ["END"], "calm")
    assert cli("show", "r", "--json").lines[0]["agent"]["policy"]["max_output_attempts"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parallel", "0"), "'--parallel': '0' should be greater than or equal to 1"),
        (("--max-cost", "-1"), "'--max-cost': '-1' should be greater than or equal to 0"),
        (("--top-p", "2"), "'--top-p': '2' should be less than or equal to 1"),
        (("--extra", "{"), "--extra '{': "),
        (("--extra", "[]"), "--extra '[]': "),
        (("--in-doubt", "shout"), "'shout' is not one of"),
        (("--last-step-message", "{"), "--last-step-message '{': "),
    ],
)
def test_a_value_that_cannot_be_is_told_with_the_option(
    cli: Cli, options: tuple[str, ...], message: str
) -> None:
    done = cli("run", "hi", "-m", "m", "--base-url", "http://127.0.0.1:9/v1", *options)
    assert (done.code, message in done.err, "Traceback" in done.err) == (2, True, False), done
