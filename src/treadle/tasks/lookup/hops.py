"""Questions whose answers are several articles away, and their solvers."""

import json
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final
from treadle.tasks.files.grading import Expected, FilesGoal, Items, Number
from treadle.tasks.generated import LEVELS, GeneratedCase, Milestone
from treadle.tasks.lookup.encyclopedia import DATA, RELATIONS, World, describe, read_path, read_relation
from treadle.tasks.solver import Habit, Solver, Step, WantedCall

PATHS = DATA["paths"]


def _open(*titles: str) -> list[Milestone]:
    return [Milestone("open_article", {"title": title}) for title in dict.fromkeys(titles)]


def _generate(kind: str, draw: Draw, level: int) -> GeneratedCase:
    """Draw a question along one path that begins at a thing of a kind."""
    world = World(draw, level)
    path = draw.pick(PATHS[f"from_{kind}"][LEVELS[level]]).split()
    start = draw.pick(world.names[kind])
    things = world.follow(start, path)
    last = RELATIONS[path[-1]]["to"]
    expected: Expected
    if last == "number":
        expected = Number(things[-1])
    else:
        expected = Items(
            (things[-1],), tuple([name for name in world.names[last] if name not in things[:-1]])
        )
    values = {"start": start, "path": describe(path)}
    return GeneratedCase(
        values, world.files(), FilesGoal(expected), (kind, *path), tuple(_open(*things[:-1]))
    )


def _walk(start: str, relations: list[str]) -> Generator[Step, list[str], str]:
    """Open the articles on a path, and return what is at its end."""
    name = start
    for relation in relations:
        asked = RELATIONS[relation]["asked"]
        call = WantedCall("open_article", {"title": name}, path_argument="title")
        (text,) = yield Step([call], f"The article about {name} should tell the {asked}.")
        name = read_relation(text, relation)
    return name


def _solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Find the first article, and follow the relations."""
    start, path = values["start"], read_path(values["path"])
    (found,) = yield Step([WantedCall("search_corpus", {"query": start})], f"First I look for {start}.")
    title = next(title for title in json.loads(found) if title == start)
    answer = yield from _walk(title, path)
    return final(habit, answer, f"The {values['path']} of {start} is {answer}.")


generate_from_company = partial(_generate, "company")
generate_from_person = partial(_generate, "person")
generate_from_town = partial(_generate, "town")
solve_from_company: Callable[[Mapping[str, str], Habit], Any] = _solve
solve_from_person = solve_from_town = solve_from_company


def generate_compare(draw: Draw, level: int) -> GeneratedCase:
    """Draw a question about which of two paths ends at the smaller number."""
    world = World(draw, level)
    path = PATHS["compare"][LEVELS[level]][0].split()
    of = RELATIONS[path[0]]["of"]
    one, other = draw.sample(world.names[of], 2)
    while world.follow(one, path)[-2] == world.follow(other, path)[-2]:
        one, other = draw.sample(world.names[of], 2)
    ends = [world.follow(name, path) for name in (one, other)]
    winner = min(ends, key=lambda things: int(things[-1]))[0]
    values = {"one": one, "other": other, "path": describe(path)}
    goal = FilesGoal(Items((winner,), (one, other)))
    opened = _open(*[name for things in ends for name in things[:-1]])
    return GeneratedCase(values, world.files(), goal, ("compare", *path), tuple(opened))


def solve_compare(values: Mapping[str, str], habit: Habit) -> Solver:
    """Follow both paths, and compare the numbers at their ends."""
    path = read_path(values["path"])
    numbers = {}
    for name in (values["one"], values["other"]):
        numbers[name] = int((yield from _walk(name, path)))
    winner = min(numbers, key=lambda name: numbers[name])
    told = " and ".join([f"{number} for {name}" for name, number in numbers.items()])
    return final(habit, winner, f"I found {told}.")
