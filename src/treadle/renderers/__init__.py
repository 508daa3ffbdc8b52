"""Renderers: messages and tools to token ids, and the ids of an answer back to a message.

Read first: `protocol.py`, `registry.py`, `chatml.py` (needs no other package), `hf.py` (a tokenizer.json and
its chat template). A renderer is a class with the methods of `Renderer` and a line in `RENDERERS` of
`registry.py`, or an entry point of another package in the group `treadle.renderers`. `bridge` must keep the
earlier ids verbatim; the tests in `tests/renderers` check it for every registered renderer.
"""
