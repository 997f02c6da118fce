"""What a launcher checks before it creates anything."""

import gzip

import pytest

from jaxdistill import main

import bucket
from program import refused

L3 = "--config=configs/congen.py:minilm-l3"
TEXT = f"s3://{bucket.NAME}/texts/*.txt.gz"
WORKDIR = "gs://BUCKET/runs/l3"


@pytest.fixture(scope="module", autouse=True)
def server():
    with bucket.emulated() as server:
        bucket.put("texts/a.txt.gz", gzip.compress(b"A cat sleeps.\n"))
        yield server


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with a text."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt.gz").write_bytes(gzip.compress(b"A cat sleeps.\n"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "where, given, words",
    [
        ("here", [], "no text is given; set --config.data.text"),
        ("here", [f"--config.data.text=s3://{bucket.NAME}/none/*.gz"], "data.text: no object matches s3://"),
        ("here", ["--config.data.text=s3://nowhere/a.gz"], "data.text: no object matches s3://nowhere/a.gz"),
        ("here", [f"--config.data.text={TEXT}", "--config.data.exclude=none.txt"], "data.exclude: none.txt does not exist"),
        ("here", [f"--config.data.text={TEXT}", "--config.teacher.model=./none"], "model folder './none' does not exist"),
        ("here", [f"--config.data.text={TEXT}", f"--config.student.model=s3://{bucket.NAME}/none"], "student.model: no object matches"),
        ("here", [f"--config.data.text={TEXT}", "--config.objective.alpha=1.5"], "objective.alpha=1.5 must be at least 0"),
        ("elsewhere", ["--config.data.text=texts/a.txt.gz"], "--config.data.text=texts/a.txt.gz is on this machine"),
        ("elsewhere", [f"--config.data.text={TEXT}", "--config.teacher.model=texts"], "--config.teacher.model=texts is on this machine"),
        ("elsewhere", [f"--config.data.text={TEXT}", "--workdir=runs/l3"], "--workdir=runs/l3 is on this machine, but the training runs"),
        ("there", [f"--config.data.text={TEXT}"], "--check=there: value should be one of <here|elsewhere>"),
    ],
)  # fmt: skip
def test_a_training_that_could_not_start_is_refused_before_it_is_launched(folder, where, given, words, capsys):
    assert words in refused(main, [L3, f"--workdir={WORKDIR}", f"--check={where}", *given], capsys)
    assert [path.name for path in folder.iterdir()] == ["texts"]


def test_later_stages_are_checked_and_named(capsys):
    given = ["--config=configs/recommended.py:l3:labelled", f"--workdir={WORKDIR}", "--check=here"]
    assert "stage 1: no text is given" in refused(main, given, capsys)


def test_what_cannot_be_known_here_is_not_refused(monkeypatch, capsys, caplog):
    main.main([L3, f"--workdir={WORKDIR}", "--check=here", f"--config.data.text={TEXT}", "--config.run.model_axis=64"])
    main.main(
        [
            L3,
            f"--workdir={WORKDIR}",
            "--check=elsewhere",
            "--config.data.text=hf:a:b:c",
            "--config.teacher.model=org/none",
        ]
    )
    assert not caplog.records and capsys.readouterr().out.count("checked: the options are valid") == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    bucket.files().clear_instance_cache()
    main.main([L3, f"--workdir={WORKDIR}", "--check=elsewhere", "--config.data.text=s3://elsewhere/*.gz"])
    assert "data.text is not checked: s3://elsewhere/*.gz cannot be reached" in caplog.text
