import pytest

from treadle.tools.function.docstring import parse_docstring

GOOGLE = """Search the shop,
    in all its rooms.

    A second paragraph: it is not for the model.

    Args:
        query: What to look for,
            over two lines.
        limit (int, optional): At most so many.

        *rooms: Where.

    Returns:
        query: not a parameter.
    """
NUMPY = """
    Search the shop,
    in all its rooms.

    Parameters
    ----------
    query : str
        What to look for,
        over two lines.
    limit, most : int, optional
        At most so many.
    bare
        No type.

    Returns
    -------
    found : str
        Not a parameter.
    """
SPHINX = """Search the shop,
    in all its rooms.
    :param query: What to look for,
        over two lines.
    :param int limit: At most so many.
    :type limit: int
    :returns: not a parameter
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_each_style_gives_summary_and_parameters(text: str) -> None:
    summary, parameters = parse_docstring(text)
    assert summary == "Search the shop, in all its rooms."
    assert parameters["query"] == "What to look for, over two lines."
    assert parameters["limit"] == "At most so many."
    assert not {"found", "returns", "Returns"} & set(parameters)


def test_names_that_share_a_description() -> None:
    parameters = parse_docstring(NUMPY).parameters
    assert parameters["most"] == "At most so many."
    assert parameters["bare"] == "No type."
    assert list(parameters) == ["query", "limit", "most", "bare"]


def test_google_entries_end_with_their_section() -> None:
    assert list(parse_docstring(GOOGLE).parameters) == ["query", "limit", "rooms"]


@pytest.mark.parametrize("text", [None, "", "  \n ", "Args:\n    x: one", "Returns:\n    nothing"])
def test_no_first_paragraph(text: str | None) -> None:
    assert parse_docstring(text).summary == ""


def test_a_colon_in_the_summary_begins_no_section() -> None:
    assert parse_docstring("Note that: it\ncounts.") == ("Note that: it counts.", {})


def test_parameters_under_a_summary_without_a_gap() -> None:
    assert parse_docstring("Do it.\nArgs:\n  x: one\n  y: two") == ("Do it.", {"x": "one", "y": "two"})


def test_a_colon_in_a_description_begins_no_entry() -> None:
    parameters = parse_docstring("Do it.\n\nArgs:\n  x: one\n    note: of x\n  y: two").parameters
    assert parameters == {"x": "one note: of x", "y": "two"}
