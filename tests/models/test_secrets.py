"""No key, password or query reaches the journal, an error or a repr, whatever servers repeat of a request."""

import base64
import html
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from tests.conftest import IS_FULL
from tests.contract.test_dialect import WIRES

from treadle import Agent, model
from treadle.core.types import Message, Role
from treadle.http.transport import HttpRequest, HttpResponse, InProcessTransport
from treadle.journal.memory import MemoryJournal

Json = Any
KEY = "AIzaSyD-9tSrke72PouQMnMX/a7eZSW0jk+FMBW="
PASSWORD = "hunter2-of-the-url/9"
QUERY = "query-secret-99+x"
COOKIE = "cookie-secret-77"
HEADERS = {
    "x-team": "team-secret-55",
    "cookie": f"sid={COOKIE}; theme=dark",
    "authorization-2": f"Token {KEY}",
}
URL = f"http://me:{quote(PASSWORD, safe='')}@h/v1?code={quote(QUERY)}"
EXTRA = {
    "api_key": "extra-key-0123456789",
    "metadata": [{"session_token": "extra-token-0123456789"}],
    "note": "Bearer extra-bearer-0123456789",
    "account": "sk-extra-0123456789abcdef",
    "top_k": 5,
}
PLANTED = (KEY, PASSWORD, QUERY, COOKIE, "team-secret-55", HEADERS["x-team"])
DIALECTS = ("openai", "anthropic", "gemini", "ollama", "openai_responses", "completions")
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda text: quote(text, safe=""),
    "json": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "html": html.escape,
    "base64": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
}


def told(form: str) -> str:
    """Return a text that repeats everything secret in one form."""
    return " and ".join(FORMS[form](secret) for secret in PLANTED)


def reply(status: int, body: str | Json, kind: str = "application/json", **headers: str) -> HttpResponse:
    data = body if isinstance(body, str) else json.dumps(body)
    return HttpResponse(data.encode(), status, {"content-type": kind, **headers})


SERVERS: dict[str, Callable[[str], HttpResponse]] = {
    "error": lambda text: reply(401, {"error": {"message": f"you sent {text}"}}),
    "error text": lambda text: reply(400, {"error": f"you sent {text}"}),
    "detail": lambda text: reply(422, {"detail": [{"msg": "bad", "input": text}]}),
    "html": lambda text: reply(500, f"<html><pre>{text}</pre></html>", "text/html"),
    "late": lambda text: reply(400, " " * 1590 + text),
    "many lines": lambda text: reply(400, "\n".join(text.split())),
    "redirect": lambda text: reply(302, f"go to {text}", "text/plain", location=f"http://other/?key={text}"),
    "no JSON": lambda text: reply(200, f"hello {text}", "text/plain"),
    "another JSON": lambda text: reply(200, {"hello": text}),
    "error in 200": lambda text: reply(200, {"error": {"message": text, "code": text, "type": text}}),
    "stream": lambda text: reply(200, f"data: {json.dumps({'error': text})}\n\n", "text/event-stream"),
    "bad stream": lambda text: reply(200, f"data: {text}\n\n", "text/event-stream"),
    "odd stream": lambda text: reply(200, f"data: {json.dumps([text])}\n\n", "text/event-stream"),
    "headers": lambda text: reply(429, {}, **{"retry-after": text, "x-request-id": text}),
}


async def left_by(dialect: str, answer: HttpResponse, *, is_streamed: bool) -> str:
    """Return everything that a run leaves behind whose server gives this answer."""
    sent: list[HttpRequest] = []

    def handle(request: HttpRequest) -> HttpResponse:
        sent.append(request)
        return answer

    made = model(
        f"{dialect}:m",
        base_url=URL,
        api_key=KEY,
        headers=HEADERS,
        transport=InProcessTransport(handle),
        max_attempts=1,
    )
    journal = MemoryJournal()
    agent = Agent(made, journal=journal)
    run = await agent.run("go", on_event=(lambda item: None) if is_streamed else None)
    assert sent
    assert any(KEY in value for value in sent[0].headers.values())
    events = b"\n".join(event.to_json() for event in journal.read(run.run_id)).decode()
    return "\n".join([events, str(run.error), repr(run), repr(made), repr(agent.spec), repr(journal.runs())])


