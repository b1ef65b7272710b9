"""The one sink of every log line: what must stay secret is taken out of it, wherever in the record it stood.

Two kinds are known: keys and tokens of Forebay, and signed tokens, by their form, and other secrets because
`secret_refs` says so whenever it reads one.  This is the last line of defence, not the first: nothing is
meant to log a secret.
"""

import logging
import re
import sys
from types import TracebackType
from typing import Final

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
SECRETS_MAX: Final = 4096  #: of other systems; beyond it the one learned first is forgotten
SECRET_CHARS_MIN: Final = 4  #: a shorter one stands in every other word, and can't be taken out
_OWN: Final = re.compile(r"(fba?-)[A-Za-z0-9_-]{43}")
#: A signed token of an identity provider: `{"` in base64, and two more parts.
_SIGNED: Final = re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_GONE: Final = "[redacted]"


class Redactor:
    """Knows secrets, and takes them out of texts."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, secret: str) -> None:
        if len(secret) < SECRET_CHARS_MIN or secret in self._known:
            return
        if len(self._known) >= SECRETS_MAX:
            del self._known[next(iter(self._known))]
        self._known[secret] = None
        # The longest first: of two that begin alike, no end of the longer one is left.
        longest_first = sorted(self._known, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def redact(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(_GONE, text)
        return _SIGNED.sub(_GONE, _OWN.sub(rf"\1{_GONE}", text))


#: Of this process, as logging itself is: a secret that any part of it has read is in no line of any other.
redactor: Final = Redactor()


class RedactingFormatter(logging.Formatter):
    """Works on the finished line, so that message, arguments, traceback and stack are all covered."""

    def format(self, record: logging.LogRecord) -> str:
        return redactor.redact(super().format(record))


def log_to_stderr() -> None:
    """Sends all logging of this process there, and with it the errors that nobody caught."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("forebay").critical("ended by an error", exc_info=(kind, error, trace))
