"""Text that is written while it comes, as a terminal of 40 columns shows it."""

import io

import pyte
import pytest
from rich.console import Console

from treadle.cli.terminal.streamed_text import StreamedText

COLUMNS, ROWS = 40, 60
LONG = "Words are not broken at the end of a line, however long the answer of the model may become. " * 3
MARKDOWN = f"""# Result

{LONG}
A second line, with **bold**, `code` and <b>HTML</b>.

- a point that is longer than the line of this narrow terminal
- [a link](https://example.org/hidden)

```python
def add(a, b):

    return a + b
```

| name | count |
| --- | --- |
| tea | 3 |

The end."""


class Screen:
    """A terminal that a text is written to."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.console = Console(
            file=self._file,
            force_terminal=True,
            width=COLUMNS,
            height=20,
            color_system="standard",
            markup=False,
        )

    @property
    def lines(self) -> list[str]:
        """What the terminal shows."""
        screen = pyte.Screen(COLUMNS, ROWS)
        pyte.Stream(screen).feed(self._file.getvalue().replace("\n", "\r\n"))
        return [line.rstrip() for line in screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip()


def write(text: str, size: int, *, pauses: int = 0, style: str | None = None) -> Screen:
    """Write a text in pieces, with a pause in the middle of the output after every `pauses` pieces."""
    screen = Screen()
    stream = StreamedText(style, screen.console)
    for number, start in enumerate(range(0, len(text), size)):
        stream.add(text[start : start + size])
        stream._draws_at = 0.0  # each piece is drawn, as if time had passed
        if pauses and number % pauses == pauses - 1:
            stream.pause()
    stream.end()
    return screen


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize("size", [90, 10_000])
def test_markdown_is_shown_alike_however_it_comes(size: int) -> None:
    shown = write(MARKDOWN, size)
    assert shown.text == write(MARKDOWN, 10_000).text
    assert "**" not in shown.text
    assert "```" not in shown.text
    assert "# Result" not in shown.text
    for part in ("<b>HTML</b>", " • a point", "https://example.org/hidden", "    return a + b", "The end."):
        assert part in shown.text, shown.text
    assert not any(line.endswith(("Wor", "brok")) for line in shown.lines)
    assert [word for word in words(LONG) if word not in words(shown.text)] == []
    # A line end of the text is one of the screen.
    assert any(line.startswith("A second line") for line in shown.lines)


@pytest.mark.parametrize("size", [13, 30])
def test_a_pause_loses_and_doubles_nothing(size: int) -> None:
    """A person types in the middle of a word, of a block of code, and of a list."""
    plain = MARKDOWN.partition("| name")[0]
    shown = write(plain, size, pauses=max(1, 60 // size))
    assert sorted(words(shown.text)) == sorted(words(write(plain, 10_000).text))


def test_an_answer_that_is_higher_than_the_terminal_is_whole_in_the_end() -> None:
    code = "```\n" + "".join([f"line {number}\n" for number in range(45)]) + "```\n"
    shown = write(code, 40)
    assert [line.strip() for line in shown.lines if line.strip()] == [
        f"line {number}" for number in range(45)
    ]


def test_reasoning_is_plain_and_wraps_at_words() -> None:
    shown = write(f"I *think*.\n{LONG}", 11, style="dim")
    assert "I *think*." in shown.lines
    assert words(shown.text) == words(f"I *think*.\n{LONG}")


def test_texts_cannot_control_the_terminal() -> None:
    screen = Screen()
    stream = StreamedText(None, screen.console)
    stream.add("a\x1b[2Jb \x9b31m `c\u202ed`")
    stream.end()
    assert "\x1b[2J" not in screen._file.getvalue()
    assert "\x9b" not in screen._file.getvalue()
    assert "\u202e" not in screen._file.getvalue()
