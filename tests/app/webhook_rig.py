"""Webhooks for tests: secrets, receivers on real sockets, and a check of signatures by the standard."""

import base64
import hashlib
import hmac
import secrets
import ssl
from pathlib import Path

import trustme

from forebay.app.config_alerts import WebhookConfig
from forebay.testing.recorded import RecordedRequest


def make_secret(folder: Path, name: str = "hook.secret") -> str:
    """A reference to a new secret."""
    text = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    (folder / name).write_text(text + "\n")
    return f"file:{folder / name}"


def make_webhook(folder: Path, url: str, **other: object) -> WebhookConfig:
    return WebhookConfig.model_validate({"url": url, "secret": make_secret(folder), **other})


def make_tls(folder: Path, name: str = "127.0.0.1") -> tuple[ssl.SSLContext, Path]:
    """A receiver's context, and the file of the authority that vouches for it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    file = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return context, file


def is_signed(request: RecordedRequest, secret_file: Path, now_s: float, slack_s: float = 300) -> bool:
    """As a receiver checks it, written anew from the standard."""
    key = base64.b64decode(secret_file.read_text().strip().removeprefix("whsec_"))
    message_id, timestamp = request.header("webhook-id"), request.header("webhook-timestamp")
    signed = f"{message_id}.{timestamp}.".encode() + bytes(request.body)
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = (request.header("webhook-signature") or "").split(" ")
    return wanted in given and abs(float(timestamp or 0) - now_s) < slack_s
