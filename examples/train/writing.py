"""Simple tasks: to write characters of one class. A random model solves a part of them by chance."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from treadle.runs.task import Grade, Task

LENGTH = 6
CLASSES = {
    "digits": "0123456789",
    "letters": "abcdefghijklmnopqrstuvwxyz",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "signs": ".,:;!?+-*/=<>()[]{}#%&@~^$",
}


class Writing(Struct):
    """The task to write characters of one class. Its reward is the share of them among `LENGTH`."""

    task_id: str
    task_set: str = "writing"
    seed: int | None = None
    instructions: str | None = None
    tools: Sequence[str] = ()
    files: Mapping[str, bytes] = {}

    @property
    def input(self) -> str:
        return f"Write {self.task_id}."

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        right = sum(letter in CLASSES[self.task_id] for letter in output[:LENGTH])
        return Grade(right / LENGTH, f"{right} of {LENGTH} characters are {self.task_id}")


class WritingSet:
    """The tasks, one for each class."""

    name = "writing"

    def __len__(self) -> int:
        return len(CLASSES)

    def __iter__(self) -> Iterator[Task]:
        return iter(map(Writing, CLASSES))

    def get(self, task_id: str) -> Task:
        return Writing(task_id)
