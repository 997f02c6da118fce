"""An emulated Google Cloud Storage: the part of its JSON API that gcsfs, TensorStore and Google's client use."""

import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from base64 import b64encode
from collections.abc import Iterator

BUCKET = "bucket"


class Store(http.server.ThreadingHTTPServer):
    """Objects of one bucket, in memory."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, tuple[int, bytes]] = {}
        """By their names: generation and content."""
        self.uploads: dict[str, tuple[str, bytes]] = {}
        """Resumable uploads: the object's name, and what has come."""
        self.generation, self.lock = 0, threading.Lock()

    def put(self, name: str, content: bytes) -> None:
        self.generation += 1
        self.objects[name] = (self.generation, content)

    def facts(self, name: str) -> dict[str, str]:
        generation, content = self.objects[name]
        facts = {"kind": "storage#object", "name": name, "bucket": BUCKET, "generation": str(generation)}
        facts |= {"size": str(len(content)), "md5Hash": b64encode(hashlib.md5(content).digest()).decode()}
        return facts | {"metageneration": "1", "updated": "2026-01-01T00:00:00Z", "timeCreated": "2026-01-01T00:00:00Z"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, *given) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def do_GET(self) -> None:
        self.answer(*self.respond("GET", self.path, self.body()))

    do_POST = do_PUT = do_DELETE = do_GET  # replaced below, with the method's own name

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, content: bytes | dict = b"", headers: dict[str, str] | None = None) -> None:
        content = json.dumps(content).encode() if isinstance(content, dict) else content
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def respond(self, method: str, address: str, body: bytes) -> tuple:
        url = urllib.parse.urlsplit(address)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        if url.path.startswith("/batch/"):
            return self.batch(body)
        with self.server.lock:
            if found := re.fullmatch(r"(?:/upload|/download)?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", url.path):
                if found[1] != BUCKET:
                    return 404, {"error": {"code": 404, "message": "The specified bucket does not exist."}}
                name = urllib.parse.unquote(found[2] or "")
                if "/o" not in url.path.partition("/b/")[2]:
                    return 200, {"kind": "storage#bucket", "name": BUCKET, "id": BUCKET, "location": "US"}
                if url.path.startswith("/upload/"):
                    return self.upload(method, query, body)
                return self.of_object(method, name, query) if name else self.listed(query)
        return 404, {"error": {"code": 404, "message": f"not emulated: {method} {url.path}"}}

    def of_object(self, method: str, name: str, query: dict[str, str]) -> tuple:
        objects = self.server.objects
        if copied := re.fullmatch(r"(.+)/(?:rewriteTo|copyTo)/b/[^/]+/o/(.+)", name):
            self.server.put(copied[2], objects[copied[1]][1])
            return 200, {"done": True, "resource": self.server.facts(copied[2])}
        if name not in objects:
            return 404, {"error": {"code": 404, "message": f"No such object: {name}"}}
        generation, content = objects[name]
        if query.get("ifGenerationMatch", str(generation)) != str(generation):
            return 412, {"error": {"code": 412, "message": "conditionNotMet"}}
        if query.get("ifGenerationNotMatch") == str(generation):
            return 304, b""
        if method == "DELETE":
            del objects[name]
            return 204, b""
        if query.get("alt") != "media":
            return 200, self.server.facts(name)
        said = {"x-goog-generation": str(generation), "Content-Type": "application/octet-stream"}
        if not (span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")):
            return 200, content, said
        first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
        if first >= len(content):
            return 416, b""
        return 206, content[first : last + 1], said | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}

    def listed(self, query: dict[str, str]) -> tuple:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names = sorted(name for name in self.server.objects if name.startswith(prefix))
        if "startOffset" in query:
            names = [name for name in names if name >= query["startOffset"]]
        if "endOffset" in query:
            names = [name for name in names if name < query["endOffset"]]
        inner = {name: name[len(prefix) :].partition(delimiter)[1] if delimiter else "" for name in names}
        folders = sorted({prefix + n[len(prefix) :].partition(delimiter)[0] + delimiter for n in names if inner[n]})
        items = [self.server.facts(name) for name in names if not inner[name]]
        return 200, {"kind": "storage#objects", "items": items, "prefixes": folders}

    def upload(self, method: str, query: dict[str, str], body: bytes) -> tuple:
        name = query.get("name", "")
        if number := query.get("upload_id"):
            name, before = self.server.uploads[number]
            body = before + body
            if (self.headers.get("Content-Range") or "").endswith("/*"):
                self.server.uploads[number] = name, body
                return 308, b"", {"Range": f"bytes=0-{len(body) - 1}"}
        elif query.get("uploadType") == "resumable":
            number = str(len(self.server.uploads))
            self.server.uploads[number] = name or json.loads(body)["name"], b""
            host, port = self.server.server_address
            place = f"http://{host}:{port}/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&upload_id={number}"
            return 200, b"", {"Location": place}
        elif query.get("uploadType") == "multipart":
            mark = re.search(r"boundary=[\"']?([^\"';]+)", self.headers["Content-Type"])[1].encode()
            _, facts, body, *_ = body.split(b"--" + mark)
            name = json.loads(facts.split(b"\n\n" if b"\r\n\r\n" not in facts else b"\r\n\r\n", 1)[1])["name"]
            body = re.split(rb"\r?\n\r?\n", body, maxsplit=1)[1]
            body = body[: -2 if body.endswith(b"\r\n") else -1]
        match = query.get("ifGenerationMatch")
        if match is not None and match != str(self.server.objects.get(name, (0, b""))[0]):
            return 412, {"error": {"code": 412, "message": "conditionNotMet"}}
        self.server.put(name, body)
        return 200, self.server.facts(name)

    def batch(self, body: bytes) -> tuple:
        answers = []
        for method, address in re.findall(rb"^(DELETE) (\S+) HTTP", body, re.MULTILINE):
            status, *_ = self.respond(method.decode(), address.decode(), b"")
            answers.append(f"--x\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {status} \r\n\r\n\r\n".encode())
        return 200, b"".join(answers) + b"--x--", {"Content-Type": "multipart/mixed; boundary=x"}


for name in ("POST", "PUT", "DELETE"):
    setattr(Handler, f"do_{name}", lambda self, name=name: self.answer(*self.respond(name, self.path, self.body())))


@contextlib.contextmanager
def emulated() -> Iterator[tuple[Store, dict[str, str]]]:
    """The server, and the environment in which programs find it."""
    store = Store()
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{store.server_address[1]}"
    yield (
        store,
        {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "GOOGLE_CLOUD_PROJECT": "project",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        },
    )
    store.shutdown()
    store.server_close()
