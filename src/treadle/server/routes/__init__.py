"""The routers of the server's HTTP API, one for each resource.

To add a resource, write a module with a `router`, and name it in `api.ROUTERS`. A route gets its caller and the
host from `route_context`, and raises ordinary errors, which `api` answers in the form of OpenAI's API.
"""
