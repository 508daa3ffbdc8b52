"""Errands about several files, and about which files there are."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from treadle.tasks.draws import Draw
from treadle.tasks.solver import FailedResult, Step
from treadle.testbed.working.errands.changing import LINES
from treadle.testbed.working.errands.errand import (
    Errand,
    Shelf,
    Work,
    count_of,
    free_path,
    one_line,
    prompts,
    words_in,
)
from treadle.testbed.working.kit import Kit, paths_in

_PARTS = ("path", "second", "third")


def _reading_all(answer: Callable[[Mapping[str, str], Mapping[str, str]], str]) -> Callable[..., Work]:
    """Return a function that reads all files of an errand in one step, and answers with what `answer` returns.

    `answer` is called with the values of the errand, and with the texts of its files by path.
    """

    def work(values: Mapping[str, str], kit: Kit) -> Work:
        paths = [values[name] for name in _PARTS if name in values]
        reasoning = "The files do not depend on each other, so I read them at the same time."
        texts = yield Step([kit.read(path) for path in paths], reasoning, may_fail=True)
        missing = [path for path, text in zip(paths, texts, strict=True) if isinstance(text, FailedResult)]
        if missing:
            return f"I could not read {' and '.join(missing)}. Are the paths right?"
        return answer(values, dict(zip(paths, texts, strict=True)))

    return work


def _compare(values: Mapping[str, str], texts: Mapping[str, str]) -> str:
    counts = {path: len(text.splitlines()) for path, text in texts.items()}
    shown = " and ".join([f"{path} has {count_of(count, 'line')}" for path, count in counts.items()])
    most = [path for path, count in counts.items() if count == max(counts.values())]
    return f"{shown}, so {'they are equally long' if len(most) > 1 else f'{most[0]} is longer'}."


def _first_lines(values: Mapping[str, str], texts: Mapping[str, str]) -> str:
    firsts = {path: (text.splitlines() or [""])[0] for path, text in texts.items()}
    return "\n".join([f"{path}: {one_line(line) or '(empty)'}" for path, line in firsts.items()])


def _total(values: Mapping[str, str], texts: Mapping[str, str]) -> str:
    counts = [len(text.splitlines()) for text in texts.values()]
    parts = ", ".join([f"{path} has {count}" for path, count in zip(texts, counts, strict=True)])
    return f"Together they have {count_of(sum(counts), 'line')}: {parts}."


def _which_has(values: Mapping[str, str], texts: Mapping[str, str]) -> str:
    having = [path for path, text in texts.items() if values["word"] in text]
    if len(having) == len(texts):
        return f'Both {" and ".join(having)} contain "{values["word"]}".'
    return f'Only {having[0]} contains "{values["word"]}".' if having else "Neither of them contains it."


def _listing(answer: Callable[[Mapping[str, str], Sequence[str]], str]) -> Callable[..., Work]:
    def work(values: Mapping[str, str], kit: Kit) -> Work:
        (listing,) = yield Step([kit.list()], "A listing of the files answers this.")
        return answer(values, paths_in(listing))

    return work


def _count_files(values: Mapping[str, str], paths: Sequence[str]) -> str:
    return f"There {'is' if len(paths) == 1 else 'are'} {count_of(len(paths), 'file')}."


def _all_files(values: Mapping[str, str], paths: Sequence[str]) -> str:
    return f"These files are there: {', '.join(paths)}." if paths else "There are no files."


def _by_ending(values: Mapping[str, str], paths: Sequence[str]) -> str:
    found = [path for path in paths if path.endswith(f".{values['ending']}")]
    return f"These end in .{values['ending']}: {', '.join(found)}." if found else "There are none."


def _most_common(values: Mapping[str, str], paths: Sequence[str]) -> str:
    endings = Counter([path.rpartition(".")[2] for path in paths if "." in path.rpartition("/")[2]])
    if not endings:
        return "None of the files has an ending."
    ending, count = min(endings.items(), key=lambda item: (-item[1], item[0]))
    return f"The most frequent ending is .{ending}: {count_of(count, 'file')} of {len(paths)} have it."


def _reading_one(
    choose: Callable[[Sequence[str]], str], answer: Callable[[str, str], str]
) -> Callable[..., Work]:
    """Return work that lists the files, and reads the one that `choose` returns."""

    def work(values: Mapping[str, str], kit: Kit) -> Work:
        (listing,) = yield Step([kit.list()], "First I need to know which files there are.")
        paths = paths_in(listing)
        if not paths:
            return "There are no files, so there is nothing to read."
        path = choose(paths)
        (text,) = yield Step([kit.read(path)], f"That is {path}, so I read it.", may_fail=True)
        if isinstance(text, FailedResult):
            return f"It is {path}, but I could not read it: {one_line(text.strip())}"
        return answer(path, text)

    return work


def _draw_files(count: int, *, is_short: bool = False) -> Callable[[Shelf, Draw], dict[str, str] | None]:
    def draw_files(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
        paths = draw.sample(shelf.paths(is_short=is_short), count)
        return dict(zip(_PARTS, paths, strict=False)) if len(paths) == count else None

    return draw_files


def _draw_word_and_files(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    found = _draw_files(2)(shelf, draw)
    words = words_in(shelf.heads[found["path"]]) if found else []
    return {**found, "word": draw.pick(words)} if found and words else None


def _draw_ending(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    names = [path.rpartition("/")[2] for path in shelf.paths()]
    endings = sorted({name.rpartition(".")[2] for name in names if "." in name})
    return {"ending": draw.pick(endings)} if endings else None


def _draw_nothing(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    return {}


def _ensure(values: Mapping[str, str], kit: Kit) -> Work:
    path = values["path"]
    (text,) = yield Step([kit.read(path)], f"I read {path} to count its lines.", may_fail=True)
    if not isinstance(text, FailedResult):
        return f"{path} exists, and it has {count_of(len(text.splitlines()), 'line')}."
    yield Step(
        [kit.write(path, f"{values['line']}\n")], f"There is no {path}, so I create it, as I was told."
    )
    return f"There was no {path}, so I created it with this line: {values['line']}"


def _draw_absent(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    return {"path": free_path(shelf, draw, ".txt"), "line": draw.pick(LINES)}


def _quote_first(path: str, text: str) -> str:
    return f"It is {path}, and it begins with: {one_line((text.splitlines() or [''])[0])}"


SEVERAL: tuple[Errand, ...] = (
    Errand(
        name="compare_lengths",
        kinds=("parallel",),
        needs=("read",),
        prompts=prompts(
            "Which one has more lines, {path} or {second}?",
            "Compare {path} with {second}: which is longer, counted in lines?",
            "Tell me whether {path} or {second} has the greater number of lines.",
        ),
        draw=_draw_files(2, is_short=True),
        work=_reading_all(_compare),
    ),
    Errand(
        name="first_lines_of_three",
        kinds=("parallel",),
        needs=("read",),
        prompts=prompts(
            "What are the first lines of {path}, {second} and {third}?",
            "Give me the opening line of each of these: {path}, {second} and {third}.",
            "I want to see how {path}, {second} and {third} begin, one line each.",
        ),
        draw=_draw_files(3),
        work=_reading_all(_first_lines),
    ),
    Errand(
        name="total_lines",
        kinds=("parallel",),
        needs=("read",),
        prompts=prompts(
            "How many lines do {path} and {second} have together?",
            "Add up the lines of {path} and {second} for me.",
            "If I print {path} and {second}, how many lines is that in total?",
        ),
        draw=_draw_files(2, is_short=True),
        work=_reading_all(_total),
    ),
    Errand(
        name="which_has_word",
        kinds=("parallel",),
        needs=("read",),
        prompts=prompts(
            'Does "{word}" occur in {path}, in {second}, or in both?',
            'Which of {path} and {second} contains the word "{word}"?',
            'Check {path} and {second}: where does "{word}" turn up?',
        ),
        draw=_draw_word_and_files,
        work=_reading_all(_which_has),
    ),
    Errand(
        name="ensure",
        kinds=("recovery",),
        needs=("read", "write"),
        prompts=prompts(
            "How many lines does {path} have? If there is no such file, create it with this line: {line}",
            "Look how long {path} is. Should it be missing, start it with the following line: {line}",
        ),
        draw=_draw_absent,
        work=_ensure,
        makes=("path",),
        is_misspelt=False,
    ),
    Errand(
        name="count_files",
        kinds=("single",),
        needs=("list",),
        prompts=prompts(
            "How many files are there altogether?",
            "Count the files for me.",
            "What is the number of files that you can see?",
        ),
        draw=_draw_nothing,
        work=_listing(_count_files),
    ),
    Errand(
        name="all_files",
        kinds=("single",),
        needs=("list",),
        prompts=prompts(
            "Which files are there?",
            "Give me a list of all the files.",
            "Name every file that you can find.",
        ),
        draw=_draw_nothing,
        work=_listing(_all_files),
    ),
    Errand(
        name="files_by_ending",
        kinds=("single",),
        needs=("list",),
        prompts=prompts(
            "Which files have names that end in .{ending}?",
            "List the files of the type .{ending}, and no others.",
            "Show me all .{ending} files.",
        ),
        draw=_draw_ending,
        work=_listing(_by_ending),
    ),
    Errand(
        name="common_ending",
        kinds=("single",),
        needs=("list",),
        prompts=prompts(
            "Which file ending is the most frequent one here?",
            "Going by the endings of their names, which type of file do we have most of?",
        ),
        draw=_draw_nothing,
        work=_listing(_most_common),
    ),
    Errand(
        name="first_in_order",
        kinds=("chained",),
        needs=("list", "read"),
        prompts=prompts(
            "Take the file that comes first in alphabetical order, and tell me how it begins.",
            "Sort the paths of all files from A to Z. What is the first line of the first one?",
        ),
        draw=_draw_nothing,
        work=_reading_one(min, _quote_first),
    ),
    Errand(
        name="last_in_order",
        kinds=("chained",),
        needs=("list", "read"),
        prompts=prompts(
            "Which file comes last in alphabetical order, and what is its first line?",
            "Order the paths of all files from A to Z, take the last one, and quote how it begins.",
        ),
        draw=_draw_nothing,
        work=_reading_one(max, _quote_first),
    ),
    Errand(
        name="longest_path",
        kinds=("chained",),
        needs=("list", "read"),
        prompts=prompts(
            "Look for the file with the longest path, and tell me which line it begins with.",
            "One of the paths is longer than all others. What does that file begin with, and which one is it?",
        ),
        draw=_draw_nothing,
        work=_reading_one(lambda paths: max(paths, key=lambda path: (len(path), path)), _quote_first),
    ),
)
