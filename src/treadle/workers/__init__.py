"""The places where runs are driven: this process, worker processes, Ray, and the workers of a journal's queue."""
