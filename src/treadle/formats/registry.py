"""The text formats by name, and how to tell which one a model writes.

A format's module is imported when the format is first used.
"""

import re
from functools import cache

from treadle.core.documents import read_data
from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.formats.scanner.base import Format

FORMATS: Registry[type[Format]] = Registry(
    "format",
    "treadle.formats",
    {
        "hermes": "treadle.formats.hermes:Hermes",
        "qwen3_coder": "treadle.formats.element_formats:Qwen3Coder",
        "llama3_json": "treadle.formats.llama:Llama3Json",
        "llama3_pythonic": "treadle.formats.llama:Llama3Pythonic",
        "mistral": "treadle.formats.section_formats:Mistral",
        "deepseek_v3": "treadle.formats.section_formats:DeepSeekV3",
        "deepseek_v31": "treadle.formats.section_formats:DeepSeekV31",
        "deepseek_v32": "treadle.formats.element_formats:DeepSeekV32",
        "glm45": "treadle.formats.element_formats:Glm45",
        "kimi_k2": "treadle.formats.section_formats:KimiK2",
        "harmony": "treadle.formats.harmony:Harmony",
        "granite": "treadle.formats.section_formats:Granite",
        "xlam": "treadle.formats.xlam:Xlam",
        "minimax": "treadle.formats.element_formats:MiniMax",
        "functionary": "treadle.formats.functionary:Functionary",
    },
)
AUTO = "auto"
"""The name that stands for the format that `detect` finds."""


def _marks(kind: str) -> list[tuple[str, str]]:
    """Return the entries of a list of `marks.toml`: a mark, and the name of its format."""
    return [(mark, name) for mark, name in read_data(__package__, "marks")[kind]]


@cache
def find_format(name: str) -> Format:
    """Return the format with this name.

    Raises: `ConfigError` that names similar formats if there is no such format.
    """
    return FORMATS.load(name)()


def detect(model: str | None = None, *, chat_template: str | None = None, text: str | None = None) -> str:
    """Return the name of the format that a model writes.

    The chat template is tried first, then the name of the model, then a text that the model wrote.

    Raises: `ConfigError` if none of them identifies the format.
    """
    if chat_template is not None:
        for mark, name in _marks("templates"):
            if mark in chat_template:
                return name
    if model is not None:
        for pattern, name in _marks("models"):
            if re.search(pattern, model, re.IGNORECASE):
                return name
    if text is not None and (found := _detect_text(text)) is not None:
        return found
    raise ConfigError(
        f"cannot tell which format the model {model!r} writes; give one of {', '.join(FORMATS.names())}"
    )


def _detect_text(text: str) -> str | None:
    for mark, name in _marks("texts"):
        if mark in text:
            return name
    at = text.find("<tool_call>")
    if at != -1:
        behind = text[at + len("<tool_call>") :].lstrip()
        if behind.startswith("["):
            return "granite"
        if behind.startswith("<function="):
            return "qwen3_coder"
        return "hermes" if behind.startswith("{") or not behind[:1].isalpha() else "glm45"
    at = text.find("<function=")
    if at != -1:
        return "qwen3_coder" if "<parameter=" in text[at:] else "functionary"
    return None
