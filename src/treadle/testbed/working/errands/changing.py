"""Errands that create, change or delete files."""

from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.solver import Step
from treadle.testbed.working.errands.errand import (
    Errand,
    Shelf,
    Work,
    count_of,
    free_path,
    pick_path,
    prompts,
    words_in,
)
from treadle.testbed.working.kit import Kit

LINES = (
    "Ask the front desk about the keys.",
    "Checked on Monday, nothing is missing.",
    "Call back before noon.",
    "Two boxes were moved to the cellar.",
    "The supplier confirmed the new date.",
    "Please keep a copy for the archive.",
    "Replaces the version of last month.",
    "Signed off by the team lead.",
    "To be discussed in the next meeting.",
    "Badge and parking card were returned.",
    "Second reminder was sent.",
    "The figures are preliminary.",
    "No further action is needed.",
    "Reviewed together with the night shift.",
    "Moved to the new shelf in room four.",
    "Waiting for the signed form.",
)
"""Lines for notes."""


def _create(values: Mapping[str, str], kit: Kit) -> Work:
    call = kit.write(values["path"], f"{values['line']}\n")
    yield Step([call], f"The text is given, so I write it to {values['path']}.")
    return f"I created {values['path']} with this line: {values['line']}"


def _delete(values: Mapping[str, str], kit: Kit) -> Work:
    yield Step([kit.delete(values["path"])], f"{values['path']} is to go, so I delete it.")
    return f"I deleted {values['path']}."


