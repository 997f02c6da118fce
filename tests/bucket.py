"""An emulated S3 in this process, which programs that are started from here reach too."""

import contextlib
import logging
import urllib.request
from collections.abc import Iterator

import fsspec
import pytest
from moto.server import ThreadedMotoServer

NAME = "bucket"
KEY = "not-a-real-secret"


@contextlib.contextmanager
def emulated() -> Iterator[ThreadedMotoServer]:
    """The server, with the environment by which clients find it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        files().clear_instance_cache()  # one of an earlier test would keep that test's address
        files().mkdir(NAME)
        yield server
        reset = urllib.request.Request(f"{variables['AWS_ENDPOINT_URL']}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset).close()  # the emulator keeps its buckets as long as this process lives
    server.stop()
    fsspec.filesystem("s3").clear_instance_cache()


def files() -> fsspec.AbstractFileSystem:
    """The objects of all buckets."""
    return fsspec.filesystem("s3", use_listings_cache=False)


def put(path: str, content: str | bytes) -> str:
    """The address of a new object."""
    files().pipe_file(f"{NAME}/{path}", content.encode() if isinstance(content, str) else content)
    return f"s3://{NAME}/{path}"
