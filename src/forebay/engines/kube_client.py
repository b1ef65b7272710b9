"""The Kubernetes API through the official client: the few calls that are needed, on objects as JSON.

Blocks, so it is called in threads.  Turns every refusal into a `LauncherError` that says what to change.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final, TypeVar

import msgspec

from forebay.engines.kube_objects import CONTAINER, Object
from forebay.engines.model import LauncherError

TIMEOUT_S: Final = (3.0, 15.0)  #: to connect, and for an answer
SILENCE_MAX_S: Final = 3600.0  #: of a log that is followed
PAGE: Final = 500  #: objects in one answer

Result = TypeVar("Result")


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster's API is reached; without any, as `kubectl` would, or from inside of the cluster."""

    context: str = ""  #: of the kubeconfig
    kubeconfig: str = ""  #: path; empty: `KUBECONFIG`, else `~/.kube/config`
    url: str = ""  #: of the API itself, without a kubeconfig, as `kubectl proxy` gives one


class ClusterApi:
    """One namespace of a cluster.

    Raises:
        LauncherError: the client is not installed, or no way to a cluster is known.
    """

    def __init__(self, access: ClusterAccess, namespace: str) -> None:
        kubernetes = load_kubernetes()
        client = _open_client(kubernetes, access)
        apps, core, policy = (
            kubernetes.client.AppsV1Api(client),
            kubernetes.client.CoreV1Api(client),
            kubernetes.client.PolicyV1Api(client),
        )
        self._of = {
            "deployments": (apps, "deployment"),
            "services": (core, "service"),
            "pods": (core, "pod"),
            "poddisruptionbudgets": (policy, "pod_disruption_budget"),
        }
        self._core, self._client, self.namespace = core, client, namespace
        self.refused = kubernetes.client.ApiException

    @property
    def url(self) -> str:
        return str(self._client.configuration.host)

    def read(self, kind: str, name: str) -> Object | None:
        return self._unless(404, lambda: self._do("read", kind, name, self.namespace))

    def list(self, kind: str, labels: dict[str, str]) -> list[Object]:
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found: list[Object] = []
        following: str | None = None
        while following is None or following:
            page = self._do(
                "list", kind, self.namespace, label_selector=selector, limit=PAGE,
                **({"_continue": following} if following else {}),
            )  # fmt: skip
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue") or ""
        return found

    def create(self, kind: str, body: Object) -> bool:
        """Whether it was made; not where there is one already."""
        return self._unless(409, lambda: self._do("create", kind, self.namespace, body)) is not None

    def replace(self, workload: Object) -> bool:
        """Whether it was; not where somebody else was quicker."""
        name = workload["metadata"]["name"]
        made = self._unless(409, lambda: self._do("replace", "deployments", name, self.namespace, workload))
        return made is not None

    def patch(self, kind: str, name: str, body: Object) -> None:
        self._unless(404, lambda: self._do("patch", kind, name, self.namespace, body))

    def delete(self, kind: str, name: str) -> None:
        self._unless(
            404, lambda: self._do("delete", kind, name, self.namespace, propagation_policy="Background")
        )

    def read_log(self, pod: str, lines: int, *, previous: bool) -> Sequence[str]:
        """Empty where a container has not said anything yet, or is gone."""
        try:
            answer = self._core.read_namespaced_pod_log(
                pod, self.namespace, container=CONTAINER, tail_lines=lines, previous=previous,
                _preload_content=False, _request_timeout=TIMEOUT_S,
            )  # fmt: skip
        except self.refused as error:
            if error.status in (400, 404):
                return []
            raise
        return bytes(answer.data).decode(errors="replace").splitlines()

    def follow_log(self, pod: str) -> Iterator[bytes]:
        """What it says from its beginning to its end.  Raises what the client raises."""
        answer = self._core.read_namespaced_pod_log(
            pod, self.namespace, container=CONTAINER, follow=True,
            _preload_content=False, _request_timeout=(TIMEOUT_S[0], SILENCE_MAX_S),
        )  # fmt: skip
        try:
            yield from answer.stream(1 << 16)
        finally:
            answer.close()

    def close(self) -> None:
        self._client.close()

    def _do(self, verb: str, kind: str, *arguments: Any, **options: Any) -> Object:
        api, noun = self._of[kind]
        method = getattr(api, f"{verb}_namespaced_{noun}")
        # As it comes: the client's own classes would refuse what a newer cluster leaves out.
        answer = method(*arguments, **options, _preload_content=False, _request_timeout=TIMEOUT_S)
        return dict(json.loads(answer.data))

    def _unless(self, status: int, do: Callable[[], Object]) -> Object | None:
        try:
            return do()
        except self.refused as error:
            if error.status == status and not _lacks_namespace(error):
                return None
            raise


def load_kubernetes() -> Any:
    """The client, imported only now: it is optional, and heavy."""
    if find_spec("kubernetes") is None:
        raise LauncherError(
            "the Kubernetes client is not installed. Run `pip install 'forebay[kubernetes]'`."
        )
    import kubernetes

    return kubernetes


def _open_client(kubernetes: Any, access: ClusterAccess) -> Any:
    settings = kubernetes.client.Configuration()
    try:
        if access.url:
            settings.host = access.url
        elif access.kubeconfig or access.context:
            kubernetes.config.load_kube_config(
                access.kubeconfig or None, access.context or None, settings, persist_config=False
            )
        else:
            kubernetes.config.load_config(client_configuration=settings)
    except (kubernetes.config.ConfigException, OSError, ValueError) as error:
        raise LauncherError(
            f"no way to the Kubernetes API is known: {' '.join(str(error).split())}. Give "
            "`launchers.kubernetes.kubeconfig` and `context`, or run inside of the cluster."
        ) from None
    settings.retries = False  # whoever calls tries again
    return kubernetes.client.ApiClient(settings)


def translating(do: Callable[[], Result], api: ClusterApi) -> Result:
    """The result of `do`, with what the client raises put in words.

    Raises:
        LauncherError
    """
    import urllib3

    try:
        return do()
    except api.refused as error:
        raise LauncherError(_explain_refusal(error, api.namespace)) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        cause = getattr(error, "reason", None) or error
        raise LauncherError(
            f"the Kubernetes API at {api.url} can't be reached ({type(cause).__name__}). See whether "
            "`kubectl get pods` works from here."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise LauncherError(
            f"what answers at {api.url} is no whole Kubernetes API ({type(error).__name__}: {error})."
        ) from None


def _explain_refusal(error: Any, namespace: str) -> str:
    said = _explain(error)
    match error.status:
        case 401:
            return f"the Kubernetes API does not know who asks ({said}). Renew the kubeconfig."
        case 403:
            return (
                f"the Kubernetes API forbids it: {said}. docs/kubernetes.md lists the rights that are needed."
            )
        case 404 if _lacks_namespace(error):
            return f"there is no namespace {namespace!r} on the cluster. Create it, or set another."
        case 422:
            return f"the Kubernetes API refuses the object: {said}"
        case _:
            return f"the Kubernetes API answers {error.status}: {said}"


def _lacks_namespace(error: Any) -> bool:
    return error.status == 404 and _explain(error).startswith("namespaces ")


def _explain(error: Any) -> str:
    """What the API says of a refusal."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason or error.status)
