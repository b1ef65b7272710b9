"""The one tree of errors: each says whose fault it is, what to do next, and how to mend it.

`HTTP` mapping is data here (status, type, code), so that one table in each dialect can turn an error into
an answer.  Nothing in this module logs, retries or raises.
"""

from enum import StrEnum
from typing import ClassVar


class Fault(StrEnum):
    """Who has to change something."""

    CALLER = "caller"
    TARGET = "target"
    US = "us"


class Next(StrEnum):
    """What the attempt policy may do after the error."""

    RETRY_HERE = "retry_here"
    ELSEWHERE = "elsewhere"
    STOP = "stop"


class ForebayError(Exception):
    """The root.  `message` says what was wrong and how to mend it; it never holds a secret.

    Attributes:
        status: HTTP status for a caller.
        type: the OpenAI error type.
        code: a stable machine-readable code.
        param: the request field at fault, if one is.
        retry_after_s: seconds after which the same request may succeed, if known.
    """

    fault: ClassVar[Fault] = Fault.US
    next: ClassVar[Next] = Next.STOP
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def describe(self) -> dict[str, str | None]:
        """The fields of OpenAI's error object, which every HTTP server here answers with."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


# --- the caller's fault -------------------------------------------------------------------------------------


class CallerError(ForebayError):
    fault = Fault.CALLER
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidJSON(CallerError):
    code = "invalid_json"


class InvalidValue(CallerError):
    code = "invalid_value"


class MissingField(CallerError):
    code = "missing_required_parameter"


class Unauthenticated(CallerError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(CallerError):
    status = 403
    type = "permission_error"
    code = "model_not_allowed"


class EndpointForbidden(Forbidden):
    code = "endpoint_not_allowed"


class TargetForbidden(Forbidden):
    """The key's regions or its last tier leave no target of the model."""

    code = "target_not_allowed"


class OutputTooLong(CallerError):
    """More output is asked for than the key may have."""

    code = "output_limit_exceeded"


class ContextTooLong(CallerError):
    """The prompt is longer than the key's may be, in OpenAI's word for it."""

    code = "context_length_exceeded"


class CapabilityMissing(CallerError):
    """No place that answers the model takes what the request needs."""

    code = "capability_not_supported"


class ModelNotFound(CallerError):
    status = 404
    code = "model_not_found"


class UnknownPath(CallerError):
    status = 404
    code = "unknown_url"


class MethodNotAllowed(CallerError):
    status = 405
    code = "method_not_allowed"


class EndpointUnsupported(CallerError):
    code = "endpoint_not_supported"


class BodyTooLarge(CallerError):
    status = 413
    code = "request_too_large"


class RequestTimeout(CallerError):
    status = 408
    code = "request_timeout"


class RateLimited(CallerError):
    """A limit of the key, its project or its team is reached."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class CallerLeft(CallerError):
    """The caller closed the connection.  Nobody reads the answer; 499 goes into the record."""

    status = 499
    code = "client_closed_request"


# --- a target's fault ---------------------------------------------------------------------------------------


class TargetError(ForebayError):
    fault = Fault.TARGET
    next = Next.ELSEWHERE
    status = 502
    type = "upstream_error"
    code = "upstream_error"


class UpstreamError(TargetError):
    """The target said that it failed, in its own words."""


class ConnectFailed(TargetError):
    code = "upstream_unreachable"
    status = 503


class ConnectTimeout(TargetError):
    code = "upstream_connect_timeout"
    status = 504


class ConnectionsExhausted(TargetError):
    code = "upstream_connections_exhausted"
    status = 503


class FirstTokenTimeout(TargetError):
    code = "upstream_first_token_timeout"
    status = 504


class IdleTimeout(TargetError):
    code = "upstream_idle_timeout"
    status = 504


class TotalTimeout(TargetError):
    """The attempt's time is used up."""

    code = "upstream_total_timeout"
    status = 504


class StaleConnection(TargetError):
    """A pooled connection was dead before the target saw the request: safe to send again."""

    next = Next.RETRY_HERE
    code = "upstream_stale_connection"


class UpstreamReset(TargetError):
    code = "upstream_reset"


class UpstreamTruncated(TargetError):
    """The answer ended cleanly on the wire, but before its end in the dialect."""

    code = "upstream_truncated"


class UpstreamProtocol(TargetError):
    code = "upstream_protocol_error"


class UpstreamRedirect(TargetError):
    code = "upstream_redirect"


class UpstreamCredentials(TargetError):
    """The target refused our own credentials: nothing that the caller could mend."""

    code = "upstream_credentials_rejected"


class TargetMisconfigured(TargetError):
    """What the configuration says of the target is of no use: nothing was sent."""

    status = 503
    code = "upstream_misconfigured"


class EngineNotRunning(TargetError):
    """The model is configured, and every engine that it runs on waits for a restart: nothing was sent."""

    status = 503
    code = "engine_not_running"


class Untranslatable(TargetError):
    """The request can't be said in what the target speaks: nothing was sent, and the target is not ill."""

    fault = Fault.CALLER
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class AnswerTooLarge(TargetError):
    next = Next.STOP
    code = "upstream_answer_too_large"


# --- our own fault ------------------------------------------------------------------------------------------


class Overloaded(ForebayError):
    status = 503
    type = "overloaded_error"
    code = "gateway_overloaded"


class ModelOverloaded(Overloaded):
    """All places of a model are full, and the request may not wait for one, or not for so long."""

    code = "model_overloaded"


class QuotaUnavailable(ForebayError):
    """Nobody can tell what is left of the limits."""

    status = 503
    code = "quota_unavailable"


class Draining(ForebayError):
    status = 503
    type = "overloaded_error"
    code = "gateway_draining"


class RecordsUnwritable(ForebayError):
    """The ledger can take no more records, so no more work is accepted."""

    status = 503
    type = "overloaded_error"
    code = "ledger_unwritable"


class InternalError(ForebayError):
    pass


class ConfigInvalid(ForebayError):
    """`forebay.yaml` is not usable; the message lists every mistake."""

    fault = Fault.CALLER
    status = 400
    type = "invalid_request_error"
    code = "config_invalid"
