"""The recording gateway: OpenAI's chat completions and Anthropic's Messages API before any model.

A program that knows nothing of Treadle sets a base URL, and its conversations become runs. Read first:
`client_turn` (one request, driven as a turn of a run or as the rest of one), then `conversations` (which run a
request continues) and `wires` (the formats). The model is asked once for each request, and its answer is passed on
unchanged, unless the client names an agent: then the agent's own loop answers. The hot path is `wires`,
`client_turn` and the driver.
"""
