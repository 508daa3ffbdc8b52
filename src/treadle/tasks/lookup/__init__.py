"""The task set `lookup`: questions that are answered over several hops in a small made-up encyclopedia.

`encyclopedia` draws it and has the toolset `corpus`; `hops` has the templates. Nothing in it is true of
the world, so that nothing can be known beforehand.
"""

from treadle.core.texts.documents import read_data
from treadle.tasks.generated import GeneratedSet
from treadle.tasks.lookup.encyclopedia import CorpusTools

TASK_SET = GeneratedSet(
    "lookup",
    __name__,
    tools=("corpus",),
    instructions=read_data(__name__, "lookup")["instructions"].strip(),
)

__all__ = ["TASK_SET", "CorpusTools"]
