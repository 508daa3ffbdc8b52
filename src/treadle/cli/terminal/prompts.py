"""The prompt and the sampled answer of each step, as `treadle show` prints them."""

import math
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from treadle.cli.terminal.output import clean, print_json_lines, print_line, shorten, stdout, write_count
from treadle.context.step_view import LeftOut, SeenMessage, view_step
from treadle.core.types import Json, Message
from treadle.journal.protocol import Journal
from treadle.renderers.registry import load_renderer
from treadle.trajectory.tokens import Decode, TokenGrade, Trajectory, load_tokens
from treadle.trajectory.tokens.trajectories import split_text

if TYPE_CHECKING:
    from rich.text import Text

_WHY = {
    "summarised": "in the summary",
    "dropped": "in no summary",
    "cut": "shown in part, or as a line",
    "forgotten": "its recalled memories were taken out",
}


def print_context(journal: Journal, run_id: str, step: int, *, is_full: bool, is_json: bool) -> None:
    """Print what the model saw at `step` of a run, with sizes, and what was left out and why.

    Raises: `ConfigError` if the run has no such step.
    """
    view = view_step(journal.read(run_id), step)
    if is_json:
        print_json_lines([msgspec.json.encode(view)])
        return
    width = 1_000_000 if is_full else max(20, min(stdout().width, 160) - 30)
    origin = "counted by the server" if view.is_counted else "estimated"
    head = [
        f"step {view.step}",
        clean(view.model or "no model"),
        f"{write_count(view.tokens, 'token')} ({origin})",
    ]
    if view.room is not None:
        head.append(f"room for {view.room:,}")
    if view.usage.input_tokens:
        share = view.usage.cached_input_tokens / view.usage.input_tokens
        head.append(f"{share:.0%} cached")
    print_line(" · ".join(head), "bold")
    if view.window is not None:
        kept = f"{view.window.output_tokens:,} kept for the answer"
        print_line(f"window: {view.window.tokens:,} tokens ({view.window.source}), {kept}", "dim")
    if view.tools:
        names = ", ".join(map(clean, view.tools))
        print_line(f"{view.tools_tokens:>8,}  tools      {shorten(names, width)}", "dim")
    for item in view.messages:
        text = f"{item.tokens:>8,}  {item.message.role:<9}  {_describe_part(item, width)}"
        print_line(text, "cyan" if item.is_summary else "")
    if view.left_out:
        print_line("\nleft out:", "bold")
    for gone in view.left_out:
        print_line(f"{gone.tokens:>8,}  {gone.message.role:<9}  {_explain_context(gone, width)}", "dim")


def _describe_part(item: SeenMessage, width: int) -> str:
    notes = []
    if item.is_summary:
        notes.append("summary")
    if item.is_cut:
        notes.append("cut")
    if item.recalled_chars:
        notes.append(f"with {item.recalled_chars:,} characters recalled")
    if item.message.parts:
        notes.append(write_count(len(item.message.parts), "attached file"))
    mark = f"[{', '.join(notes)}] " if notes else ""
    return mark + _excerpt(item.message, width - len(mark))


def _explain_context(gone: LeftOut, width: int) -> str:
    mark = f"{_WHY[gone.why]}, by event {gone.seq}: "
    return mark + _excerpt(gone.message, max(10, width - len(mark)))


def _excerpt(message: Message, width: int) -> str:
    calls = " ".join([f"{call.name}({call.arguments})" for call in message.tool_calls])
    return shorten(" ".join(filter(None, [message.content, calls])), width)


_SHOWN = 60
"""How many tokens of a longer prompt are shown at its beginning and at its end."""
_HEAT = (
    (0.9, "black on green"),
    (0.5, "black on bright_green"),
    (0.1, "black on yellow"),
    (0.0, "white on red"),
)
"""The styles of trained tokens by their least probability."""
_UNKNOWN = "white on blue"
_ELSEWHERE = "underline"
_PROMPT = "dim"


def print_tokens(
    journal: Journal, run_id: str, renderer: str | None, *, is_full: bool, is_json: bool
) -> bool:
    """Print the branches of a run and of its sub-agents, and return whether every sampled token is in one.

    Raises: `ConfigError` for an unknown renderer.
    """
    given = None if renderer is None else load_renderer(renderer)
    graph = load_tokens(journal, run_id, decode=None if given is None else given.decode)
    proof = graph.conservation
    if is_json:
        rows = [_write_row(item) for item in graph.trajectories]
        print_json_lines(
            [msgspec.json.encode(row) for row in (*rows, {"conservation": msgspec.to_builtins(proof)})]
        )
        return not proof.faults
    print_line(str(proof), "bold" if not proof.faults else "bold red")
    if graph.trajectories and any([item.grade is not TokenGrade.TEXT for item in graph.trajectories]):
        print_line(_legend())
    for item in graph.trajectories:
        print_line(f"\n{_describe_branch(item)}", "bold")
        if (why := _explain_tokens(item)) is not None:
            print_line(why, "yellow")
        if item.grade is TokenGrade.TEXT:
            print_line(
                "the run has no token ids, for which only vLLM and SGLang are asked; leave out --tokens",
                "dim",
            )
        else:
            if given is not None and item.tokenizer not in (None, given.fingerprint):
                print_line(
                    f"another renderer than {given.name!r} made these ids; the text may be wrong", "yellow"
                )
            decode = graph.find_decode(item.tokenizer)
            print_line(_draw(item, decode, is_full=is_full))
    return not proof.faults


