"""What is known of a provider: its address, its key, and how its server differs from others of its dialect."""

from collections.abc import Mapping

from msgspec import Struct

from treadle.core.types import OutputMode


class Quirks(Struct, frozen=True, omit_defaults=True):
    """The differences between a chat-completions server and OpenAI's."""

    renamed: Mapping[str, str] = {}
    """Maps a field of the request body to the name that this server uses."""
    has_reasoning: bool = True
    """Whether the server accepts the reasoning of earlier messages."""
    has_short_ids: bool = False
    """Whether the ids of calls must be nine letters and digits."""


class Preset(Struct, frozen=True, kw_only=True):
    """A provider."""

    dialect: str
    base_url: str | None = None
    """The base URL of the provider's server. `None`: the one of the dialect."""
    key_variable: str | None = None
    """The environment variable that holds the API key."""
    needs_key: bool = True
    """Whether the server at `base_url` needs a key; another server may not."""
    base_url_variable: str | None = None
    """The environment variable that may hold another base URL."""
    header_variables: Mapping[str, str] = {}
    """Maps a header to the environment variable with its value. The header is sent if the variable is set."""
    output_mode: OutputMode = OutputMode.NATIVE
    """How the provider's models are made to give an answer that fits a schema."""
    decodes_beside_tools: bool = True
    """Whether the server accepts a schema for the answer in a request that has tools."""
    quirks: Quirks = Quirks()
    price_provider: str | None = None
    """The provider's name in genai-prices. `None`: the models are free, or their prices are not known."""