def _append(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    before = text if not text or text.endswith("\n") else f"{text}\n"
    call = kit.write(path, f"{before}{values['line']}\n")
    yield Step([call], f"I know what is in {path}, so I write it again with the new line at its end.")
    return f"{path} now ends with the line: {values['line']}"


def _copy(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    yield Step([kit.write(values["copy"], text)], f"Now the same text goes to {values['copy']}.")
    return f"I copied {path} to {values['copy']}."


def _rename(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    yield Step([kit.write(values["copy"], text)], f"First the text has to be in {values['copy']}.")
    yield Step([kit.delete(path)], f"The text is safe, so {path} can go.")
    return f"{path} is now called {values['copy']}."


def _replace(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    count = text.count(values["old"])
    if not count:
        return f'"{values["old"]}" does not occur in {path}, so I changed nothing.'
    call = kit.write(path, text.replace(values["old"], values["new"]))
    yield Step([call], f'"{values["old"]}" occurs in {path}, so I write the text with the other word.')
    return f'I replaced "{values["old"]}" by "{values["new"]}" in {path}, {count_of(count, "time")}.'


def _sort(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    lines = sorted([line for line in text.splitlines() if line.strip()])
    call = kit.write(values["copy"], "".join([f"{line}\n" for line in lines]))
    yield Step([call], f"I sort the lines and write them to {values['copy']}.")
    return f"{values['copy']} has the lines of {path} in alphabetical order."


def _note_length(values: Mapping[str, str], kit: Kit) -> Work:
    path, text = yield from kit.find_text(values["path"])
    if path is None:
        return text
    number = len(text.splitlines())
    yield Step([kit.write(values["copy"], f"{number}\n")], f"I counted {number}; now the note.")
    return f"{path} has {count_of(number, 'line')}; the number is in {values['copy']}."


def _write_and_check(values: Mapping[str, str], kit: Kit) -> Work:
    call = kit.write(values["path"], f"{values['line']}\n")
    yield Step([call], f"I write the line to {values['path']}.")
    (text,) = yield Step([kit.read(values["path"])], "I was asked to check it, so I read it back.")
    return f"{values['path']} was written. It says: {text.strip()}"


def _write_two(values: Mapping[str, str], kit: Kit) -> Work:
    calls = [kit.write(values[name], f"{values['line']}\n") for name in ("path", "copy")]
    yield Step(calls, "The two files do not depend on each other, so I write both at once.")
    return f"{values['path']} and {values['copy']} now both say: {values['line']}"


def _draw_new(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    return {"path": free_path(shelf, draw, ".txt"), "line": draw.pick(LINES)}


def _draw_two(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    path, copy = free_path(shelf, draw, ".txt"), free_path(shelf, draw, ".md")
    return {"path": path, "copy": copy, "line": draw.pick(LINES)}


def _draw_line(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    found = pick_path(shelf.paths(".txt", ".md", ".log"), draw)
    return found and {**found, "line": draw.pick(LINES)}


def _draw_copy(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    found = pick_path(shelf.paths(), draw)
    name = (found or {}).get("path", "").rpartition("/")[2]
    _, dot, ending = name.rpartition(".")
    return found and {**found, "copy": free_path(shelf, draw, f"{dot}{ending}" if dot else ".txt")}


def _draw_note(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    found = pick_path(shelf.paths(is_short=True), draw)
    return found and {**found, "copy": free_path(shelf, draw, ".txt")}


def _draw_words(shelf: Shelf, draw: Draw) -> dict[str, str] | None:
    paths = [path for path in shelf.paths(".txt", ".md") if words_in(shelf.heads[path])]
    if not paths:
        return None
    path = draw.pick(paths)
    old = draw.pick(words_in(shelf.heads[path]))
    new = draw.pick(("revised", "updated", "checked", "open", "closed", "central", "second", "final"))
    return {"path": path, "old": old, "new": new}


CHANGING: tuple[Errand, ...] = (
    Errand(
        name="create",
        kinds=("single", "missing_parameter"),
        needs=("write",),
        prompts=prompts(
            "Create the file {path} with exactly this line: {line}",
            "Please put a new note into {path}. It has one line: {line}",
            "Start a file called {path} and write this into it: {line}",
        ),
        gapped=prompts(
            "Put this line into a new file, please: {line}",
            "Write down the following in a file of its own: {line}",
        ),
        draw=_draw_new,
        work=_create,
        makes=("path",),
    ),
    Errand(
        name="delete",
        kinds=("single", "missing_parameter"),
        needs=("delete",),
        prompts=prompts(
            "Delete {path}. Nobody needs it any more.",
            "Please remove {path}, and nothing else.",
            "The file {path} can be thrown away. Do that for me.",
        ),
        gapped=prompts("Delete the old file. Nobody needs it any more.", "Please remove that one file."),
        draw=lambda shelf, draw: pick_path(shelf.paths(), draw),
        work=_delete,
    ),
    Errand(
        name="append",
        kinds=("chained", "recovery", "missing_parameter"),
        needs=("read", "write"),
        prompts=prompts(
            "Add this line at the end of {path}: {line}",
            "Append one line to {path} and keep the rest as it is: {line}",
            "At the bottom of {path}, a line is missing. Please add it: {line}",
        ),
        gapped=prompts(
            "Add this line at the end of the file: {line}",
            "Append one line to my notes and keep the rest as it is: {line}",
        ),
        draw=_draw_line,
        work=_append,
    ),
    Errand(
        name="copy",
        kinds=("chained", "recovery", "missing_parameter"),
        needs=("read", "write"),
        prompts=prompts(
            "Make a copy of {path} and call it {copy}.",
            "Duplicate {path}. The copy should be at {copy}.",
            "I need the content of {path} a second time, in {copy}.",
        ),
        gapped=prompts("Make a copy of the file and call it {copy}.", "Duplicate my file to {copy}, please."),
        draw=_draw_copy,
        work=_copy,
        makes=("copy",),
    ),
    Errand(
        name="rename",
        kinds=("chained", "recovery"),
        needs=("read", "write", "delete"),
        prompts=prompts(
            "Rename {path} to {copy}.",
            "Move {path} to {copy}; the old one must be gone afterwards.",
            "{path} has the wrong name. It should be called {copy} from now on.",
        ),
        draw=_draw_copy,
        work=_rename,
        makes=("copy",),
    ),
    Errand(
        name="replace",
        kinds=("chained", "recovery"),
        needs=("read", "write"),
        prompts=prompts(
            'Replace "{old}" by "{new}" everywhere in {path}.',
            'In {path}, change every "{old}" to "{new}".',
            'The word "{old}" is out of use. Go through {path} and write "{new}" instead.',
        ),
        draw=_draw_words,
        work=_replace,
    ),
    Errand(
        name="sort",
        kinds=("chained", "recovery"),
        needs=("read", "write"),
        prompts=prompts(
            "Sort the lines of {path} alphabetically and save them as {copy}.",
            "I need {path} in alphabetical order, line by line. Put the result into {copy}.",
            "Write the lines of {path}, sorted from A to Z and without empty ones, to {copy}.",
        ),
        draw=_draw_copy,
        work=_sort,
        makes=("copy",),
    ),
    Errand(
        name="note_length",
        kinds=("chained", "recovery"),
        needs=("read", "write"),
        prompts=prompts(
            "Count the lines of {path} and write just the number to {copy}.",
            "How long is {path}? Store the number of its lines in {copy}, nothing else.",
            "Put the line count of {path} into {copy}, and tell it to me as well.",
        ),
        draw=_draw_note,
        work=_note_length,
        makes=("copy",),
    ),
    Errand(
        name="write_and_check",
        kinds=("chained",),
        needs=("read", "write"),
        prompts=prompts(
            "Write this to {path}, and read it back so that we know it arrived: {line}",
            "Save the next line as {path} and check afterwards what is in there: {line}",
        ),
        draw=_draw_new,
        work=_write_and_check,
        makes=("path",),
    ),
    Errand(
        name="write_two",
        kinds=("parallel",),
        needs=("write",),
        prompts=prompts(
            "Create {path} and {copy}, both with this line: {line}",
            "The same note has to be in two places, {path} and {copy}: {line}",
        ),
        draw=_draw_two,
        work=_write_two,
        makes=("path", "copy"),
    ),
)
