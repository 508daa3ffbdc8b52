"""Judgements about messages, made before or after a model is asked.

The judgements without a model are pure functions of the text (`judgements`, and `inabilities` for answers of a
model). `clauses` reads a message, `lists` reads the words: `words/en.toml` and `words/no.toml` have the lists of
one language each, and `patterns.toml` says what the lists mean together. `wordings` finds known wordings,
`features` everything else that the trained `classifier` weighs. `judges` has the objects that judge: the
classifier, or a model, and what a run does with judgements.

A new language is a file in `words/` and messages in a file `benchmarks/data/written*.jsonl`. A new judgement is
a head in `benchmarks/train_judging.py`, which makes the weights, a field of `Judgement`, and labels in
`benchmarks/data/messages.jsonl`; `python -m benchmarks judging` prints precision and recall. Do not look at the
mistakes in the splits `test` and `fresh`.

Judges of other packages are entry points of the group `treadle.judges`.
"""

from treadle.core.judgement import Ambiguity, AmbiguityClass, Judgement, Missing, TaskFound, TaskKind
from treadle.routing.judging.inabilities import Refusal, find_refusal, gives_up
from treadle.routing.judging.judgements import (
    MessageFacts,
    is_boilerplate,
    is_identity_sensitive,
    judge_message,
    rate_difficulty,
)
from treadle.routing.judging.judges import (
    MessageJudge,
    ModelJudge,
    PatternJudge,
    facts_of_message,
    find_refused_tool,
    follows_question,
    judge_of_part,
    judge_safely,
    make_judge,
    part_of_judge,
    write_hint,
)

__all__ = [
    "Ambiguity",
    "AmbiguityClass",
    "Judgement",
    "MessageFacts",
    "MessageJudge",
    "Missing",
    "ModelJudge",
    "PatternJudge",
    "Refusal",
    "TaskFound",
    "TaskKind",
    "facts_of_message",
    "find_refusal",
    "find_refused_tool",
    "follows_question",
    "gives_up",
    "is_boilerplate",
    "is_identity_sensitive",
    "judge_message",
    "judge_of_part",
    "judge_safely",
    "make_judge",
    "part_of_judge",
    "rate_difficulty",
    "write_hint",
]
