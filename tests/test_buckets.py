"""Text and models in a bucket: fetched once, refused with one line; test_bucket_run.py has workdirs."""

import sys

import fsspec
import pytest

from jaxdistill.core import InputError, cli
from jaxdistill.data.text import read, source_files
from jaxdistill.models.checkpoints.model import locate

import bucket


@pytest.fixture(scope="module", autouse=True)
def server():
    with bucket.emulated() as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))


def test_text_is_fetched_once_for_each_version_of_its_object():
    address = bucket.put("text/a.txt", "one\ntwo\n")
    assert list(read([address])) == list(read([f"s3://{bucket.NAME}/text/*.txt"])) == [("one",), ("two",)]
    (before,) = source_files(address)
    assert source_files(address) == [before]
    bucket.put("text/a.txt", "three\n")
    assert list(read([address])) == [("three",)] and source_files(address) != [before]


def test_only_the_needed_files_of_a_model_are_fetched():
    for name in ("config.json", "1_Pooling/config.json", "notes.bin"):
        bucket.put(f"models/m/{name}", "{}")
    address = f"s3://{bucket.NAME}/models/m"
    folder = locate(address)
    assert folder.name == "m" and sorted(path.name for path in folder.rglob("*.*")) == ["config.json", "config.json"]
    bucket.put("models/m/config.json", "[]")
    assert locate(address) != folder  # another version: its folder has another object
    with pytest.raises(InputError, match="does not exist"):
        locate(f"s3://{bucket.NAME}/models/none")


def status_and_line(address: str, capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.run(lambda _: list(read([address])), [])
    (line,) = capsys.readouterr().err.splitlines()
    return stopped.value.code, line


def test_faults_of_the_store_are_one_line_and_a_status(capsys, monkeypatch):
    address = f"s3://{bucket.NAME}/none.txt"
    assert status_and_line(address, capsys)[0] == status_and_line("s3://nobucket/none.txt", capsys)[0] == 2
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
    monkeypatch.delitem(
        sys.modules["fsspec.registry"]._registry, "gs", raising=False
    )  # what an earlier test has imported
    assert "install gcsfs" in status_and_line("gs://bucket/a.txt", capsys)[1]
