"""Evaluations: how well models do tasks, with intervals. `treadle eval` and `evaluate` make and report them.

They are a job over `treadle.jobs`, whose items are samples: one attempt of one model at one task. Read first:
`evaluation_config` (what is asked for), `evaluation` (plan, work and outcome), `evaluation_results` (samples as
tables, comparisons and failures), then `evaluation_reports` (the page, Markdown, Inspect's log).

A sample is a run, and its grades are events of it, so that `treadle eval --rescore` needs no model. Scorers are
those of `treadle.scoring`. A fault of the infrastructure is never a score of 0. The answers of a dataset's rows are
samples too (`row_samples`): the model is asked for the next message once, and its calls are compared with the
recorded ones. Whole rows are tasks (`treadle.tasks.conversation_set`). `deepfabric_evaluations` reads
configurations of DeepFabric, and `training_callback` evaluates models under training.
"""

from treadle.evals.evaluation import Evaluated, evaluate
from treadle.evals.evaluation_config import EvaluationConfig

__all__ = ["Evaluated", "EvaluationConfig", "evaluate"]
