"""Which gateway a command talks to, and with which key: the one that runs here, unless it is told another.

The key of the data folder is for the gateway of that data folder, never for an address that was given.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from forebay.app.config import Config, read_api_key
from forebay.app.supervisor_state import load_run_state
from forebay.cli.gateway_client import GatewayClient
from forebay.cli.terminal import Failure
from forebay.cli.usable_config import load_usable_config

_EVERYWHERE: Final = ("0.0.0.0", "::")  # to listen on, not to connect to


def open_gateway(file: Path | None, url: str | None, key: str | None) -> GatewayClient:
    """Raises Failure, ConfigInvalid."""
    if url is not None:
        return GatewayClient(url, find_key(key, None)[0])
    config = load_usable_config(file)
    return GatewayClient(find_url(config), find_key(key, config)[0])


def find_key(given: str | None, config: Config | None) -> tuple[str | None, str]:
    """The key to send, and where it was found; of this data folder only where that is `config`'s."""
    if given:
        return given, "--key"
    if key := read_api_key():
        return key, "FOREBAY_API_KEY"
    if config is None:
        return None, "nowhere: give --key or set FOREBAY_API_KEY"
    with suppress(OSError, UnicodeDecodeError):
        return config.local_key_path.read_text().strip() or None, str(config.local_key_path)
    return None, f"nowhere: {config.local_key_path} is not there yet"


def find_url(config: Config) -> str:
    """The address of the Forebay that runs here, or would.  Raises Failure."""
    if (state := load_run_state(config.state_path)) is not None:
        return state.gateway_url
    if config.gateway.port == 0:
        raise Failure(
            f"no Forebay runs in {config.data_path}", hint="start it with `forebay up`, or give --url"
        )
    host = "127.0.0.1" if config.gateway.host in _EVERYWHERE else config.gateway.host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"
