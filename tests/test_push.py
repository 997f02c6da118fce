"""`export --push_to_hub`, against a server on this machine that answers as the hub does."""

import base64
import http.server
import json
import pathlib
import threading

import huggingface_hub.constants
import pytest

from jaxdistill import export
from jaxdistill.core import InputError, TemporaryError

from tiny_models import saved_tiny_model

TOKEN = "hf_secret0123456789"


class Hub(http.server.ThreadingHTTPServer):
    """Repositories with their files; `status` other than 200 answers every request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Requests)
        self.repositories, self.private, self.tokens, self.status = {}, {}, set(), 200


class Requests(http.server.BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.tokens.add(self.headers["Authorization"])
        kind, _, rest = self.path.removeprefix("/api/").partition("/")
        if self.server.status != 200:
            self._answer({"error": "refused"}, self.server.status)
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self.path == "/api/repos/create":
            given = json.loads(body)
            name = "/".join(filter(None, [given.get("organization"), given["name"]]))
            exists = name in self.server.repositories
            self.server.repositories.setdefault(name, {})
            if not exists:
                self.server.private[name] = given.get("private", given.get("visibility") == "private")
            self._answer(
                {"url": f"http://127.0.0.1:{self.server.server_port}/{name}", "error": "exists"}, 409 if exists else 200
            )
        elif "/preupload/" in rest:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        else:
            assert kind == "models" and "/commit/" in rest
            name = rest.partition("/commit/")[0]
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.server.repositories[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer(
                {
                    "success": True,
                    "commitOid": "1" * 40,
                    "commitUrl": f"http://127.0.0.1:{self.server.server_port}/{name}/commit/1",
                    "hookOutput": "",
                }
            )

    def do_GET(self):
        self.server.tokens.add(self.headers["Authorization"])
        name = "/".join(self.path.split("/")[3:5])
        files = [{"rfilename": file} for file in self.server.repositories.get(name, ())]
        private = self.server.private.get(name)
        self._answer({"id": name, "sha": "0" * 40, "siblings": files, "private": private}, self.server.status)

    def _answer(self, value, status=200):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(saved_tiny_model(tmp_path_factory.mktemp("model")))


def files_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_export_is_pushed_whole_privately_and_without_the_token(hub, model, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    out = export(model=model, out=tmp_path / "out", push_to_hub="me/student")
    assert hub.repositories == {"me/student": files_of(out)} and hub.private == {"me/student": True}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert 'SentenceTransformer("me/student")' in (out / "README.md").read_text()
    said = "".join(capsys.readouterr()) + caplog.text
    assert TOKEN not in said and "pushed: http" in said
    assert not any(TOKEN.encode() in content for content in files_of(out).values())


def test_a_second_push_replaces_the_files_of_the_export_alone_and_never_publishes_unasked(hub, model, tmp_path):
    export(model=model, out=tmp_path / "out", push_to_hub="me/open", public=True)
    hub.repositories["me/open"]["README.md"] = b"old"
    (tmp_path / "out" / "diary.txt").write_text("of the user")
    with pytest.raises(InputError, match="me/open is public; give (--)?public"):
        export(model=model, out=tmp_path / "out", push_to_hub="me/open")
    out = export(model=model, out=tmp_path / "out", push_to_hub="me/open", public=True)
    files = {name: content for name, content in files_of(out).items() if name != "diary.txt"}
    assert (out / "diary.txt").exists() and hub.repositories == {"me/open": files} and hub.private == {"me/open": False}


def test_a_repository_with_something_else_is_not_touched(hub, model, tmp_path):
    hub.repositories["me/other"], hub.private["me/other"] = {"weights.bin": b""}, True
    with pytest.raises(InputError, match="me/other holds weights.bin and no export; give another name"):
        export(model=model, out=tmp_path / "out", push_to_hub="me/other")
    assert hub.repositories == {"me/other": {"weights.bin": b""}}


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [(401, InputError, "hf auth login"), (403, InputError, "HF_TOKEN"), (400, InputError, "correct what it names"), (500, TemporaryError, "same command again")],
)  # fmt: skip
def test_a_hub_that_refuses_is_one_line_and_the_export_stays(hub, model, tmp_path, status, kind, message):
    hub.status = status
    with pytest.raises(kind, match=f"out is written, but me/student was not pushed .*{message}") as raised:
        export(model=model, out=tmp_path / "out", push_to_hub="me/student")
    assert type(raised.value) is kind and "\n" not in str(raised.value) and TOKEN not in str(raised.value)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_hub_that_is_not_there_is_one_line(hub, model, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TemporaryError, match="was not pushed .*give the same command again"):
        export(model=model, out=tmp_path / "out", push_to_hub="me/student")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"push_to_hub": "student"}, "'student' is not a repository name; give OWNER/NAME"),
        ({"push_to_hub": "me/../you"}, "is not a repository name"),
        ({"public": True}, "give --push_to_hub=OWNER/NAME too"),
        ({"push_to_hub": "me/student", "demo": True}, "--demo goes without .*--push_to_hub"),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_anything_is_written(hub, model, tmp_path, options, message):
    with pytest.raises(InputError, match=message.replace("--", "(--)?")):
        export(model=model, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists() and not hub.tokens


def test_nothing_is_pushed_offline_or_without_a_token(hub, model, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(InputError, match="no hub token; sign in"):
        export(model=model, out=tmp_path / "out", push_to_hub="me/student")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        export(model=model, out=tmp_path / "out", push_to_hub="me/student")
    assert not (tmp_path / "out").exists()
