"""Replicas from the EndpointSlices of a Kubernetes service, by list and watch."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec

from gateway.core.pool_spec import Discovery, KubernetesSource
from gateway.fleet.discovery.source import Follower, Listing, SourceError, SourceTools, authority
from gateway.policy.sections.values import read_secret

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod has its token, the certificate of the API server, and its namespace."""
PAGE: Final = 500
"""EndpointSlices asked for at once."""
WATCH_S = 60
"""Seconds of one watch. A watch may hang while the control plane is replaced, so none is long. Each begins with the
token that its file has then.
"""
GRACE_S = 10
"""Seconds without a byte after the end of a watch, until it is given up."""
RELIST_S = 0.1
"""Seconds before a new list, because the version of the last one is gone."""
BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0
_GONE: Final = 410


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    terminating: bool | None = None


class _Pod(msgspec.Struct):
    uid: str = ""
    name: str = ""


class _Endpoint(msgspec.Struct):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    targetRef: _Pod | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Slice(msgspec.Struct):
    """An EndpointSlice, or the Status of an error."""

    metadata: _Meta
    addressType: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None
    code: int = 0
    message: str = ""


class _SliceList(msgspec.Struct):
    metadata: _Meta
    items: list[_Slice]


class _Event(msgspec.Struct):
    type: str
    object: _Slice


class _GoneError(Exception):
    """Raised when the API server no longer has the version from which a watch or a page would go on."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The API server and the namespace."""

    url: str
    namespace: str
    ca_file: str
    token_file: str


