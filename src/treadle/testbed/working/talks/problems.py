"""Word problems: arithmetic and logic about the things of a topic, with their solutions."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from treadle.tasks.draws import Draw, Wording
from treadle.tasks.files.materials import FIRST_NAMES
from treadle.testbed.working.talks.talk import Reply, Talk

_Solve = Callable[[Mapping[str, str]], tuple[list[str], str]]
"""A function of the values that returns the steps and the answer."""


def _number(text: str) -> Fraction:
    return Fraction(text)


def show(number: Fraction) -> str:
    """Return a number as a decimal with at most two places."""
    text = f"{float(round(number, 2)):.2f}"
    return text.rstrip("0").rstrip(".")


def _problem(
    name: str, wordings: Sequence[str], draw: Callable[[str, Draw], dict[str, str]], solve: _Solve
) -> Talk:
    def reply(values: Mapping[str, str], tools: Sequence[str]) -> Reply:
        steps, answer = solve(values)
        return Reply(answer, " ".join(steps))

    return Talk(name=name, prompts=tuple(map(Wording, wordings)), draw=draw, reply=reply)


def _draw_cost(things: str, draw: Draw) -> dict[str, str]:
    price = f"{draw.between(2, 90)}.{draw.pick(('25', '50', '75', '20', '40', '80'))}"
    return {"things": things, "count": str(draw.between(3, 60)), "price": price}


def _solve_cost(values: Mapping[str, str]) -> tuple[list[str], str]:
    total = _number(values["count"]) * _number(values["price"])
    steps = [
        f"There are {values['count']} {values['things']} at {values['price']} euros each.",
        f"The total is the product: {values['count']} times {values['price']} is {show(total)}.",
    ]
    return steps, f"They cost {show(total)} euros altogether."


def _draw_rest(things: str, draw: Draw) -> dict[str, str]:
    total = draw.between(60, 900)
    return {
        "things": things,
        "total": str(total),
        "first": str(draw.between(10, total // 3)),
        "second": str(draw.between(10, total // 3)),
    }


def _solve_rest(values: Mapping[str, str]) -> tuple[list[str], str]:
    done = _number(values["first"]) + _number(values["second"])
    left = _number(values["total"]) - done
    steps = [
        f"Done so far: {values['first']} and {values['second']} make {show(done)}.",
        f"Of {values['total']}, that leaves {values['total']} minus {show(done)}, which is {show(left)}.",
    ]
    return steps, f"{show(left)} {values['things']} are left."


def _draw_percent(things: str, draw: Draw) -> dict[str, str]:
    percent = draw.pick((5, 10, 15, 20, 25, 30, 40, 60, 75))
    return {"things": things, "percent": str(percent), "total": str(20 * draw.between(4, 90))}


def _solve_percent(values: Mapping[str, str]) -> tuple[list[str], str]:
    part = _number(values["total"]) * _number(values["percent"]) / 100
    steps = [
        f"One percent of {values['total']} is {show(_number(values['total']) / 100)}.",
        f"{values['percent']} times that is {show(part)}.",
    ]
    return steps, f"{show(part)} of the {values['total']} {values['things']}."


def _draw_average(things: str, draw: Draw) -> dict[str, str]:
    first, second = draw.between(12, 95), draw.between(12, 95)
    third = draw.between(5, 30) * 3 - (first + second) % 3
    return {"things": things, "first": str(first), "second": str(second), "third": str(third)}


def _solve_average(values: Mapping[str, str]) -> tuple[list[str], str]:
    parts = [values["first"], values["second"], values["third"]]
    total = sum(map(_number, parts), Fraction(0))
    steps = [
        f"The sum of {parts[0]}, {parts[1]} and {parts[2]} is {show(total)}.",
        f"Divided by three, the average is {show(total / 3)}.",
    ]
    return steps, f"On average, a team handled {show(total / 3)} {values['things']}."


def _draw_pace(things: str, draw: Draw) -> dict[str, str]:
    pace, people = draw.between(4, 25), draw.between(2, 6)
    hours = draw.between(3, 18)
    total = pace * people * hours
    return {"things": things, "pace": str(pace), "people": str(people), "total": str(total)}


def _solve_pace(values: Mapping[str, str]) -> tuple[list[str], str]:
    together = _number(values["pace"]) * _number(values["people"])
    hours = _number(values["total"]) / together
    steps = [
        f"Together, {values['people']} people check {values['people']} times {values['pace']}, "
        f"which is {show(together)}, an hour.",
        f"{values['total']} divided by {show(together)} is {show(hours)}.",
    ]
    return steps, f"It takes them {show(hours)} hours."


def _draw_discount(things: str, draw: Draw) -> dict[str, str]:
    return {
        "things": things,
        "count": str(draw.between(2, 20)),
        "price": str(5 * draw.between(3, 60)),
        "percent": str(draw.pick((5, 10, 15, 20, 25))),
    }


def _solve_discount(values: Mapping[str, str]) -> tuple[list[str], str]:
    full = _number(values["count"]) * _number(values["price"])
    off = full * _number(values["percent"]) / 100
    steps = [
        f"Without the discount it would be {values['count']} times {values['price']}, which is {show(full)}.",
        f"{values['percent']} % of {show(full)} is {show(off)}, and {show(full)} minus {show(off)} is "
        f"{show(full - off)}.",
    ]
    return steps, f"The bill is {show(full - off)} euros."


def _draw_share(things: str, draw: Draw) -> dict[str, str]:
    return {"things": things, "total": str(draw.between(40, 700)), "people": str(draw.between(3, 12))}


def _solve_share(values: Mapping[str, str]) -> tuple[list[str], str]:
    each, left = divmod(int(values["total"]), int(values["people"]))
    steps = [
        f"{values['people']} times {each} is {each * int(values['people'])}, and one more for each would be "
        f"too many.",
        f"{values['total']} minus {each * int(values['people'])} leaves {left}.",
    ]
    return steps, f"Each gets {each} {values['things']}, and {left} {'is' if left == 1 else 'are'} left over."


def _draw_ratio(things: str, draw: Draw) -> dict[str, str]:
    good, bad = draw.between(3, 9), draw.between(1, 2)
    total = (good + bad) * draw.between(6, 60)
    return {"things": things, "good": str(good), "bad": str(bad), "total": str(total)}


def _solve_ratio(values: Mapping[str, str]) -> tuple[list[str], str]:
    group = _number(values["good"]) + _number(values["bad"])
    groups = _number(values["total"]) / group
    good = groups * _number(values["good"])
    steps = [
        f"A group of {values['good']} accepted and {values['bad']} rejected has {show(group)}.",
        f"{values['total']} are {show(groups)} such groups, so {show(groups)} times {values['good']} were "
        f"accepted.",
    ]
    return steps, f"{show(good)} of the {values['things']} were accepted."


def _draw_time(things: str, draw: Draw) -> dict[str, str]:
    start = f"{draw.between(8, 15)}:{5 * draw.below(12):02d}"
    return {"things": things, "start": start, "minutes": str(5 * draw.between(5, 40))}


def _solve_time(values: Mapping[str, str]) -> tuple[list[str], str]:
    hour, minute = map(int, values["start"].split(":"))
    hours, minutes = divmod(int(values["minutes"]), 60)
    end = hour * 60 + minute + int(values["minutes"])
    steps = [
        f"{values['minutes']} minutes are {hours} hours and {minutes} minutes.",
        f"Counted from {values['start']}, that is {end // 60}:{end % 60:02d}.",
    ]
    return steps, f"It ends at {end // 60}:{end % 60:02d}."


def _draw_order(things: str, draw: Draw) -> dict[str, str]:
    one, two, three, four = draw.sample(FIRST_NAMES, 4)
    return {"things": things, "one": one, "two": two, "three": three, "four": four}


def _solve_order(values: Mapping[str, str]) -> tuple[list[str], str]:
    chain = [values[name] for name in ("one", "two", "three", "four")]
    steps = [
        f"The statements put all four into one order: {', then '.join(chain)}.",
        f"Nobody comes after {chain[-1]}.",
    ]
    return steps, f"{chain[-1]} handled the fewest {values['things']}."


PROBLEMS: tuple[Talk, ...] = (
    _problem(
        "cost",
        (
            "We need {count} {things}, and each costs {price} euros. What do they cost altogether?",
            "One of our {things} is {price} euros. How much money are {count} of them?",
            "Suppose that {things} are charged at {price} euros apiece, and we take {count}. What is the sum?",
        ),
        _draw_cost,
        _solve_cost,
    ),
    _problem(
        "rest",
        (
            "Of {total} {things}, {first} were done in the morning and {second} in the afternoon. How many "
            "are left?",
            "There were {total} {things} on the pile. We finished {first} yesterday and {second} today. What "
            "remains?",
            "Our target is {total} {things}. Team one delivered {first}, team two {second}. How many are missing?",
        ),
        _draw_rest,
        _solve_rest,
    ),
    _problem(
        "percent",
        (
            "How many are {percent} % of {total} {things}?",
            "If {percent} % of our {total} {things} have a fault, how many is that?",
            "We want to sample {percent} % out of {total} {things}. How many do we have to take?",
        ),
        _draw_percent,
        _solve_percent,
    ),
    _problem(
        "average",
        (
            "Three teams handled {first}, {second} and {third} {things}. What is the average?",
            "Team one has {first} {things}, team two {second} and team three {third}. How many is that on average?",
        ),
        _draw_average,
        _solve_average,
    ),
    _problem(
        "pace",
        (
            "One person checks {pace} {things} an hour. How long do {people} people need for {total}?",
            "We are {people} people, and each of us gets through {pace} {things} in an hour. When are "
            "{total} finished?",
        ),
        _draw_pace,
        _solve_pace,
    ),
    _problem(
        "discount",
        (
            "We order {count} {things} at {price} euros each and get {percent} % off. What do we pay?",
            "A supplier takes {price} euros for each of {count} {things}, less a discount of {percent} %. "
            "How much is the bill?",
        ),
        _draw_discount,
        _solve_discount,
    ),
    _problem(
        "share",
        (
            "{total} {things} are to be split evenly among {people} people. How many does each get, and what "
            "is left?",
            "If {people} colleagues divide {total} {things} fairly, how many are there for each, and how "
            "many remain?",
        ),
        _draw_share,
        _solve_share,
    ),
    _problem(
        "ratio",
        (
            "For every {good} {things} that are accepted, {bad} are rejected. Of {total}, how many were accepted?",
            "Accepted and rejected {things} stand at {good} to {bad}. There were {total} in all. How many passed?",
        ),
        _draw_ratio,
        _solve_ratio,
    ),
    _problem(
        "time",
        (
            "A meeting about {things} begins at {start} and takes {minutes} minutes. When does it end?",
            "The work on the {things} starts at {start} and lasts {minutes} minutes. At what time are we through?",
        ),
        _draw_time,
        _solve_time,
    ),
    _problem(
        "order",
        (
            "{one} handled more {things} than {two}, {two} more than {three}, and {three} more than {four}. "
            "Who handled "
            "the fewest?",
            "When it comes to {things}, {three} did more than {four}, {one} more than {two}, and {two} more "
            "than {three}. "
            "Who is last?",
        ),
        _draw_order,
        _solve_order,
    ),
)
