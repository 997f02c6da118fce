"""An emulated Google Cloud Storage: the part of its JSON API that gcsfs, TensorStore and Google's client use."""

import contextlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator

BUCKET = "bucket"
API = re.compile(rf"(?P<upload>/upload)?(?:/download)?/storage/v1/b/{BUCKET}(?P<objects>/o)?(?:/(?P<name>.+))?")
Answer = tuple[int, bytes | dict, dict[str, str]]


class Store(http.server.ThreadingHTTPServer):
    """Objects of one bucket, in memory."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, tuple[int, bytes]] = {}
        """By their names: generation and content."""
        self.uploads: dict[str, tuple[str, bytes]] = {}
        """Resumable uploads: the object's name, and the bytes received so far."""
        self.generation, self.lock = 0, threading.Lock()
        self.address = f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, content: bytes) -> Answer:
        self.generation += 1
        self.objects[name] = (self.generation, content)
        return 200, self.facts(name), {}

    def facts(self, name: str) -> dict[str, str]:
        generation, content = self.objects[name]
        times = dict.fromkeys(("updated", "timeCreated"), "2026-01-01T00:00:00Z")
        return {"name": name, "bucket": BUCKET, "generation": str(generation), "size": str(len(content)), **times}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, format, *args) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # of a program that was killed
            super().handle()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            status, content, headers = self.respond(self.command, self.path, body)
        content = json.dumps(content).encode() if isinstance(content, dict) else content
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_DELETE = do_GET

    def respond(self, method: str, address: str, body: bytes) -> Answer:
        url = urllib.parse.urlsplit(address)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        if url.path.startswith("/batch/"):
            parts = re.findall(rb"^(DELETE) (\S+) HTTP", body, re.MULTILINE)
            statuses = [self.respond(method.decode(), part.decode(), b"")[0] for method, part in parts]
            head = "--x\r\nContent-Type: application/http\r\n\r\nHTTP/1.1"
            answers = "".join(f"{head} {status} \r\n\r\n\r\n" for status in statuses)
            return 200, f"{answers}--x--".encode(), {"Content-Type": "multipart/mixed; boundary=x"}
        if not (match := API.fullmatch(url.path)):
            return 404, {"error": {"code": 404, "message": f"{url.path} does not exist."}}, {}
        if not match["objects"]:
            return 200, {"name": BUCKET, "location": "US"}, {}
        if match["upload"]:
            return self.upload(query, body)
        return self.serve(method, urllib.parse.unquote(match["name"]), query) if match["name"] else self.listed(query)

    def serve(self, method: str, name: str, query: dict[str, str]) -> Answer:
        if copied := re.fullmatch(r"(.+)/(?:rewriteTo|copyTo)/b/[^/]+/o/(.+)", name):
            _, resource, _ = self.server.put(copied[2], self.server.objects[copied[1]][1])
            return 200, {"done": True, "resource": resource}, {}
        generation, content = self.server.objects.get(name, (0, b""))
        if not generation:
            return 404, {"error": {"code": 404, "message": f"No such object: {name}"}}, {}
        if query.get("ifGenerationNotMatch") == str(generation):
            return 304, b"", {}
        if method == "DELETE":
            del self.server.objects[name]
            return 204, b"", {}
        if query.get("alt") != "media":
            return 200, self.server.facts(name), {}
        headers = {"x-goog-generation": str(generation), "Content-Type": "application/octet-stream"}
        if not (span := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")):
            return 200, content, headers
        first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
        if first > last:
            return 416, b"", {}
        return 206, content[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}

    def listed(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names = sorted(name for name in self.server.objects if name.startswith(prefix))
        inner = {name: name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "") for name in names}
        folders = sorted({prefix + begin + mark for begin, mark, _ in inner.values() if mark})
        return 200, {"items": [self.server.facts(n) for n in names if not inner[n][1]], "prefixes": folders}, {}

    def upload(self, query: dict[str, str], body: bytes) -> Answer:
        name, kind = query.get("name", ""), query.get("uploadType")
        if number := query.get("upload_id"):
            name, received = self.server.uploads[number]
            body = received + body
            if (self.headers.get("Content-Range") or "").endswith("/*"):
                self.server.uploads[number] = name, body
                return 308, b"", {"Range": f"bytes=0-{len(body) - 1}"}
        elif kind == "resumable":
            number = str(len(self.server.uploads))
            self.server.uploads[number] = name or json.loads(body)["name"], b""
            return 200, b"", {"Location": f"{self.server.address}/upload/storage/v1/b/{BUCKET}/o?upload_id={number}"}
        elif kind == "multipart":
            mark = re.search(r"boundary=[\"']?([^\"';]+)", self.headers["Content-Type"] or "")
            assert mark
            _, facts, body, *_ = body.split(b"--" + mark[1].encode())
            end = b"\r\n" if b"\r\n\r\n" in facts else b"\n"
            name = json.loads(facts.partition(2 * end)[2])["name"]
            body = body.partition(2 * end)[2].removesuffix(end)
        if query.get("ifGenerationMatch", "") not in ("", str(self.server.objects.get(name, (0,))[0])):
            return 412, {"error": {"code": 412, "message": "conditionNotMet"}}, {}
        return self.server.put(name, body)


@contextlib.contextmanager
def emulated() -> Iterator[tuple[Store, dict[str, str]]]:
    """The server, and the environment in which programs find it."""
    store = Store()
    threading.Thread(target=store.serve_forever, daemon=True).start()
    addresses = dict.fromkeys(("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"), store.address)
    settings = {"GOOGLE_AUTH_TOKEN_FOR_TESTING": "token", "GOOGLE_CLOUD_PROJECT": "project"}
    yield store, addresses | settings | {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
    store.shutdown()
    store.server_close()
