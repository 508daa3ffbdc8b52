"""Jobs: many runs for one purpose. This room has everything that generations, rollouts and evaluations share.

A job works through a plan of items with a sliding window. An item is one attempt (task x model x seed, driven
to a graded run or a fault of the infrastructure) or several. Its outcome is counted in the ledger, in the same
transaction in which its results are handed over. Runs have fixed ids, so interrupted work is continued and
nothing is paid for twice.

Read first: `job` (`Job`, `JobWork`, which a job implements, the window `Slots` and `open_job`), then `attempt` (the
one way from an attempt to its graded run; `seeded_agents` makes its agent), `ledger`, `meter` (use and limits),
`progress` (counts and notices; a command shows them with `cli/terminal/job_view`), `sections` (the keys that
configurations share) and `job_folder` (the files of a job that attempts tasks, and the check that it is continued
as it was begun).

To add a job, write a configuration (a subclass of `AttemptSection`), a `JobWork` that plans items and says what an
attempt means, a `JobProgress` with its words, and a function that opens the job with `open_job` and runs it.
`evals/` does this in few lines.
"""
