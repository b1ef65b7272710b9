"""Says why nobody can listen at an address.  Opens nothing."""

import errno


def explain_bind(
    error: OSError, host: str, port: int, *, host_setting: str, port_setting: str, holder: str | None = None
) -> str:
    """What the system said, and what to do about it, in the words of whoever set the address.

    Args:
        error: of `bind` or `listen`.
        host_setting: the name of the setting or option that holds the host.
        port_setting: likewise, of the port.
        holder: who has the port, where that is known.
    """
    match error.errno:
        case errno.EADDRINUSE:
            by = f" by {holder}" if holder else ""
            return f"Port {port} is already in use{by}. Stop that process, or set another {port_setting}."
        case errno.EACCES:
            return f"Port {port} needs more rights than this user has. Set {port_setting} to 1024 or more."
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine. Mend {host_setting}."
        case _:
            return f"{host_setting} and {port_setting}: can't listen on {host}:{port}, {error.strerror}."
