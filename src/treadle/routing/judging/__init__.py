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

from treadle.core.judgement import Ambiguity as Ambiguity
from treadle.core.judgement import AmbiguityClass as AmbiguityClass
from treadle.core.judgement import Judgement as Judgement
from treadle.core.judgement import Missing as Missing
from treadle.core.judgement import TaskFound as TaskFound
from treadle.core.judgement import TaskKind as TaskKind
from treadle.routing.judging.inabilities import Refusal as Refusal
from treadle.routing.judging.inabilities import find_refusal as find_refusal
from treadle.routing.judging.inabilities import gives_up as gives_up
from treadle.routing.judging.judgements import MessageFacts as MessageFacts
from treadle.routing.judging.judgements import is_boilerplate as is_boilerplate
from treadle.routing.judging.judgements import is_identity_sensitive as is_identity_sensitive
from treadle.routing.judging.judgements import judge_message as judge_message
from treadle.routing.judging.judgements import rate_difficulty as rate_difficulty
from treadle.routing.judging.judges import MessageJudge as MessageJudge
from treadle.routing.judging.judges import ModelJudge as ModelJudge
from treadle.routing.judging.judges import PatternJudge as PatternJudge
from treadle.routing.judging.judges import facts_of_message as facts_of_message
from treadle.routing.judging.judges import find_refused_tool as find_refused_tool
from treadle.routing.judging.judges import follows_question as follows_question
from treadle.routing.judging.judges import judge_of_part as judge_of_part
from treadle.routing.judging.judges import judge_safely as judge_safely
from treadle.routing.judging.judges import make_judge as make_judge
from treadle.routing.judging.judges import part_of_judge as part_of_judge
from treadle.routing.judging.judges import write_hint as write_hint
