"""Prompt templates that can be filled with values, and matched against a finished text to get the values back."""

import re
from collections.abc import Mapping

_FIELD = re.compile(r"\{(\w+)\}")


class Prompt:
    """A text with fields in braces, such as `{folder}`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields = frozenset(_FIELD.findall(text))
        self._pattern = re.compile(self._to_pattern(text), re.DOTALL)

    @staticmethod
    def _to_pattern(text: str) -> str:
        seen: set[str] = set()
        parts = []
        for index, part in enumerate(_FIELD.split(text)):
            if index % 2 == 0:
                parts.append(re.escape(part))
            elif part in seen:
                parts.append(f"(?P={part})")
            else:
                seen.add(part)
                parts.append(f"(?P<{part}>.+?)")
        return "".join(parts)

    def render(self, values: Mapping[str, str]) -> str:
        """Return the text with its fields filled."""
        return _FIELD.sub(lambda match: values[match[1]], self.text)

    def match(self, text: str) -> dict[str, str] | None:
        """Return the values that `text` was filled with, or `None` if `text` does not match the template."""
        found = self._pattern.fullmatch(text)
        return found.groupdict() if found else None
