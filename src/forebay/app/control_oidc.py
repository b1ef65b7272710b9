"""Lets holders of an identity provider's tokens into the admin API, beside those of Forebay's own tokens.

The provider is the one that the configuration in force names, so an edit takes effect at once; where it names
none, nobody is contacted and nothing is loaded.
"""

from collections.abc import Callable

from forebay.app.config_oidc import OidcConfig, find_missing_packages
from forebay.app.control_roles import Principal, RoleTooLow
from forebay.app.oidc_fetch import fetch_document
from forebay.app.oidc_keys import Fetch, IssuerKeys, IssuerUnavailable
from forebay.app.oidc_token import looks_like_one, read_signed, verify_token
from forebay.core.clock import Clock
from forebay.gateway.tenancy import Actor


class OidcDoor:
    """Knows holders of an identity provider's tokens.

    Args:
        get_config: the section in force; None where there is none.
        clock: for how old the provider's keys are.
        fetch: asks the provider for a document.
    """

    def __init__(
        self, get_config: Callable[[], OidcConfig | None], clock: Clock, fetch: Fetch = fetch_document
    ) -> None:
        self._get_config = get_config
        self._clock = clock
        self._fetch = fetch
        self._config: OidcConfig | None = None
        self._keys: IssuerKeys | None = None

    async def identify(self, token: str) -> Principal | None:
        """Whose token it is; None where it is none of an identity provider, or none is configured.

        Raises:
            Unauthenticated: it opens nothing; the message says why.
            RoleTooLow: it tells none of the roles that let in.
            IssuerUnavailable: it can't be verified at present.
        """
        config = self._get_config()
        if config is None or not looks_like_one(token):
            return None
        if missing := find_missing_packages():
            what = f"control.oidc needs {' and '.join(missing)}, which is not installed"
            raise IssuerUnavailable(f"{what}: pip install 'forebay[oidc]'")
        if self._keys is None or config != self._config:
            self._config, self._keys = config, IssuerKeys(config, self._clock, self._fetch)
        signed = read_signed(token, config)
        key = await self._keys.find(signed.kid, signed.algorithm)
        holder = verify_token(token, signed, key, config)
        if not holder.roles:
            raise RoleTooLow(
                f"the token of {holder.name!r} tells none of the roles that control.oidc.roles names, in its "
                f"claim {config.roles_claim!r}"
            )
        actor = Actor(id=f"oidc:{holder.subject}", name=holder.name, issuer=config.issuer)
        return Principal(actor=actor, roles=holder.roles)
