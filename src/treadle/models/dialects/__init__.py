"""One folder for each provider's wire format: `request`, `answer` and `stream`."""