_LOGPROBS = {True: "logprobs of the policy", False: "logprobs that are not the policy's", None: ""}
"""What the logprobs of a branch are, by `Trajectory.has_policy_logprobs`."""


def _describe_branch(item: Trajectory) -> str:
    versions = {version for span in item.spans for _, version in span.weight_versions}
    models = dict.fromkeys([span.model for span in item.spans if span.model])
    parts = [
        f"branch {item.branch} of {clean(item.run_id)}",
        item.grade.value,
        _LOGPROBS[item.has_policy_logprobs] if item.grade is TokenGrade.TOKEN_EXACT else "",
        f"{write_count(len(item.token_ids_T), 'token')}, {item.sampled_tokens:,} sampled here",
        ", ".join(map(clean, models)),
        f"weights {clean(', '.join(sorted(versions)))}" if versions else "",
        clean(item.spans[-1].finish_reason.value),
    ]
    return " · ".join([part for part in parts if part])


def _explain_tokens(item: Trajectory) -> str | None:
    drift = item.drift
    if drift is None:
        return None
    where = f"begins because of {drift.kind.value}"
    if drift.seq is None:
        return where
    sides = [
        " ".join(map(str, ids[:12])) if text is None else repr(shorten(text, 60))
        for ids, text in ((drift.expected, drift.expected_text), (drift.found, drift.found_text))
    ]
    return (
        f"{where}: at token {drift.position:,}, event {drift.seq} of {clean(drift.run_id or '')} has {sides[0]}, "
        f"and the prompt {sides[1]}"
    )


def _legend() -> "Text":
    from rich.text import Text

    shown = [("prompt", _PROMPT), ("sampled, delivered by another branch", _ELSEWHERE)]
    shown += [(f"p >= {least}" if least else "less", style) for least, style in _HEAT]
    return Text("  ").join(
        [Text(label, style) for label, style in (*shown, ("no log probability", _UNKNOWN))]
    )


def _draw(item: Trajectory, decode: Decode | None, *, is_full: bool) -> "Text":
    """Return the tokens in colours. Without colours, brackets are around what was sampled."""
    from rich.text import Text

    drawn = Text()
    has_color = stdout().color_system is not None
    for begin, end, marks in _find_parts(item):
        ids = item.token_ids_T[begin:end]
        if not marks:
            drawn.append(_write_prompt(ids.tolist(), decode, is_full=is_full), _PROMPT)
            continue
        pieces = [f"{number} " for number in ids] if decode is None else split_text(ids, decode)
        drawn.append("" if has_color else marks[0])
        styled = [(_style(item, at), clean(piece)) for at, piece in enumerate(pieces, begin)]
        for style, same in groupby(styled, key=itemgetter(0)):
            drawn.append("".join([piece for _, piece in same]), style)
        drawn.append("" if has_color else marks[1])
    return drawn


def _find_parts(item: Trajectory) -> Iterator[tuple[int, int, str]]:
    """Yield the beginning and the end of each part, and the marks around it: none around prompts."""
    at = 0
    for span in item.spans:
        if at < span.start:
            yield at, span.start, ""
        if span.start < span.end:
            yield span.start, span.end, "⟦⟧" if span.is_trained else "⟨⟩"
        at = span.end


def _write_prompt(ids: list[int], decode: Decode | None, *, is_full: bool) -> str:
    left_out = 0 if is_full else len(ids) - 2 * _SHOWN
    parts = [ids] if left_out <= 0 else [ids[:_SHOWN], ids[-_SHOWN:]]
    texts = ["".join([f"{number} " for number in part]) if decode is None else decode(part) for part in parts]
    return f" […{write_count(left_out, 'token')}…] ".join(map(clean, texts))


def _style(item: Trajectory, at: int) -> str:
    if not item.sampled_T[at]:
        return _ELSEWHERE
    value = item.logprobs_T[at]
    if math.isnan(value):
        return _UNKNOWN
    return next((style for least, style in _HEAT if math.exp(min(0.0, value)) >= least), _UNKNOWN)


def _write_row(item: Trajectory) -> dict[str, Json]:
    return {
        "run_id": item.run_id,
        "branch": item.branch,
        "grade": item.grade,
        "has_policy_logprobs": item.has_policy_logprobs,
        "token_ids": item.token_ids_T.tolist(),
        "sampled": list(item.sampled_T),
        "logprobs": [None if math.isnan(value) else value for value in item.logprobs_T],
        "spans": msgspec.to_builtins(item.spans),
        "drift": None if item.drift is None else msgspec.to_builtins(item.drift),
        "tokenizer": item.tokenizer,
    }
