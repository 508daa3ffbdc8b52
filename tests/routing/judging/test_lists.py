"""The word lists of all languages can be read, and every list is used."""

import re

import pytest

from treadle.routing.judging import lists

SLOT = re.compile(r"\{([a-z]\w*)\}")


def written() -> list[tuple[str, str]]:
    """Return the section and the text of each pattern."""
    found: list[tuple[str, str]] = []

    def walk(section: str, value: object) -> None:
        if isinstance(value, str):
            found.append((section, value))
        elif isinstance(value, dict):
            for name, item in value.items():
                if name not in ("kind", "missing", "unless", "is_deictic"):
                    walk(section, item)
        elif isinstance(value, list):
            for item in value:
                walk(section, item)

    for section, value in lists.patterns().items():
        if section != "tools":
            walk(section, value)
    return found


@pytest.mark.parametrize(("section", "text"), written())
def test_each_pattern_compiles(section, text):
    assert lists.compile_pattern(section, text)


def test_each_list_of_a_language_is_used():
    named: dict[str, set[str]] = {}
    for section, text in written():
        named.setdefault(section, set()).update(SLOT.findall(text))
    named["ambiguity"].add("afterwards")
    shared = set().union(*named.values())
    for code, sections in lists.languages().items():
        for section in ("clauses", "ambiguity", "task", "refusal"):
            wrong = {name for name in sections[section] if name not in named[section] | {"imperatives"}}
            assert not wrong, (code, section)
        assert sections["common"].keys() <= shared, code


def test_opposites_have_two_sides():
    for sections in lists.languages().values():
        assert all(len(sides) == 2 for sides in sections["opposites"].values())


@pytest.mark.parametrize(
    ("phrases", "text", "is_found"),
    [
        ("clear -/out the", "clear the", True),
        ("clear -/out the", "clear out the", True),
        ("luxur*", "luxurious", True),
        ("more _, better", "more colourful", True),
        ("more _, better", "more", False),
        ("are you (really/just) -/a bot", "are you just really a bot", True),
        ("are you (really/just) -/a bot", "are you my bot", False),
        ("who are you ~talking/writing", "who are you", True),
        ("who are you ~talking/writing", "who are you talking", False),
        ("what are you .", "what are you?", True),
        ("what are you .", "what are you doing", False),
        ("in # days", "in 30 days", True),
    ],
)
def test_the_notation_of_phrases(phrases, text, is_found):
    assert bool(re.match(lists.expression(phrases), text)) is is_found


def test_a_list_that_no_language_has_is_an_error():
    with pytest.raises(LookupError, match="no language has the list 'colours'"):
        lists.compile_pattern("task", "{colours}")
