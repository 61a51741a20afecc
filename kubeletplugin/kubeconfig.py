"""Where the API server is and who we are: service account, kubeconfig, credential plugins.

Only users with ``exec`` or ``auth-provider`` go through the ``kubernetes`` package: importing
``kubernetes.aio.config`` (37.0.2) costs 22 MiB resident and 0.5 s on top of PyYAML,
because the package loads its generated client. Service accounts and plain kubeconfigs (token,
token file, client certificate, user and password) are read here: 0.7 MiB, a few milliseconds.
"""

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE_S = 60.0  # the kubelet rotates bound tokens; client-go re-reads each minute too
_STAT_EVERY_S = 1.0
_PLUGIN_RELOAD_S = 60.0  # the package itself decides whether a token is near its end


class KubeConfigError(Exception):
    """The configuration cannot be used; the text names the file and the entry."""


class Credentials(Protocol):
    """What goes into the ``Authorization`` header, or None where a certificate speaks."""

    async def header(self) -> str | None: ...

    async def refresh(self) -> bool:
        """After a 401. True if asking again may help."""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """An API server and how to talk to it."""

    server: str  # "https://10.96.0.1:443", no slash at the end
    credentials: Credentials
    tls: ssl.SSLContext | None = None  # None: plain HTTP
    tls_server_name: str | None = None
    proxy: str | None = None


class StaticToken:
    """A header value that never changes; None sends no header."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    async def header(self) -> str | None:
        return self._value

    async def refresh(self) -> bool:
        return False


class FileToken:
    """A token file, read again when it changes and at least once a minute."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._value = ""
        self._stamp: tuple[int, int] | None = None
        self._looked = self._read_at = float("-inf")

    async def header(self) -> str | None:
        now = self._clock()
        if now - self._looked >= _STAT_EVERY_S:
            self._looked = now
            if now - self._read_at >= TOKEN_MAX_AGE_S or self._stamp != self._stat():
                self._read(now)
        return self._value

    async def refresh(self) -> bool:
        before = self._value
        self._read(self._clock())
        return self._value != before

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _read(self, now: float) -> None:
        stamp = self._stat()
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            if self._value:  # being swapped by the kubelet: the old one still holds
                return
            raise KubeConfigError(f"token file {self._path}: {error.strerror}") from error
        if not token:
            raise KubeConfigError(f"token file {self._path} is empty")
        self._value, self._stamp, self._read_at = f"Bearer {token}", stamp, now


class PluginCredentials:
    """Users with ``exec`` or ``auth-provider``: the ``kubernetes`` package runs the plugin."""

    def __init__(self, kubeconfig: str, user: str, tls: ssl.SSLContext | None) -> None:
        self._kubeconfig = kubeconfig
        self._user = user
        self._tls = tls
        self._loader: Any = None
        self._value: str | None = None
        self._loaded_at = float("-inf")

    async def header(self) -> str | None:
        if time.monotonic() - self._loaded_at >= _PLUGIN_RELOAD_S:
            await self._load()
        return self._value

    async def refresh(self) -> bool:
        before = self._value
        self._loader = None  # forget the expiry it remembers
        await self._load()
        return self._value != before

    async def _load(self) -> None:
        from kubernetes.aio.client import Configuration  # noqa: PLC0415  (22 MiB, see above)
        from kubernetes.aio.config import load_kube_config  # noqa: PLC0415

        found = Configuration()
        if self._loader is None:
            self._loader = await load_kube_config(  # type: ignore[no-untyped-call]
                self._kubeconfig, client_configuration=found, persist_config=False
            )
        else:
            await self._loader.load_and_set(found)
        self._value = found.api_key.get("BearerToken")
        if found.cert_file and self._tls is not None:
            self._tls.load_cert_chain(found.cert_file, found.key_file)
        elif self._value is None:
            raise KubeConfigError(
                f"kubeconfig {self._kubeconfig}: the credential plugin of user {self._user!r} "
                "gave neither a token nor a certificate; the log has what it said"
            )
        self._loaded_at = time.monotonic()


def find_access(kubeconfig: str | None, environ: Mapping[str, str] = os.environ) -> Access:
    """``kubeconfig``, else ``$KUBECONFIG``, the pod's service account, ``~/.kube/config``.

    Raises ``KubeConfigError``.
    """
    paths = kubeconfig or environ.get("KUBECONFIG")
    if paths:
        return from_kubeconfig(paths)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ)
    home = Path(environ.get("HOME", "/")) / ".kube" / "config"
    if home.exists():
        return from_kubeconfig(str(home))
    raise KubeConfigError(
        "no API server is configured: give a kubeconfig, set KUBECONFIG, or run in a pod"
        f" (KUBERNETES_SERVICE_HOST is not set and {home} does not exist)"
    )