def find_leak(text: str) -> str | None:
    """Return half of a secret, or more, that `text` has in any form."""
    plain = [text, json.loads(f'"{text}"') if '"' not in text and "\n" not in text else text]
    for secret in PLANTED:
        for form in FORMS.values():
            written = form(secret)
            if form is FORMS["base64"]:
                written = written[8:-4]  # without the ends, which depend on what stands around it
            size = max(8, len(written) // 2)
            for at in range(len(written) - size + 1):
                if any(written[at : at + size] in item for item in plain):
                    return written[at : at + size]
    return None


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nothing_secret_is_left(dialect: str, server: str) -> None:
    for form in FORMS if IS_FULL or dialect == "openai" else ("plain", "percent"):
        for is_streamed in (False, True):
            left = await left_by(dialect, SERVERS[server](told(form)), is_streamed=is_streamed)
            assert find_leak(left) is None, (form, is_streamed, left)


@pytest.mark.parametrize("form", FORMS)
async def test_nothing_secret_is_left_where_the_server_cuts_its_answer(form: str) -> None:
    text = f'{{"error": {{"message": "key {FORMS[form](KEY)} is wrong'
    begin = text.index(FORMS[form](KEY)[:3])
    for at in range(begin, len(text), 1 if IS_FULL else 3):
        left = await left_by("openai", reply(400, text[:at]), is_streamed=False)
        assert find_leak(left) is None, (text[:at], left)


async def test_short_settings_do_not_hide_ordinary_text() -> None:
    transport = InProcessTransport(
        lambda _: reply(400, {"error": {"message": "there is no model EMPTY at dark"}})
    )
    made = model(
        "openai:m", base_url="http://u:pw@h/v1?v=1", api_key="EMPTY", transport=transport, max_attempts=1
    )
    run = await Agent(made, journal=MemoryJournal()).run("go")
    assert "there is no model EMPTY at dark" in str(run.error)


async def test_short_secrets_are_hidden_where_their_place_tells_what_they_are() -> None:
    text = "POST http://u:pw@h/v1/chat?v=k1&x=2, authorization: Bearer EMPTY"
    transport = InProcessTransport(lambda _: reply(400, {"error": {"message": text}}))
    made = model(
        "openai:m", base_url="http://u:pw@h/v1?v=k1", api_key="EMPTY", transport=transport, max_attempts=1
    )
    run = await Agent(made, journal=MemoryJournal()).run("go")
    assert "POST http://***@h/v1/chat?v=***&x=2, authorization: ***" in str(run.error)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_secrets_in_further_fields_are_sent_and_not_recorded(dialect: str, is_streamed: bool) -> None:
    wire = WIRES["openai_chat" if dialect == "openai" else dialect]
    good = wire.answer(Message(Role.ASSISTANT, "Sunny."))
    pieces = wire.events(good) if is_streamed else [json.dumps(good).encode()]
    echo = reply(400, {"error": {"message": json.dumps(EXTRA)}})
    for answer in (HttpResponse(pieces), echo):
        transport = InProcessTransport(lambda _, answer=answer: answer)
        made = model(f"{dialect}:m", api_key=KEY, extra=EXTRA, transport=transport, max_attempts=1)
        journal = MemoryJournal()
        run = await Agent(made, journal=journal).run(
            "go", on_event=(lambda item: None) if is_streamed else None
        )
        assert "extra-bearer-0123456789" in transport.requests[-1].body.decode()
        assert (run.output == "Sunny.") is (answer is not echo)
        events = b"\n".join(event.to_json() for event in journal.read(run.run_id)).decode()
        left = "\n".join([events, str(run.error), repr(run), repr(made), repr(journal.runs())])
        assert "0123456789" not in left
        if answer is not echo:
            assert '"top_k":5' in left
