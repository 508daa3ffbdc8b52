"""The errands."""

from collections.abc import Mapping

from treadle.teacher.working.errands import Errand, Work, pick_path, prompts
from treadle.teacher.working.kit import Kit


def _count_lines(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    return f"{path} has {len(text.splitlines())} lines."


ERRANDS: tuple[Errand, ...] = (
    Errand(
        name="count_lines",
        kinds=("single", "recovery", "missing_parameter"),
        needs=("read",),
        prompts=prompts(
            "How many lines does {path} have?",
            "Please count the lines of {path} for me.",
            "Open {path} and tell me how many lines there are in it.",
        ),
        gapped=prompts(
            "How many lines does that file have?",
            "Please count the lines of the file for me.",
        ),
        draw=lambda shelf, draw: pick_path(shelf.paths(), draw),
        work=_count_lines,
    ),
)
