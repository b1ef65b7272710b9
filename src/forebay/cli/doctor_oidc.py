"""Checks the identity provider that `control.oidc` names: whether its keys can be had.

Asks it for what anybody may see, as the control plane does; no credential leaves this machine.
"""

from collections.abc import Iterator

from forebay.app.config import Config
from forebay.app.config_oidc import find_missing_packages
from forebay.app.oidc_fetch import FetchFailed
from forebay.app.oidc_keys import fetch_keys
from forebay.cli.finding import Finding, Verdict

_NAME = "identity provider"


def check_identity_provider(config: Config) -> Iterator[Finding]:
    """Nothing where none is configured."""
    oidc = config.control.oidc
    if oidc is None:
        return
    if missing := find_missing_packages():
        message = f"control.oidc needs {' and '.join(missing)}, which is not installed"
        yield Finding(name=_NAME, verdict=Verdict.FAIL, message=message, hint="pip install 'forebay[oidc]'")
        return
    try:
        keys = fetch_keys(oidc)
    except FetchFailed as error:
        hint = "check control.oidc; until it answers, its tokens open nothing, and Forebay's own go on"
        yield Finding(name=_NAME, verdict=Verdict.WARN, message=str(error), hint=hint)
        return
    yield Finding(name=_NAME, verdict=Verdict.OK, message=f"usable keys of {oidc.issuer}: {len(keys)}")
