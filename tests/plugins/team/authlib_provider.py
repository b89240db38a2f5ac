# mypy: ignore-errors
# What it imports is not among the dependencies of the tests: it runs in an environment of its own.
"""An authorization server made of Authlib and Flask on loopback, at which everybody is let in at once.

It knows no resource indicators: all its access tokens (RFC 9068) are for one resource, as at providers where the
operator sets the audience. It has one key of another kind than the first provider's, dynamic registration, PKCE,
refresh tokens with rotation, and says who has issued a code (RFC 9207).

Usage: python authlib_provider.py PORT RESOURCE; reads people from standard input, one in a line: a name, and groups.
"""

import logging
import sys
import threading
import time

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import AuthorizationCodeMixin, ClientMixin, TokenMixin
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, RefreshTokenGrant
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from authlib.oauth2.rfc9207 import IssuerParameter
from flask import Flask, jsonify
from joserfc.jwk import ECKey, KeySet

PORT, RESOURCE = int(sys.argv[1]), sys.argv[2]
ISSUER = f"http://127.0.0.1:{PORT}"
KEYS = KeySet([ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}, auto_kid=True)])
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "registration_endpoint": f"{ISSUER}/register",
    "jwks_uri": f"{ISSUER}/keys",
    "response_types_supported": ["code"],
    "grant_types_supported": ["authorization_code", "refresh_token"],
    "code_challenge_methods_supported": ["S256"],
    "token_endpoint_auth_methods_supported": ["none", "client_secret_post", "client_secret_basic"],
    "authorization_response_iss_parameter_supported": True,
}

clients, codes, tokens = {}, {}, {}


class Person:
    def __init__(self, name, groups=()):
        self.name, self.groups = name, groups

    def get_user_id(self):
        return self.name


people = {"ann": Person("ann")}
who = "ann"


class Registered(ClientMixin):
    def __init__(self, info, metadata):
        self.client_id, self.secret, self.client_info = info["client_id"], info["client_secret"], info
        self.client_metadata = metadata

    def get_client_id(self):
        return self.client_id

    def get_default_redirect_uri(self):
        return self.client_metadata["redirect_uris"][0]

    def get_allowed_scope(self, scope):
        return scope or ""

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri in self.client_metadata["redirect_uris"]

    def check_client_secret(self, client_secret):
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method, _endpoint):
        return method == self.client_metadata.get("token_endpoint_auth_method", "client_secret_basic")

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in ("authorization_code", "refresh_token")


class Code(AuthorizationCodeMixin):
    def __init__(self, code, request):
        payload = request.payload
        self.code, self.client_id, self.user = code, request.client.client_id, request.user
        self.redirect_uri, self.scope = payload.redirect_uri, payload.scope
        self.code_challenge = payload.data.get("code_challenge")
        self.code_challenge_method = payload.data.get("code_challenge_method")

    def get_redirect_uri(self):
        return self.redirect_uri

    def get_scope(self):
        return self.scope


class Issued(TokenMixin):
    def __init__(self, token, request):
        self.client_id, self.user, self.scope = request.client.client_id, request.user, token.get("scope", "")
        self.until = time.time() + token["expires_in"]

    def check_client(self, client):
        return client.client_id == self.client_id

    def get_scope(self):
        return self.scope

    def get_expires_in(self):
        return self.until - time.time()

    def is_expired(self):
        return self.until < time.time()

    def is_revoked(self):
        return False


class CodeGrant(AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ("none", "client_secret_post", "client_secret_basic")

    def save_authorization_code(self, code, request):
        codes[code] = Code(code, request)

    def query_authorization_code(self, code, client):
        found = codes.get(code)
        return found if found is not None and found.client_id == client.client_id else None

    def delete_authorization_code(self, authorization_code):
        codes.pop(authorization_code.code, None)

    def authenticate_user(self, authorization_code):
        return authorization_code.user


class Refresh(RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = CodeGrant.TOKEN_ENDPOINT_AUTH_METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token):
        return tokens.pop(refresh_token, None)

    def authenticate_user(self, refresh_token):
        return refresh_token.user

    def revoke_old_credential(self, refresh_token):
        """It is gone when it was used."""


class AccessTokens(JWTBearerTokenGenerator):
    def get_jwks(self):
        return KEYS.as_dict(private=True)

    def get_audiences(self, client, user, scope):
        return [RESOURCE]

    def get_extra_claims(self, client, grant_type, user, scope):
        return {"groups": list(user.groups)}


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request):
        return "anybody"

    def get_server_metadata(self):
        return METADATA

    def save_client(self, client_info, client_metadata, request):
        clients[client_info["client_id"]] = Registered(client_info, client_metadata)
        return clients[client_info["client_id"]]


class Issuer(IssuerParameter):
    def get_issuer(self):
        return ISSUER


def save_token(token, request):
    if "refresh_token" in token:
        tokens[token["refresh_token"]] = Issued(token, request)


app = Flask(__name__)
server = AuthorizationServer(app, query_client=clients.get, save_token=save_token)
server.register_grant(CodeGrant, [CodeChallenge(required=True)])
server.register_grant(Refresh)
server.register_endpoint(Registration)
server.register_extension(Issuer())
server.register_token_generator(
    "default", AccessTokens(ISSUER, alg="ES256", refresh_token_generator=lambda *_, **__: f"r-{time.time_ns()}")
)


@app.get("/authorize")
def authorize():
    return server.create_authorization_response(
        grant=server.get_consent_grant(end_user=people[who]), grant_user=people[who]
    )


@app.post("/token")
def token():
    return server.create_token_response()


@app.post("/register")
def register():
    return server.create_endpoint_response("client_registration")


@app.get("/keys")
def keys():
    return jsonify(KEYS.as_dict(private=False))


@app.get("/.well-known/oauth-authorization-server")
def metadata():
    return jsonify(METADATA)


def read_people():
    global who
    for line in sys.stdin:
        name, *groups = line.split()
        people[name], who = Person(name, groups), name
        print(f"now {name}", flush=True)


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    threading.Thread(target=read_people, daemon=True).start()
    from werkzeug.serving import make_server

    listening = make_server("127.0.0.1", PORT, app, threaded=True)
    print("listening", flush=True)
    listening.serve_forever()
