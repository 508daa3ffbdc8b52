"""`treadle init`: a first treadle.toml."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_note
from treadle.core.errors import ConfigError
from treadle.export.whole import write_whole

EXAMPLES = (
    "treadle init",
    "treadle init conf/treadle.toml",
)
SCHEMA_NAME = "treadle.schema.json"
TEMPLATE = """\
#:schema ./treadle.schema.json
# The models of this project. An editor that knows the schema explains each key.
# `treadle models list` lists the models, `treadle models check NAME` finds out what a model supports.
#
# The environment wins over this file: TREADLE_MODELS__FAST__TEMPERATURE=0 sets `temperature` of [models.fast].
# Do not write API keys here: they are read from the provider's variable, such as OPENAI_API_KEY, or from the
# variable that `api_key_env` names.

# The model that is used without --model.
model = "fast"

[models.fast]
model = "openai:gpt-5-mini"          # provider:name; `treadle models list` shows the providers
# temperature = 0.7
# max_output_tokens = 4096
# seed = 1
# limit = "openai"                   # one of the [limits] below
# fallback = ["claude", "local"]     # asked in this order if this model fails
# cache = ".treadle/answers"         # equal requests get the stored answer, without cost
# price = { input_usd_per_million = 0.25, output_usd_per_million = 2.0 }   # for a model without a known price

[models.claude]
model = "anthropic:claude-sonnet-4-5"
# api_key_env = "MY_OTHER_KEY"

[models.local]
model = "vllm:Qwen/Qwen3-8B"
base_url = "http://localhost:8000/v1"
# return_token_ids = true            # exact tokens, for RL
# logprobs = true
# output_mode = "tool"               # how answers that must fit a schema are asked for: native, tool or text
# extra = { chat_template_kwargs = { enable_thinking = false } }

# The models of the tiers frontier, mid and small. `--tier NAME` uses one, `--model auto` lets a router choose.
[tiers]
# frontier = "claude"
# small = "local"

# What a new session of `treadle chat` uses where no option says otherwise.
[chat]
# persona = "me.yaml"                # who it is, with its tools, skills and documents; see docs/personas.md
# user = "anna"                      # whom the memories are about
# memory = true                      # it remembers from one session to the next

# The limits of a server, for all models that name them. A limit that is not given is found out from the server's
# headers, from the requests that it refuses, and from whether more requests at a time bring more answers.
[limits.openai]
# requests_per_minute = 500
# tokens_per_minute = 200_000
# max_concurrency = 64
# store = ".treadle/runs.db"         # shares the limits with other processes
"""


def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("treadle.toml"),
    is_forced: o.IsForced = False,
) -> int:
    """Write a commented treadle.toml and its schema.

    The file has named models, fallbacks and limits. Editors use the schema to complete and check it.
    """
    from treadle.models.config.toml_file import FILE_NAMES, VARIABLE, config_schema

    if os.path.lexists(path) and not is_forced:
        raise ConfigError(f"{str(path)!r} exists; --force replaces it")
    if path.suffix != ".toml":
        raise ConfigError(f"the name of the file must end with .toml, and {str(path)!r} does not")
    schema = msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole([schema], path.parent / SCHEMA_NAME)
        write_whole([TEMPLATE.rstrip().encode()], path)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from error
    print_note(f"{path} is written, and {SCHEMA_NAME} beside it, which editors use to check it")
    is_found = path.resolve().parent in (Path.cwd(), *Path.cwd().parents) and path.name in FILE_NAMES
    place = "" if is_found else f"{VARIABLE}={shlex.quote(str(path))} "
    print_note(f"next: {place}treadle models list")
    return ExitCode.DONE
