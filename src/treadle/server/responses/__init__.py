"""OpenAI's Responses API: what a request says (`request_items`), and a run's events as a response and its stream
(`response_fold`).

A response is a part of a run: from the user's message, or from the results of the client's tools, to the answer or
the next calls of the client's tools. Its id names the run, the turn, and the step before it, so nothing about it is
kept elsewhere. Source: OpenAI API reference, Responses, 2026; llama-stack-client 0.7.5.
"""
