"""Who uses the admin API, and what they may do: a token's holder, and the role that each route asks for.

The token of the file `admin.token` is an owner's whatever is in the database, so that nobody is ever locked
out.  Tokens are compared by their digests; none is shown or logged here.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from fastapi import Depends, Request

from forebay.core.errors import CallerError, Unauthenticated
from forebay.core.keys import compute_key_digest
from forebay.gateway.repo_tokens import TOKEN_PREFIX, TokenRepo
from forebay.gateway.tenancy import Actor, Role

ADMIN_FILE: Final = Actor(id="admin.token", name="admin.token")
_TOKEN: Final = re.compile(rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}")


class RoleTooLow(CallerError):
    status: ClassVar[int] = 403
    type: ClassVar[str] = "permission_error"
    code: ClassVar[str] = "role_too_low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Whoever sent a request."""

    actor: Actor
    roles: tuple[Role, ...]  #: may do what any of them may; of a token of ours there is one

    def may(self, role: Role) -> bool:
        """Whether it may do what takes this role."""
        return any(held.includes(role) for held in self.roles)


Identify = Callable[[str], Awaitable[Principal | None]]


class Doorkeeper:
    """Knows who holds which token.

    Args:
        admin_token: that of the file.
        tokens: all others of ours.
        identify_foreign: whose token it is, if it is one of an identity provider.
    """

    def __init__(self, admin_token: str, tokens: TokenRepo, identify_foreign: Identify | None = None) -> None:
        self._digest = compute_key_digest(admin_token)
        self._tokens = tokens
        self._identify_foreign = identify_foreign

    async def identify(self, authorization: str) -> Principal:
        """Whose request it is.

        Args:
            authorization: the header, empty where there is none.

        Raises:
            Unauthenticated: no token, or none that opens anything.
            StoreError: the database refuses, and it is not the file's token.
            ForebayError: what `identify_foreign` raises.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer":
            digest = compute_key_digest(token.encode("latin-1", "replace"))
            if hmac.compare_digest(digest, self._digest):
                return Principal(actor=ADMIN_FILE, roles=(Role.OWNER,))
            if _TOKEN.fullmatch(token):  # nothing else costs the database a look
                found = await asyncio.to_thread(self._tokens.find_live, digest)
                if found is not None:
                    return Principal(actor=Actor(id=found.id, name=found.name), roles=(found.role,))
            elif self._identify_foreign is not None:
                foreign = await self._identify_foreign(token)
                if foreign is not None:
                    return foreign
        raise Unauthenticated(
            "the admin API needs a token, `Authorization: Bearer fba-...`: that of the file admin.token in "
            "the data folder, or one that `forebay tokens create` made; it may have expired or been revoked"
        )


def require(role: Role) -> Callable[[Request], Awaitable[None]]:
    """A dependency of a route: lets those in who have the role, or a higher one."""

    async def check(request: Request) -> None:
        principal: Principal = request.state.principal
        if not principal.may(role):
            raise RoleTooLow(
                f"this takes the role {role.value}, and the token {principal.actor.name!r} has the role "
                f"{' and '.join(principal.roles)}"
            )

    return check


async def _get_actor(request: Request) -> Actor:
    principal: Principal = request.state.principal
    return principal.actor


CurrentActor = Annotated[Actor, Depends(_get_actor)]
