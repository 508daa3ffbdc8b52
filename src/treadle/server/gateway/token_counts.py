"""`/v1/messages/count_tokens`: how many tokens a request would have. No run is made of it."""

from math import ceil

from msgspec.structs import replace

from treadle.core.errors import ProviderError
from treadle.core.prompts.estimates import weigh, weigh_message, weigh_tools
from treadle.core.texts.hiding import hide_servers
from treadle.models.dialects.anthropic import served as anthropic
from treadle.models.dialects.anthropic.request import AnthropicModel
from treadle.models.protocol import innermost
from treadle.models.wire.served import ServedRequest, read_fields
from treadle.runs.agent_parts import AgentParts
from treadle.server.admission.access import (
    Receive,
    Scope,
    Send,
    check_scope,
    read_body,
    send_whole,
)
from treadle.server.catalog import ClientWish
from treadle.server.gateway.gateway_host import GatewayHost
from treadle.server.no_answer import NoAnswerError

COUNT_PATH = "/v1/messages/count_tokens"
ESTIMATED_HEADER = "x-treadle-estimated"
"""The header of an answer whose number is an estimate."""


async def count_tokens(host: GatewayHost, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request by the server of its model, or with an estimate. Raises: what prevents the answer."""
    caller, body = check_scope(scope["state"]["caller"], "run"), await read_body(receive)
    asked = anthropic.read_request(body)
    is_agent = host.offered.is_agent(asked.model)
    wish = ClientWish(tools=asked.tools, is_relayed=not is_agent, client="" if is_agent else caller.name)
    agent = host.offered.agent(asked.model, wish)
    model = innermost(agent.model)
    if is_agent or not isinstance(model, AnthropicModel):
        told = {"input_tokens": _estimate(agent, asked), "is_estimated": True}
        await send_whole(send, 200, told, {ESTIMATED_HEADER: "true"})
        return
    try:
        counted = await host.do(model.find_input_tokens(read_fields(body)))
    except ProviderError as error:
        is_clients = error.status is not None and error.status >= 400 and error.status not in (401, 403)
        status = (error.status or 502) if is_clients else 502
        raise NoAnswerError(
            hide_servers(str(error)), status, "provider_error", error.retry_after_seconds
        ) from None
    await send_whole(send, 200, {"input_tokens": counted}, {})


def _estimate(agent: AgentParts, asked: ServedRequest) -> int:
    """Return an estimate of the tokens of a request, which is rather too high than too low."""
    own = agent.instructions if isinstance(agent.instructions, str) else ""
    texts = sum(map(weigh, [text for text in (own, asked.instructions) if text]))
    said = [replace(item, reasoning=None) for item in asked.messages]
    return ceil(texts + sum(map(weigh_message, said)) + weigh_tools(agent.kit.own.specs))
