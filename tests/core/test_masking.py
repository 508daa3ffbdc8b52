"""Secrets in texts are hidden in every form in which somebody may repeat them, and ordinary text is not."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.texts.masking import (
    MIN_SECRET_CHARS,
    Mask,
    forms_of,
    hide_in_url,
    mask_of,
    secrets_of_url,
    words_of,
)

SECRETS = (
    "sk-proj-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
    "AIzaSyD-9tSrke72PouQMnMX/+=x",
    'a"b\\c-secret-key-123',
    "p&ss <wörd> 'x' y",
    "k1234567",
)
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "json in utf-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json in json": lambda text: json.dumps(json.dumps(text, ensure_ascii=False)[1:-1])[1:-1],
    "json with slashes": lambda text: json.dumps(text, ensure_ascii=False)[1:-1].replace("/", "\\/"),
    "json with codes": lambda text: "".join(c if c.isalnum() else f"\\u{ord(c):04x}" for c in text),
    "percent": lambda text: quote(text, safe=""),
    "percent with slashes": quote,
    "percent twice": lambda text: quote(quote(text, safe="")),
    "form": quote_plus,
    "html": html.escape,
    "html without quotes": lambda text: html.escape(text, quote=False),
    "html codes": lambda text: "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text),
    "repr": lambda text: repr(text)[1:-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for urls": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "basic": lambda text: base64.b64encode(f"u:{text}".encode()).decode(),
    "basic of a user": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
    "basic of another user": lambda text: base64.b64encode(f"you:{text}:more".encode()).decode(),
}


def longest_common(one: str, other: str) -> int:
    """Return the length of the longest text that is part of both."""
    sizes = range(min(len(one), len(other)), 0, -1)
    return next((n for n in sizes if any(one[at : at + n] in other for at in range(len(one) - n + 1))), 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_every_form_is_hidden(secret: str, form: str) -> None:
    written = FORMS[form](secret)
    mask = Mask([secret])
    for text in (written, f"before {written} after", f"{written}{written}"):
        shown = mask.hide(text)
        # The ends of base64 depend on what stands around the secret.
        known = forms_of(secret) if "bas" in form else {written}
        assert all(longest_common(shown, item) < 7 for item in known), shown
        hidden = mask.hide_bytes(text.encode()).decode()
        assert "***" in hidden
        assert secret not in hidden


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_half_is_left_where_a_text_is_cut(secret: str, form: str) -> None:
    written = FORMS[form](secret)
    mask = Mask([secret])
    for at in range(len(written) + 1):
        for piece in (written[:at], written[at:]):
            shown = mask.hide_pieces(f"<{piece}>")
            known = forms_of(secret) if "bas" in form else {written}
            assert all(longest_common(shown, item) < max(7, len(secret) // 2) for item in known), (
                piece,
                shown,
            )


def test_short_secrets_and_ordinary_text_stay() -> None:
    text = "true, EMPTY and none are ordinary words; so is bearer"
    assert Mask(["true", "EMPTY", "none", "a", ""]).hide_pieces(text) == text
    assert Mask(["sk-planted-key-00001"]).hide_pieces(text) == text


@given(st.lists(st.text(max_size=30)), st.text(), st.binary())
def test_any_secret_is_hidden_in_any_text(secrets: list[str], text: str, data: bytes) -> None:
    mask = Mask(secrets)
    for secret in secrets:
        if len(secret) >= MIN_SECRET_CHARS and "*" not in secret:
            assert secret not in mask.hide_pieces(f"{text}{secret}{text}")
            assert secret.encode() not in mask.hide_bytes(data + secret.encode() + data)


def test_secrets_are_found_in_urls_and_headers() -> None:
    assert {"user", "p%40ss", "p@ss", "a b", "x"} <= set(
        secrets_of_url("http://user:p%40ss@h/v1?c=a%20b&d=x")
    )
    assert secrets_of_url("http://[") == []
    assert hide_in_url("http://user:pw@h/v1?key=x") == "http://***@h/v1?***"
    assert hide_in_url("ftp:nonsense") == "ftp:nonsense"
    assert "token-1" in words_of("Bearer token-1")
    assert {"one", "two"} <= set(words_of("sid=one; other=two"))
    assert "hunter22" in words_of("Basic " + base64.b64encode(b"me:hunter22").decode())


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("OPENAI_API_KEY", "sk-abcdef-123456", True),
        ("HF_TOKEN", "hf_abcdefghijkl", True),
        ("db_password", "correct-horse", True),
        ("MYSQL_ROOT_PASSWD", "abcdefghijklmnop", True),
        ("AWS_SECRET_ACCESS_KEY", "abc+def/1234567", True),
        ("SIGNING_KEY_2", "0123456789abcdef", True),
        ("AWS_SECRET_ACCESS_KEY", "/AbC+dEfGhIj1KlMnOpQr/tUvWxYz0123456789AB", True),
        ("PGPASSWORD", "hunter2-hunter2", True),
        ("MYSQL_PWD", "hunter2-hunter2", True),
        ("OLDPWD", "correct-horse", False),
        ("PWD", "/home/ada/Projects/Treadle2/tests-of-ada", False),
        ("PARTITION_KEY", "customer_id", False),
        ("POSTGRES_PASSWORD", "postgres", False),
        ("SSH_KEY", "/home/ada/.ssh/id_ed25519", False),
        ("GIT_AUTHOR_NAME", "Ada-Lovelace-1815", False),
        ("KEYBOARD", "us-international", False),
        ("TOKENIZERS_PARALLELISM", "false-by-default", False),
        ("API_TOKEN", "short", False),
        ("API_KEY", "https://example.com/key-of-mine", False),
        ("PASSWORD", "a sentence with spaces", False),
    ],
)
def test_secrets_are_found_in_variables(name: str, value: str, is_hidden: bool) -> None:
    text = f"before {value} after"
    assert mask_of({name: value, "HOME": "/home/ada"}).hide(text) == (
        "before *** after" if is_hidden else text
    )


def test_passwords_of_urls_in_variables_are_hidden() -> None:
    mask = mask_of(
        {"DATABASE_URL": "postgres://app:s3cret-pass@db/app", "PROXY": "http://app:password@proxy"}
    )
    assert mask.hide("postgres://app:s3cret-pass@db/app, password") == "postgres://app:***@db/app, password"
