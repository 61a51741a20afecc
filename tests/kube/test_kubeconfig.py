import base64
import json
import ssl
import sys
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from kubeletplugin.contract import Object
from kubeletplugin.kube import KubeClient
from kubeletplugin.kubeconfig import (
    Access,
    FileToken,
    KubeConfigError,
    PluginCredentials,
    find_access,
    from_kubeconfig,
    in_cluster,
)


def config(cluster: object = None, user: object = None, **more: object) -> Object:
    return {
        "clusters": [{"name": "c", "cluster": cluster or {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
        **more,
    }


def write(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


async def test_a_token_and_a_server(tmp_path):
    access = from_kubeconfig(write(tmp_path / "k", config(user={"token": "abc"})))
    assert (access.server, access.tls) == ("http://127.0.0.1:1", None)
    assert await access.credentials.header() == "Bearer abc"
    assert not await access.credentials.refresh()


async def test_user_and_password(tmp_path):
    access = from_kubeconfig(
        write(tmp_path / "k", config(user={"username": "a", "password": "b"}))
    )
    assert await access.credentials.header() == "Basic " + base64.b64encode(b"a:b").decode()


async def test_a_token_file_beside_the_kubeconfig(tmp_path):
    (tmp_path / "token").write_text("abc\n")
    access = from_kubeconfig(write(tmp_path / "k", config(user={"tokenFile": "token"})))
    assert await access.credentials.header() == "Bearer abc"


async def test_a_context_without_a_user_sends_nothing(tmp_path):
    content = config(contexts=[{"name": "x", "context": {"cluster": "c"}}])
    access = from_kubeconfig(write(tmp_path / "k", content))
    assert await access.credentials.header() is None


def test_proxy_and_server_name_are_kept(tmp_path):
    cluster = {"server": "http://a", "proxy-url": "http://p", "tls-server-name": "b"}
    access = from_kubeconfig(write(tmp_path / "k", config(cluster)))
    assert (access.proxy, access.tls_server_name) == ("http://p", "b")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["a", "list"], "a mapping is needed"),
        (config(**{"current-context": "other"}), "no entry 'other' in contexts"),
        (config(contexts=[{"name": "x", "context": {"cluster": "other"}}]), "no entry 'other'"),
        (config({"server": "tcp://x"}), "an http:// or https:// URL is needed"),
        (config({"server": "https://x", "certificate-authority": "none.crt"}), "No such file"),
        (config({"server": "https://x"}, {"client-certificate-data": "!"}), "user 'u'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, content, text):
    path = write(tmp_path / "k", content)
    with pytest.raises(KubeConfigError, match=text) as caught:
        from_kubeconfig(path)
    assert path in str(caught.value)


def test_a_file_that_is_not_yaml_is_named(tmp_path):
    (tmp_path / "k").write_text("a: [")
    with pytest.raises(KubeConfigError, match="k:"):
        from_kubeconfig(str(tmp_path / "k"))


def test_files_are_merged_and_the_first_mention_wins(tmp_path):
    first = write(tmp_path / "a", {"users": [{"name": "u", "user": {"token": "first"}}]})
    (tmp_path / "sub").mkdir()
    second = write(tmp_path / "sub" / "b", config(user={"token": "second"}))
    access = find_access(None, {"KUBECONFIG": f"{first}:{second}:{tmp_path}/none"})
    assert access.server == "http://127.0.0.1:1"
    assert access.credentials._value == "Bearer first"  # type: ignore[attr-defined]


def test_no_file_at_all_is_named(tmp_path):
    with pytest.raises(KubeConfigError, match="there is no such file"):
        find_access(f"{tmp_path}/none", {})


def test_home_is_the_last_resort(tmp_path):
    with pytest.raises(KubeConfigError, match="no API server is configured"):
        find_access(None, {"HOME": str(tmp_path)})
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", config())
    assert find_access(None, {"HOME": str(tmp_path)}).server == "http://127.0.0.1:1"


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1"])
def test_in_a_pod_the_service_account_speaks(tmp_path, authority, host, monkeypatch):
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("abc")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
    access = in_cluster(environ, tmp_path)
    assert access.server == f"https://{f'[{host}]' if ':' in host else host}:6443"
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED


def test_a_pod_without_a_service_account_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("kubeletplugin.kubeconfig.SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(KubeConfigError, match=r"service account: .*ca\.crt"):
        find_access(None, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"})


class Times:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_token_file_is_read_again_when_it_changes_and_each_minute(tmp_path):
    path, clock = tmp_path / "token", Times()
    path.write_text("a")
    token = FileToken(path, clock)
    assert await token.header() == "Bearer a"
    path.write_text("bb")
    assert await token.header() == "Bearer a"  # looked at once a second
    clock.now = 1.0
    assert await token.header() == "Bearer bb"
    token._stamp = token._stat()
    path.unlink()
    clock.now = 2.0
    assert await token.header() == "Bearer bb"  # the kubelet is swapping it
    path.write_text("ccc")
    clock.now = 62.0
    assert await token.header() == "Bearer ccc"
    assert not await token.refresh()


@pytest.mark.parametrize(("content", "text"), [(None, "No such file"), (" ", "is empty")])
async def test_a_token_file_that_says_nothing_is_named(tmp_path, content, text):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KubeConfigError, match=text):
        await FileToken(path).header()


def plugin(tmp_path: Path, body: object, cluster: object = None) -> str:
    """A kubeconfig whose credential plugin prints ``body`` and counts its calls."""
    script = tmp_path / "plugin.py"
    script.write_text(
        f"import pathlib\np = pathlib.Path({str(tmp_path / 'calls')!r})\n"
        "p.write_text(p.read_text() + 'x' if p.exists() else 'x')\n"
        f"print({json.dumps(body)!r}.replace('COUNT', p.read_text()))\n"
    )
    run = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script)],
    }
    return write(tmp_path / "k", config(cluster, {"exec": run}))


def credential(status: Object) -> Object:
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }


async def test_a_credential_plugin_is_run_and_run_again(tmp_path):
    access = from_kubeconfig(plugin(tmp_path, credential({"token": "token-COUNT"})))
    assert await access.credentials.header() == "Bearer token-x"
    assert await access.credentials.header() == "Bearer token-x"
    assert await access.credentials.refresh()
    assert await access.credentials.header() == "Bearer token-xx"
    access.credentials._loaded_at = float("-inf")  # type: ignore[attr-defined]
    assert await access.credentials.header() == "Bearer token-xxx"


async def test_a_credential_plugin_that_gives_nothing_is_named(tmp_path):
    access = from_kubeconfig(plugin(tmp_path, {"kind": "Nothing"}))
    with pytest.raises(KubeConfigError, match="user 'u' gave neither a token nor a certificate"):
        await access.credentials.header()


@pytest.fixture
async def tls_server(authority):
    """Tells the common name of the client's certificate."""

    async def answer(request):
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"names": [value for _, value in peer["subjectAltName"]]})

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/version", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