class KubernetesFollower(Follower):
    """Lists the EndpointSlices of a service, and watches them from there on."""

    def __init__(self, source: KubernetesSource, discovery: Discovery, tools: SourceTools) -> None:
        super().__init__(discovery, tools)
        self._source = source
        self._slices: dict[str, _Slice] = {}
        selectors = (("kubernetes.io/service-name", source.service), *source.labels)
        self._selector = ",".join(f"{name}={value}" for name, value in selectors)

    async def run(self) -> None:
        clock, backoff_s = asyncio.get_running_loop().time, 0.0
        while True:
            began, is_gone = clock(), False
            try:
                async with self._client() as client:
                    version = await self._list(client)
                    while True:
                        asked_at = clock()
                        version = await self._watch(client, version)
                        if clock() - asked_at < BACKOFF_S:
                            raise SourceError("a watch ended at once: check what is between here and the API server")
            except _GoneError:
                is_gone = True
            except SourceError as error:
                self._tools.failed(f"service {self._source.service}: {error}")
            except httpx.HTTPError as error:
                said = str(error) or type(error).__name__
                self._tools.failed(f"service {self._source.service}: the API server cannot be reached: {said}")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._tools.failed(f"service {self._source.service}: the API server's answer is no list: {error}")
            backoff_s = backoff_after(clock() - began, backoff_s)
            await asyncio.sleep(RELIST_S if is_gone and backoff_s == BACKOFF_S else backoff_s)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        self._place = place = await asyncio.to_thread(self._read_place)
        try:
            context = await asyncio.to_thread(ssl.create_default_context, cafile=place.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise SourceError(f"{place.ca_file} has no certificates in PEM: {error}") from None
        timeout = httpx.Timeout(5.0, read=WATCH_S + GRACE_S)
        async with httpx.AsyncClient(base_url=place.url, verify=context, timeout=timeout, trust_env=False) as client:
            yield client

    def _read_place(self) -> _Place:
        source = self._source
        url, is_given = source.server, bool(source.server)
        if not is_given:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise SourceError("this is no pod, for KUBERNETES_SERVICE_HOST is not set: write `server`")
            url = f"https://{authority(host, int(port))}"
        namespace = source.namespace or _text(ACCOUNT / "namespace", "write `namespace`")
        ca_file = source.ca_file or ("" if is_given else str(ACCOUNT / "ca.crt"))
        return _Place(url, namespace, ca_file, source.token_file or ("" if is_given else str(ACCOUNT / "token")))

    async def _headers(self) -> dict[str, str]:
        """The token is read each time, because the kubelet replaces it."""
        name = self._place.token_file
        if not name:
            return {}
        try:
            token = read_secret(await asyncio.to_thread(_text, Path(name), "write `token_file`"))
        except ValueError:
            raise SourceError(f"{name} has no token: write one line of printable ASCII without spaces") from None
        return {"authorization": f"Bearer {token}"}

    def _request(
        self, client: httpx.AsyncClient, headers: Mapping[str, str], parameters: Mapping[str, str | int]
    ) -> httpx.Request:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._place.namespace}/endpointslices"
        return client.build_request(
            "GET", path, params={"labelSelector": self._selector, **parameters}, headers=dict(headers)
        )

    async def _list(self, client: httpx.AsyncClient) -> str:
        """Read all pages. Returns the version of the list."""
        slices: dict[str, _Slice] = {}
        parameters: dict[str, str | int] = {"limit": PAGE}
        while True:
            answer = await client.send(self._request(client, await self._headers(), parameters))
            _check(answer.status_code)
            page = msgspec.json.decode(answer.content, type=_SliceList)
            slices.update((each.metadata.name, each) for each in page.items)
            if not page.metadata.continue_:
                break
            parameters["continue"] = page.metadata.continue_
        self._slices = slices
        self._tell()
        return page.metadata.resource_version

    async def _watch(self, client: httpx.AsyncClient, version: str) -> str:
        """Follow changes until the server ends the watch. Returns the version from which to go on."""
        parameters: dict[str, str | int] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_S,
        }
        answer = await client.send(self._request(client, await self._headers(), parameters), stream=True)
        try:
            _check(answer.status_code)
            async for line in answer.aiter_lines():
                if line:
                    version = self._take(msgspec.json.decode(line, type=_Event)) or version
        finally:
            await answer.aclose()
        return version

    def _take(self, event: _Event) -> str:
        found = event.object
        if event.type == "ERROR":
            if found.code == _GONE:
                raise _GoneError
            raise SourceError(f"the watch ended with {found.code}: {found.message}")
        if event.type == "DELETED":
            self._slices.pop(found.metadata.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            self._slices[found.metadata.name] = found
        if event.type != "BOOKMARK":
            self._tell()
        return found.metadata.resource_version

    def _tell(self) -> None:
        """One replica for each pod, even if its addresses of both families are listed, in several slices."""
        ready: dict[str, str] = {}
        ending: dict[str, str] = {}
        for each in sorted(self._slices.values(), key=lambda each: (each.addressType, each.metadata.name)):
            if not each.endpoints:
                continue  # the slice of a service without pods has no ports either
            port = self._port(each)
            for endpoint in each.endpoints:
                if not endpoint.addresses:
                    continue  # an evicted pod
                conditions = endpoint.conditions or _Conditions()
                url = self._url(authority(endpoint.addresses[0], port))
                pod = endpoint.targetRef.uid if endpoint.targetRef and endpoint.targetRef.uid else url
                if conditions.terminating:
                    ending.setdefault(pod, url)
                elif conditions.ready is not False:
                    ready.setdefault(pod, url)
        self._tools.told(Listing(frozenset(ready.values()), frozenset(ending.values())))

    def _port(self, found: _Slice) -> int:
        wanted, ports = self._source.port, found.ports or []
        if wanted.isdecimal():
            return int(wanted)
        fitting = [each.port for each in ports if each.port and (not wanted or each.name == wanted)]
        if len(fitting) != 1:
            names = ", ".join(each.name or str(each.port) for each in ports) or "none"
            raise SourceError(f"its ports are {names}: write the name or number of one as `port`")
        return fitting[0]


def backoff_after(lasted_s: float, backoff_s: float) -> float:
    """Pause after a list with its watches that lasted so long. `backoff_s`: the pause before it; 0 at first."""
    return BACKOFF_S if lasted_s > backoff_s else min(2 * backoff_s, MAX_BACKOFF_S)


def _check(status: int) -> None:
    if status == _GONE:
        raise _GoneError
    if status in (401, 403):
        raise SourceError(f"the API server answered {status}: the account needs get, list and watch on endpointslices")
    if status != 200:
        raise SourceError(f"the API server answered {status}")


def _text(path: Path, otherwise: str) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}: {otherwise}") from None