def in_cluster(environ: Mapping[str, str], root: Path = SERVICE_ACCOUNT) -> Access:
    """The pod's service account (rules of client-go's ``rest.InClusterConfig``)."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    ca = root / "ca.crt"
    try:
        tls = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise KubeConfigError(f"service account: {ca}: {error}") from error
    return Access(f"https://{authority}", FileToken(root / "token"), tls)


def from_kubeconfig(paths: str) -> Access:
    """``paths`` as in ``$KUBECONFIG``: several files are merged, the first mention wins."""
    config = _merge(paths)
    context = _named(config, "contexts", config.get("current-context"), "context", paths)
    cluster = _named(config, "clusters", context.get("cluster"), "cluster", paths)
    name = context.get("user")
    user = _named(config, "users", name, "user", paths) if name else {}
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise KubeConfigError(
            f"kubeconfig {paths}: server of cluster {context.get('cluster')!r} is {server!r},"
            " an http:// or https:// URL is needed"
        )
    try:
        tls = _tls(cluster, user) if server.startswith("https://") else None
        credentials = _credentials(user, paths, str(name), tls)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise KubeConfigError(f"kubeconfig {paths}: user {name!r}: {error}") from error
    return Access(
        server, credentials, tls, cluster.get("tls-server-name"), cluster.get("proxy-url")
    )


def _merge(paths: str) -> dict[str, Any]:
    merged: dict[str, Any] = {"contexts": [], "clusters": [], "users": []}
    found = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    existing = [path for path in found if path.exists()]
    if not existing:
        raise KubeConfigError(f"kubeconfig {paths}: there is no such file")
    for path in existing:
        config = _load(path)
        for section in ("contexts", "clusters", "users"):
            known = {entry.get("name") for entry in merged[section]}
            for entry in config.get(section) or []:
                if entry.get("name") not in known:
                    merged[section].append({**entry, "base": path.parent})
        if config.get("current-context"):
            merged.setdefault("current-context", config["current-context"])
    return merged


def _load(path: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  (not needed in a pod)

    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise KubeConfigError(f"kubeconfig {path}: {error}") from error
    if not isinstance(config, dict):
        raise KubeConfigError(f"kubeconfig {path}: a mapping is needed, found {config!r}")
    return config


def _named(
    config: Mapping[str, Any], section: str, name: object, key: str, paths: str
) -> dict[str, Any]:
    """The entry, its paths made absolute against the folder of its file."""
    for entry in config[section]:
        if entry.get("name") == name:
            content = dict(entry.get(key) or {})
            for field in (
                "certificate-authority",
                "client-certificate",
                "client-key",
                "tokenFile",
            ):
                if content.get(field):
                    content[field] = str(entry["base"] / content[field])
            return content
    raise KubeConfigError(f"kubeconfig {paths}: no entry {name!r} in {section}")


def _credentials(
    user: Mapping[str, Any], paths: str, name: str, tls: ssl.SSLContext | None
) -> Credentials:
    if "exec" in user or "auth-provider" in user:
        return PluginCredentials(paths, name, tls)
    if user.get("tokenFile"):
        return FileToken(Path(user["tokenFile"]))
    if user.get("token"):
        return StaticToken(f"Bearer {user['token']}")
    if user.get("username"):
        pair = f"{user['username']}:{user.get('password', '')}"
        return StaticToken("Basic " + base64.b64encode(pair.encode()).decode())
    return StaticToken(None)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    data = cluster.get("certificate-authority-data")
    tls = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(data).decode() if data else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as folder:  # load_cert_chain takes files only; 0700
        certificate = _as_file(user, "client-certificate", Path(folder))
        key = _as_file(user, "client-key", Path(folder))
        if certificate:
            tls.load_cert_chain(certificate, key)
    return tls


def _as_file(user: Mapping[str, Any], field: str, folder: Path) -> str | None:
    data = user.get(f"{field}-data")
    if data is None:
        path: str | None = user.get(field)
        return path
    target = folder / field
    target.write_bytes(base64.b64decode(data))
    return str(target)
