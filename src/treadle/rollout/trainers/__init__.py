"""Adapters that run within trainers: the trainer chooses the prompts, and its own engines sample.

Read first: `prompted` (a rollout of one prompt, the same for all trainers) and `trainer_engine` (a trainer's engine
as a model). `trl`, `verl_loop` and `skyrl_generator` are the adapters; the last two can be imported only where
their trainer is installed.

A rollout has its tokens exactly as the trainer's engine sampled them. It belongs to a step of the trainer: with a
name for the training, the same step gets the same rollouts again, also after a crash.

To add a trainer, write one file that reads its prompts, calls `roll`, and writes its own type with a format of
`export/token_formats`.
"""
