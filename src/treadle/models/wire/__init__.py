"""What dialects share: endpoints, requests, answers in pieces, errors, parts of messages."""
