"""The tests' own reader of Web Push is held against what others wrote: the example of RFC 8291, and PyJWT."""

from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from claude_code_mcp.plugins.push.web_push import ServerKey, encrypt

from .receiver import BrowserKeys, decode64, encode64

# RFC 8291, section 5 and appendix A.
_BROWSER_KEY = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94"
_BROWSER_POINT = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
_AUTH = "BTBZMqHH6r4Tts7J_aSIgg"
_SENT = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_"
    "yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
)


@pytest.fixture
def browser() -> BrowserKeys:
    """The browser of the example."""
    keys = BrowserKeys()
    keys.private = ec.derive_private_key(int.from_bytes(decode64(_BROWSER_KEY), "big"), ec.SECP256R1())
    keys.auth = decode64(_AUTH)
    assert encode64(keys.public) == _BROWSER_POINT
    return keys


def test_the_example_of_the_standard_is_read(browser: BrowserKeys) -> None:
    assert browser.plaintext(decode64(_SENT)) == b"When I grow up, I want to be a watermelon"


def test_own_encryption_is_read_by_the_reader_of_the_standards_example(browser: BrowserKeys) -> None:
    message = "Ein Satz, größer als ASCII.".encode()
    assert browser.plaintext(encrypt(message, _BROWSER_POINT, _AUTH)) == message


def test_the_signature_of_the_server_is_a_json_web_token_that_others_verify(tmp_path: Path) -> None:
    key = ServerKey(tmp_path / "vapid.pem")
    scheme, _, fields = key.authorization("https://push.example.net:8443/send/x", "https://example.org/").partition(" ")
    parts = dict(part.strip().split("=", 1) for part in fields.split(","))
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode64(parts["k"]))
    claims = jwt.decode(parts["t"], public, ["ES256"], audience="https://push.example.net:8443")
    assert (scheme, claims["sub"], parts["k"]) == ("vapid", "https://example.org/", key.public)
