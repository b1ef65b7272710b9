"""Checks what `forebay.yaml` says of the way to a place: authorities, the client's certificate, a proxy.

For targets and pools alike.  It opens the files that are named and no connection.
"""

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from forebay.app.config_problems import Severity
from forebay.app.config_source import KeyPath

Found = tuple[KeyPath, str, str, Severity, bool]
TLS_KEYS: Final = ("tls_ca", "tls_cert", "tls_key")
_PEM_HINT: Final = "give a PEM file; relative paths start at the file's folder"


def check_way(path: KeyPath, section: Mapping[str, Any], folder: Path) -> Iterator[Found]:
    """
    Args:
        path: of the section, which is a target or a pool.
        folder: where relative paths start.
    """
    ca = section.get("tls_ca")
    if isinstance(ca, str) and (problem := find_ca_problem(folder, ca)):
        yield (*path, "tls_ca"), problem, _PEM_HINT, Severity.ERROR, False
    cert, key = section.get("tls_cert"), section.get("tls_key")
    if isinstance(key, str) and cert is None:
        hint = "name its certificate as `tls_cert`, or remove it"
        yield (*path, "tls_key"), "is a key without a certificate", hint, Severity.ERROR, False
    elif isinstance(cert, str) and (key is None or isinstance(key, str)):
        yield from _check_certificate(path, folder, cert, key)
    if section.get("proxy_credentials") is not None and section.get("proxy") in (None, "direct"):
        hint = "name the `proxy`, or remove them"
        yield (*path, "proxy_credentials"), "are credentials without a proxy", hint, Severity.ERROR, False


def _check_certificate(path: KeyPath, folder: Path, cert: str, key: str | None) -> Iterator[Found]:
    for name, value in (("tls_cert", cert), ("tls_key", key)):
        if value is not None and not is_file(folder, value):
            yield (*path, name), "no such file", _PEM_HINT, Severity.ERROR, False
            return
    place = folder / Path(cert).expanduser()
    key_place = None if key is None else folder / Path(key).expanduser()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(place, key_place, password=str)
    except ssl.SSLError as error:
        what = (
            "does not hold the key of `tls_cert`" if key is not None else "holds no certificate and its key"
        )
        if "KEY_VALUES_MISMATCH" in str(error):
            what = "is the key of another certificate than `tls_cert`"
        hint = "give the certificate and its key in PEM, the key without a passphrase"
        yield (*path, "tls_cert" if key is None else "tls_key"), what, hint, Severity.ERROR, False
    except OSError as error:
        yield (*path, "tls_cert"), f"can't be read: {error.strerror}", _PEM_HINT, Severity.ERROR, False


def find_ca_problem(folder: Path, name: str) -> str | None:
    """Why a file of authorities is of no use; None when it can be used."""
    if not is_file(folder, name):
        return "no such file"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(folder / Path(name).expanduser())
    except ssl.SSLError:
        return "holds no certificate in PEM"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return None


def is_file(folder: Path, name: str) -> bool:
    """Whether there is such a file."""
    try:
        return (folder / Path(name).expanduser()).is_file()
    except (OSError, ValueError, RuntimeError):
        return False
