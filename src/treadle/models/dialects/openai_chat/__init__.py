"""The Chat Completions API of OpenAI, which many servers speak.

`request` writes requests, and differs by `Quirks`. `answer` and `stream` read the answers of all servers alike. A
name that a server has for a field of a message stands in three places: `answers.toml` and `_read_message` of
`answer` (any answer), `_Message` and `ChatReader` there (the fast reader, which must give the same), and
`_add_delta` of `stream`. Test it whole and streamed, in `tests/models/test_openai_chat.py` and
`test_openai_chat_stream.py`. This is a hot path.
"""
