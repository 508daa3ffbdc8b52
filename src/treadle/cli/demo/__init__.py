"""The demonstration: its command, the worker process, the stages and what is seen of them."""
