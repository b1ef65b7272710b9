"""Asks the gateway one line of a batch, as the key of the batch.  It decides nothing of what follows."""

import asyncio
from typing import Final

from forebay.batch.policy import Reply
from forebay.core.batch_calls import MARK_HEADER
from forebay.core.errors import (
    ConnectFailed,
    ConnectionsExhausted,
    ConnectTimeout,
    ForebayError,
    StaleConnection,
)
from forebay.net.client import Client, parse_address
from forebay.net.connection import Connection

CONNECT_S: Final = 5.0
IDLE_S: Final = 120.0  #: between two reads of an answer
TOTAL_S: Final = 3600.0  #: the gateway's own deadlines come before it
WAIT_S: Final = 60.0  #: that a line stands in the gateway's lines, before it is asked again
ANSWER_MAX_BYTES: Final = 64 * 1024 * 1024
_UNSENT: Final = (ConnectFailed, ConnectTimeout, ConnectionsExhausted, StaleConnection)


class Asker:
    """See the module.

    Args:
        url: of the gateway, without `/v1`.
        secret: by which its workers know who asks.
        connections_max: as many as there are lines at once.
    """

    def __init__(self, client: Client, url: str, secret: bytes, connections_max: int) -> None:
        address, _ = parse_address(url)
        self._origin = client.origin(address, connections_max)
        self._secret = secret
        self._loop = asyncio.get_running_loop()

    async def ask(self, key: str, endpoint: str, body: bytes, mark: str) -> Reply:
        """Never raises but for cancellation.

        Args:
            mark: names the line in the gateway's records.
        """
        try:
            try:
                connection = await self._origin.acquire(CONNECT_S)
                return await self._exchange(connection, key, endpoint, body, mark)
            except StaleConnection:
                connection = await self._origin.connect(CONNECT_S)
                return await self._exchange(connection, key, endpoint, body, mark)
        except ForebayError as error:
            return Reply(status=0, error=error.message, was_sent=not isinstance(error, _UNSENT))

    async def _exchange(
        self, connection: Connection, key: str, endpoint: str, body: bytes, mark: str
    ) -> Reply:
        head = (
            b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"authorization: Bearer %b.%b\r\n%b: %b\r\nx-forebay-wait: %d\r\n\r\n"
        ) % (
            *(endpoint.encode(), self._origin.address.authority.encode(), len(body)),
            *(self._secret, key.encode(), MARK_HEADER, mark.encode(), int(WAIT_S)),
        )
        try:
            self._origin.watch(connection, None, IDLE_S, self._loop.time() + TOTAL_S)
            connection.send(head, body, ANSWER_MAX_BYTES)
            answer = await connection.all()
            after = connection.header(b"retry-after")
            return Reply(
                status=connection.status,
                body=answer,
                request_id=connection.header(b"x-request-id").decode("latin-1"),
                retry_after_s=float(after) if after.isdigit() else None,
            )
        finally:
            connection.release()
