"""The common parts of dialects: endpoints, requests, answers in pieces, errors, parts of messages."""
