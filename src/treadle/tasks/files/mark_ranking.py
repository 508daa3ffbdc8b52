"""Tasks: rank students by their weighted marks."""

import json
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, in_folder, read_file, read_files, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import TOPICS, add_notes, people, to_json
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw four to ten students. A missing mark counts as zero."""
    folder = draw.pick(("students", "marks", "course/students", "results"))
    weights_path = draw.pick(("weights.json", "course/weights.json", "rules/weights.json"))
    subjects = [topic.lower() for topic in draw.sample(TOPICS, 4)]
    weights = {subject: draw.between(1, 5) for subject in subjects}
    scores: dict[str, int] = {}
    files = {weights_path: to_json(weights)}
    for name in people(draw, draw.between(4, 10)):
        marks = {subject: draw.between(20, 100) for subject in draw.shuffled(subjects)}
        if draw.chance(0.25):
            marks.pop(draw.pick(subjects))
        while (score := _score(marks, weights)) in scores.values():
            subject = next(iter(marks))
            marks[subject] += 1
        scores[name] = score
        files[f"{folder}/{name.split(' ')[1].lower()}.json"] = to_json({"name": name, "marks": marks})
    add_notes(files, draw, draw.between(0, 2))
    ranked = sorted(scores, key=lambda name: -scores[name])
    target = f"{draw.pick(('ranking', 'results-list', 'honours'))}.csv"
    values = {"folder": folder, "weights": weights_path, "target": target}
    return Case(values, files, Items((ranked[0],), tuple(scores)), {target: _write(scores)})


def _score(marks: Mapping[str, int], weights: Mapping[str, int]) -> int:
    return sum([mark * weights[subject] for subject, mark in marks.items()])


def _write(scores: Mapping[str, int]) -> str:
    ranked = sorted(scores, key=lambda name: -scores[name])
    return "name,points\n" + "".join([f"{name},{scores[name]}\n" for name in ranked])


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the weights and the marks, compute the scores, and sort."""
    (text,) = yield Step([read_file(values["weights"])], "The weights decide, so I read them first.")
    weights = json.loads(text)
    paths = yield from find_paths(in_folder(values["folder"], ".json"))
    texts = yield from read_files([path for path in paths if path != values["weights"]], habit)
    scores = {}
    for part in texts.values():
        student = json.loads(part)
        scores[student["name"]] = _score(student["marks"], weights)
    best = max(scores, key=lambda name: scores[name])
    answer = final(habit, best, f"Among {len(scores)} students the highest sum is {scores[best]}.")
    yield Step([write_file(values["target"], _write(scores))], f"{best} leads; now the ranking.", answer)
    return answer
