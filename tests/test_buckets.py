"""Text, models and exports in a bucket: fetched once, replaced whole, refused with one line; test_bucket_run.py has workdirs."""

import pathlib
import sys

import fsspec
import pytest

from jaxdistill import cli
from jaxdistill.checkpoints.model import locate
from jaxdistill.core import InputError, TemporaryError
from jaxdistill.data.sources import source_files
from jaxdistill.data.text import read
from jaxdistill.files.buckets import Bucket, upload_folder
from jaxdistill.files.folders import MARK, replacing

import bucket


@pytest.fixture(scope="module", autouse=True)
def server():
    with bucket.emulated() as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(folder: pathlib.Path, **contents: str) -> pathlib.Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_text_is_fetched_once_for_each_version_of_its_object():
    address = bucket.put("text/a.txt", "one\ntwo\n")
    assert list(read([address])) == [("one",), ("two",)]
    (before,) = source_files(address)
    assert source_files(address) == [before]
    bucket.put("text/a.txt", "three\n")
    assert list(read([address])) == [("three",)] and source_files(address) != [before]


def test_a_model_is_fetched_without_what_is_not_needed(tmp_path):
    folder = written(tmp_path / "model", **{"config.json": "{}", "1_Pooling/config.json": "{}", "notes.bin": "x"})
    address = bucket.put_folder(folder, "models/m")
    found = locate(address)
    assert found.name == "m" and sorted(path.name for path in found.rglob("*.*")) == ["config.json", "config.json"]
    bucket.put("models/m/config.json", "[]")
    assert locate(address) != found  # another version: its folder has another object
    with pytest.raises(InputError, match="does not exist"):
        locate(f"s3://{bucket.NAME}/models/none")


def exported(folder: pathlib.Path, **contents: str) -> pathlib.Path:
    with replacing(folder, {}) as new:
        written(new, **contents)
    return folder


@pytest.mark.parametrize("calls", [1, 3])
def test_an_export_is_replaced_whole_or_its_readers_are_refused(calls, tmp_path, monkeypatch):
    """The upload is cut off after so many calls, the first of which removes, and the second of which writes the marker."""
    old = exported(tmp_path / "old", **{"config.json": "old", "gone.json": "old", "README.md": "old"})
    new = exported(tmp_path / "new", **{"config.json": "new", "more.json": "new", "README.md": "new"})
    there, left = Bucket(f"s3://{bucket.NAME}/replaced/{calls}"), [calls]
    upload_folder(old, there)

    def cut(work):
        def call(*given):
            left[0] -= 1
            if left[0] < 0:
                raise TemporaryError("cut off")
            return work(*given)

        return call

    with monkeypatch.context() as patched, pytest.raises(TemporaryError, match="cut off"):
        for name in ("remove", "upload"):
            patched.setattr(Bucket, name, cut(getattr(Bucket, name)))
        upload_folder(new, there)
    with pytest.raises(TemporaryError, match="is being written, or its upload was cut off"):
        locate(there.address)
    upload_folder(new, there)
    found = locate(there.address)
    assert {path.name for path in found.iterdir()} == {"config.json", "more.json", "README.md", MARK}
    assert (found / "config.json").read_text() == "new"
    bucket.put(f"replaced/{calls}/README.md", "edited")
    assert (locate(there.address) / "README.md").read_text() == "edited"


@pytest.mark.parametrize(
    "address",
    ["https://host/file.txt", "s3://key:secret@bucket/a.txt", "s3://bucket/a.txt?X-Amz-Signature=secret", "s3://bucket/../a", "s3://"],
)  # fmt: skip
def test_addresses_that_hold_secrets_or_lead_nowhere_are_refused_without_repeating_them(address):
    with pytest.raises(InputError) as refused:
        Bucket(address)
    assert "secret" not in str(refused.value)


def status_and_line(address: str, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.run(lambda _: list(read([address])), [])
    (line,) = capsys.readouterr().err.splitlines()
    return stopped.value.code, line


def test_faults_of_the_store_are_one_line_and_a_status(capsys, monkeypatch):
    address = f"s3://{bucket.NAME}/none.txt"
    assert status_and_line(address, capsys) == (2, f"error: {address} does not exist; check the bucket and the path.")
    assert status_and_line("s3://nobucket/none.txt", capsys)[0] == 2
    fsspec.filesystem("s3").clear_instance_cache()
    with monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        status, line = status_and_line(address, capsys)
        assert status == 75 and "cannot be reached" in line and "same command again" in line
    fsspec.filesystem("s3").clear_instance_cache()
    with monkeypatch.context() as patched:
        for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nowhere", "AWS_PROFILE": ""}.items():
            patched.setenv(name, value)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            patched.delenv(name)
        status, line = status_and_line(address, capsys)
        assert status == 2 and "aws configure" in line
    fsspec.filesystem("s3").clear_instance_cache()
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert "pip install gcsfs" in status_and_line("gs://bucket/a.txt", capsys)[1]
