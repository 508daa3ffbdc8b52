"""The text of a final answer that must be JSON."""


def strip_answer(text: str) -> str:
    """Return an answer without surrounding white space and without a code fence around all of it."""
    text = text.strip()
    first, _, rest = text.partition("\n")
    # Any other fence is inside one of its strings: without the outer fence it would still not be JSON.
    is_fenced = first.startswith("```") and "`" not in first[3:] and rest.endswith("```")
    return rest[:-3].strip() if is_fenced else text
