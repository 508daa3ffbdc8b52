"""Coverage-guided fuzzing of the text formats: `python -m tests.fuzz.formats FORMAT SECONDS`, or `make fuzz`.

No text may crash or slow down a parser; cutting a text into pieces must change nothing; and every call, error
and piece of content must come from the text.
"""

import sys

import atheris

with atheris.instrument_imports(include=["treadle.formats"]):
    from treadle.formats import FORMATS, ContentPiece, IncrementalParser, parse

from tests.formats.test_properties import TAGS

from treadle.core.types import ToolSpec

TOOLS = (
    ToolSpec(
        "f",
        "",
        {
            "properties": {
                "a": {"type": "integer"},
                "s": {"type": "string"},
                "o": {"type": "object"},
                "b": {"type": ["boolean", "null"]},
            }
        },
    ),
)
MAX_SECONDS = 5
"""The limit for one text of some kilobytes, on a busy machine."""


def make_text(data: atheris.FuzzedDataProvider) -> str:
    """Return a text of marks with random text between them."""
    parts = []
    while data.remaining_bytes() > 0 and len(parts) < 400:
        choice = data.ConsumeIntInRange(0, 2 * len(TAGS) + 8)
        tag = TAGS[choice % len(TAGS)]
        if choice < len(TAGS):
            parts.append(tag)
        elif choice < 2 * len(TAGS):
            # A mark that is cut off.
            parts.append(tag[: data.ConsumeIntInRange(0, len(tag))])
        else:
            parts.append(data.ConsumeUnicodeNoSurrogates(data.ConsumeIntInRange(0, 12)))
    return "".join(parts)


def check(format: str, data: bytes) -> None:
    """Check one text."""
    provider = atheris.FuzzedDataProvider(data)
    tools = TOOLS if provider.ConsumeBool() else None
    begins = (None, True, False)[provider.ConsumeIntInRange(0, 2)]
    size = provider.ConsumeIntInRange(1, 40)
    text = make_text(provider)
    whole = parse(text, format, tools, begins_in_reasoning=begins)
    for found in (*whole.tool_calls, *whole.errors):
        assert found.raw, found
        assert text[found.position : found.position + len(found.raw)] == found.raw, found
    for call in whole.tool_calls:
        assert call.name, call
        assert call.name in call.raw or "\\" in call.raw, call
        assert isinstance(call.arguments, dict), call
    parser = IncrementalParser(format, tools, begins_in_reasoning=begins)
    pieces = [piece for at in range(0, len(text), size) for piece in parser.feed(text[at : at + size])]
    assert parser.close() == whole
    pieces += parser.pieces
    assert "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece)) == whole.content


def main() -> None:
    """Run until the time is over or an error is found, which libFuzzer then saves."""
    format, seconds = sys.argv[1:3]
    if format not in FORMATS:
        sys.exit(f"there is no format {format!r}; there are {', '.join(FORMATS.names())}")
    options = [f"-max_total_time={seconds}", f"-timeout={MAX_SECONDS}", "-max_len=2048", "-verbosity=0"]
    atheris.Setup(
        [sys.argv[0], *options, "-print_final_stats=1", *sys.argv[3:]], lambda data: check(format, data)
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
