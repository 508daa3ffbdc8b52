"""The meanings of servers' errors, by the codes and texts in `faults.toml`, for all dialects."""

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core import errors
from treadle.core.errors import ProviderError
from treadle.core.texts.documents import read_data
from treadle.core.types import Json


class Meaning(Struct, frozen=True):
    """The meaning of an error; `faults.toml` says what its fields are."""

    error: str
    """The name of a class of `core/errors`."""
    status: int
    usual: tuple[int, ...] = ()
    advice: str = ""

    @property
    def kind(self) -> type[ProviderError]:
        kind: type[ProviderError] = getattr(errors, self.error)
        return kind


_MAX_TOKENS = r"(?<!`)\bmax_(?:completion_|new_|output_)?tokens\b"
_LIMITED = re.compile(r"limit:? (\d+),?.{0,40}?requested:? (\d+)", re.IGNORECASE)


class FaultRule(Struct, frozen=True):
    """The texts and codes of servers that have one meaning."""

    meaning: str
    """The name of a meaning."""
    pattern: re.Pattern[str]
    statuses: frozenset[int]
    """The statuses with which the texts have this meaning. With status 200, the status is not compared."""

    def matches(self, status: int, text: str) -> bool:
        """Return whether an error with this status and text has the rule's meaning."""
        is_apt = status == 200 or status in self.statuses
        return is_apt and self.pattern.search(text) is not None


def find_meaning(status: int, text: str) -> Meaning:
    """Return the meaning of an error, given its status and its codes and texts in one string."""
    for rule in fault_rules():
        if rule.matches(status, text):
            return _meanings()[_refine(rule.meaning, text)]
    if status == 200:
        return _meanings()["bad" if re.search(r"invalid[_ ]request|BadRequest", text) else "broken"]
    usual = next((item for item in _meanings().values() if status in item.usual), None)
    return usual or _meanings()["broken" if status >= 500 else "bad"]


def status_of_code(code: str) -> int | None:
    """Return the HTTP status that a code within an error stands for; `None` if the code is not known."""
    status: int | None = _read_file()["status_of_code"].get(code)
    return status


def find_bad_call(error: dict[str, Json], text: str) -> str | None:
    """Return the text of a tool call that the server could not read: what the model wrote, or else what the
    server says about it. Return `None` if the error has another cause.

    Source: Groq, `{"code": "tool_use_failed", "failed_generation": "…"}`; Ollama, `error parsing tool call:
    raw='…', err=…`; llama.cpp, `Failed to parse input at pos 12: …`.
    """
    known = _read_file()["bad_call"]
    if error.get("code") not in known["codes"] and _any_of(tuple(known["patterns"])).search(text) is None:
        return None
    written = error.get("failed_generation")
    if written:
        return written if isinstance(written, str) else msgspec.json.encode(written).decode()
    for pattern in known["written"]:
        if (found := re.search(pattern, text)) is not None:
            return found[1]
    return ""


@cache
def fault_rules() -> tuple[FaultRule, ...]:
    """Return the rules in their order; the first one that matches decides."""
    return tuple(
        [
            FaultRule(rule["meaning"], _any_of(tuple(rule["patterns"])), frozenset(rule["statuses"]))
            for rule in _read_file()["rules"]
        ]
    )


def _refine(meaning: str, text: str) -> str:
    """Return the exact meaning, by the numbers in the text."""
    if meaning == "busy" and (asked := _LIMITED.search(text)) and int(asked[2]) > int(asked[1]):
        return "too_big"
    if meaning == "overflow":
        for pattern in _read_file()["sums"]["patterns"]:
            found = re.search(pattern, text)
            if found is not None and int(found["output"]) >= int(found["limit"]):
                # No prompt, however short, leaves room for that much output.
                return "output"
    return meaning


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns).replace("MAX_TOKENS", _MAX_TOKENS), re.IGNORECASE)


@cache
def _meanings() -> dict[str, Meaning]:
    return msgspec.convert(_read_file()["meanings"], dict[str, Meaning])


def _read_file() -> dict[str, Any]:
    return read_data(__package__, "faults")
