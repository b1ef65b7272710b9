"""What can be wrong with the database, in words that say what to do.  Never holds a password or a row."""

from forebay.core.errors import ForebayError


class StoreError(ForebayError):
    status = 503
    code = "store_error"


class StoreBusy(StoreError):
    """Another process held the lock for too long, or won a conflict.  Nothing was changed; the same call may
    be made again."""

    code = "store_busy"


class StoreUnavailable(StoreError):
    """The database can't be reached, read or written: disk full, no permission, damaged file, server gone."""

    code = "store_unavailable"


class StoreValueRefused(StoreUnavailable):
    """The database never takes one of the values, such as a number that is too large.  Nothing was changed,
    and the same call would fail again."""

    status = 500
    code = "store_value_refused"


class StoreMissing(StoreUnavailable):
    """There is no database at the place, and it was not to be created."""

    code = "store_missing"


class StoreOutdated(StoreError):
    """The tables are older than this version of Forebay; `migrate` brings them up."""

    code = "store_outdated"


class StoreNewer(StoreError):
    """A later version of Forebay has changed the tables; this one must not touch them."""

    code = "store_newer"