async def test_certificates_in_the_kubeconfig_are_used(tmp_path, authority, tls_server):
    leaf = authority.issue_cert("admin.example.com")
    user = {
        "client-certificate-data": encoded(leaf.cert_chain_pems[0].bytes()),
        "client-key-data": encoded(leaf.private_key_pem.bytes()),
    }
    ca = encoded(authority.cert_pem.bytes())
    cluster = {"server": tls_server, "certificate-authority-data": ca}
    async with KubeClient(from_kubeconfig(write(tmp_path / "k", config(cluster, user)))) as client:
        assert await client.version() == {"names": ["admin.example.com"]}


async def test_certificates_in_files_beside_it_are_used(tmp_path, authority, tls_server):
    leaf = authority.issue_cert("admin.example.com")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    leaf.private_key_pem.write_to_path(tmp_path / "tls.key")
    user = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    cluster = {"server": tls_server, "insecure-skip-tls-verify": True}
    async with KubeClient(from_kubeconfig(write(tmp_path / "k", config(cluster, user)))) as client:
        assert await client.version() == {"names": ["admin.example.com"]}


async def test_a_credential_plugin_may_give_a_certificate(tmp_path, authority, tls_server):
    leaf = authority.issue_cert("plugin.example.com")
    path = plugin(
        tmp_path,
        credential(
            {
                "clientCertificateData": leaf.cert_chain_pems[0].bytes().decode(),
                "clientKeyData": leaf.private_key_pem.bytes().decode(),
            }
        ),
        {
            "server": tls_server,
            "certificate-authority-data": encoded(authority.cert_pem.bytes()),
        },
    )
    access = from_kubeconfig(path)
    assert isinstance(access, Access)
    assert isinstance(access.credentials, PluginCredentials)
    async with KubeClient(access) as client:
        assert await client.version() == {"names": ["plugin.example.com"]}
