"""What `treadle init` does."""

import os
from pathlib import Path

import msgspec

from treadle.cli.terminal.output import print_note
from treadle.core.errors import ConfigError
from treadle.models.config.file import config_schema

SCHEMA_NAME = "treadle.schema.json"
TEMPLATE = """\
#:schema ./treadle.schema.json
# The models of this project. Every key is explained where the cursor stands, in an editor that knows the
# schema; `treadle models list` shows what is here, `treadle models check NAME` what a model can do.
#
# The environment wins over this file: TREADLE_MODELS__FAST__TEMPERATURE=0 sets `temperature` of [models.fast].
# Keys do not belong here: they are read from the provider's variable, as OPENAI_API_KEY, or from `api_key_env`.

# What is used where no --model is given.
model = "fast"

[models.fast]
model = "openai:gpt-5-mini"          # provider:name; treadle models list has the providers
# temperature = 0.7
# max_output_tokens = 4096
# seed = 1
# limit = "openai"                   # one of [limits] below
# fallback = ["claude", "local"]     # asked in this order where this one fails
# cache = ".treadle/answers"         # equal requests are answered again, without cost
# price = { input_usd_per_million = 0.25, output_usd_per_million = 2.0 }   # where no table knows it

[models.claude]
model = "anthropic:claude-sonnet-4-5"
# api_key_env = "MY_OTHER_KEY"

[models.local]
model = "vllm:Qwen/Qwen3-8B"
base_url = "http://localhost:8000/v1"
# return_token_ids = true            # exact tokens, for RL
# logprobs = true
# output_mode = "tool"               # how answers in a schema are asked for: native, tool or text
# extra = { chat_template_kwargs = { enable_thinking = false } }

# What a server bears, for all models that name it. What is not said here is found out: from the server's headers,
# from what it refuses, and from whether more requests in flight bring more answers.
[limits.openai]
# requests_per_minute = 500
# tokens_per_minute = 200_000
# max_concurrency = 64
# store = ".treadle/runs.db"         # share it with other processes
"""


def write_config(path: Path, *, is_forced: bool) -> None:
    """Write the file and its schema. Raises: `ConfigError` if one is there, or cannot be written."""
    if os.path.lexists(path) and not is_forced:
        raise ConfigError(f"{str(path)!r} is there already; --force replaces it")
    if path.suffix != ".toml":
        raise ConfigError(f"{str(path)!r} is no name for it; give one that ends with .toml")
    schema = msgspec.json.format(msgspec.json.encode(config_schema()), indent=2) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEMPLATE)
        (path.parent / SCHEMA_NAME).write_bytes(schema)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from error
    print_note(f"{path} is written, and {SCHEMA_NAME} beside it, by which editors check it")
    print_note("next: treadle models list")
