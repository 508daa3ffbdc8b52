"""The other wire formats that agents of any framework speak: OpenAI's chat completions, Anthropic's Messages API.

A request is read as one of the Responses API (`foreign_requests`), is driven as such, and the events of its stream
are written in the other format (`foreign_streams`). So a program that knows nothing of Treadle sets a base URL, and
what it does is recorded: its tools are those of a client.
"""
