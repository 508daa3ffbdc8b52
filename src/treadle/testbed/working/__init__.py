"""The teacher as an agent: the requests that it knows, and the work on them with the tools of the request."""
