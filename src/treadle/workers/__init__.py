"""The places where runs are driven: this process, worker processes, Ray, and the workers of a journal's queue.

Read first: `protocol.py` (what callers know), `registry.py` (the kinds by name, and `here`), `worker.py` (claims
runs and drives them) and `queued.py` (leaves runs in a queue, and replaces workers that die). `local.py` and
`on_ray.py` say how a worker is started.

To add a kind, write a `MakeWorkers`, which usually returns `QueueWorkers` with a `WorkerHandle`, and add a line to
`WORKERS` in `registry.py`, or an entry point of the group `treadle.workers`. `tests/workers` makes every kind.
"""
