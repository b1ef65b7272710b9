"""Asks the admin API of the Forebay that runs here, for commands whose answer only a process knows.

Built on the standard library, as `gateway_client` is.  Every failure is a `Failure` with words for
the person at the keyboard.
"""

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from forebay.app.config import Config
from forebay.app.config_running import load_live_state
from forebay.cli.terminal import Failure

ANSWER_MAX_BYTES: Final = 256 * 1024 * 1024
TIMEOUT_S: Final = 10.0


def fetch_admin(config: Config, path: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> bytes:
    """The answer of a route.

    Args:
        path: what follows `/admin/v1`.

    Raises:
        Failure: nothing runs here, or it does not answer as it should.
    """
    state = load_live_state(config.state_path)
    if state is None:
        raise Failure(
            "Forebay does not run here, and only a running one knows", hint="start it with `forebay up`"
        )
    url = state.control_url
    headers = {"authorization": f"Bearer {_read_token(config.admin_token_path)}"}
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout_s)
    try:
        connection.request(method, f"/admin/v1{path}", headers=headers)
        answer = connection.getresponse()
        body = answer.read(ANSWER_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Failure(
            f"the control plane does not answer at {url}: {error or type(error).__name__}",
            hint="it may be starting again: try once more, then ask `forebay doctor`",
        ) from None
    finally:
        connection.close()
    if answer.status in (400, 404):  # whoever asked for what is not there is told so, and no more
        raise Failure(_read_message(body))
    if answer.status != 200:
        raise Failure(
            f"the control plane answered {answer.status}: {_read_message(body)}", hint="ask `forebay doctor`"
        )
    return body


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Failure(
            f"the token of the admin API can't be read: {path}: {error.strerror}",
            hint="run this as the user who runs Forebay",
        ) from None


def _read_message(body: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(body)
        return str(found["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "not in the words of the admin API"
