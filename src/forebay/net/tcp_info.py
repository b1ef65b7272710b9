"""What Linux knows of a TCP connection's bytes: how many of ours the peer's kernel has not taken.

It only reads.  Where the kernel does not tell, the answer is None and never a guess.
"""

import socket
import struct

# Offsets into `struct tcp_info`, as it is since Linux 4.19.
_SIZE = 216
_BYTES_ACKED = 120
_NOTSENT_BYTES = 144
_BYTES_SENT = 200
_BYTES_RETRANS = 208


def count_unacked_bytes(sock: socket.socket) -> int | None:
    """Bytes written to the socket of a client that the peer has not acknowledged, sent or not.

    Unlike `tcpi_unacked` it holds after a reset, which throws the queue away.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return None
    if len(info) < _SIZE:
        return None
    (acked,) = struct.unpack_from("=Q", info, _BYTES_ACKED)  # counts our SYN as one byte
    (unsent,) = struct.unpack_from("=I", info, _NOTSENT_BYTES)
    sent, sent_again = struct.unpack_from("=QQ", info, _BYTES_SENT)
    return int(sent - sent_again - (acked - 1) + unsent)
