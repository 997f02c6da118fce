"""The real program: trained, killed, resumed, on several devices."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxdistill import encode, main
from jaxdistill.core import runtime
from jaxdistill.evals import sts
from jaxdistill.training import plan as overview
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

import eval_cases
from program import interrupted_at, on_devices, refused, run, series, start, tiny_arguments, training_output, wait_for
from tiny_text import made_up

pytestmark = pytest.mark.usefixtures("one_device")
SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_API_KEY")
SECRET = "hf_nobody-may-read-this"
HANG_UP_AT_STEP_3 = """
import signal
from jaxdistill.training.metrics import Metrics
write = Metrics.write
def write_and_hang_up(metrics, step, scalars):
    write(metrics, step, scalars)
    if step == 3:
        signal.raise_signal(signal.SIGHUP)
Metrics.write = write_and_hang_up
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module")
def finished(folder):
    """A run of 20 steps that nothing disturbed; dropout on, secrets in the environment."""
    workdir = folder / "finished"
    arguments = [*tiny_arguments(folder, student__dropout=0.1, run__paper="congen:bert-mini"), f"--workdir={workdir}"]
    out, err = run("main", arguments, variables=dict.fromkeys(SECRETS, SECRET))
    return workdir, out, err


def state_of(workdir, step):
    checkpoints = Checkpoints(Workdir(workdir))
    state = checkpoints.restore_alone(step)
    checkpoints.close()
    return jax.tree.map(np.asarray, (state.params, state.objective, state.optimizer))


def assert_identical(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def steps_of(workdir):
    return [json.loads(line)["step"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def in_tensorboard(workdir, name):
    events = EventAccumulator(str(workdir / "tensorboard")).Reload()
    values = events.Scalars(name)
    assert len({value.step for value in values}) == len(values)
    return {value.step: value.value for value in values}


def test_a_run_ends_with_an_export_a_table_and_a_plot(finished):
    workdir, out, err = finished
    assert (workdir / "export" / "model.safetensors").stat().st_size > 1000
    assert (workdir / "training.png").read_bytes()[:4] == b"\x89PNG"
    results = json.loads((workdir / "results.json").read_text())
    assert results["last_step"] == 20 and results["best_metric"] == "agreement/spearman"
    page = (workdir / "report.html").read_text()
    for metric, row in (
        ("agreement/spearman", "agreement with the teacher"),
        ("agreement/recall@1", "nearest sentence found"),
        ("agreement/recall@10", "ten nearest found"),
    ):
        shown = " +".join(f"{100 * scores[metric]:.2f}" for scores in results["scores"].values())
        assert re.search(rf"{row} +{shown} ", out) and f"{row}</th>" in page
    assert "estimated time" in out and "teacher's own dev scores" in out
    assert "sentences/s" in err  # the progress bar
    assert list((workdir / "tensorboard").iterdir()) and "paper, congen:bert-mini: " in out
    assert drawn_in(workdir / "report.html") == ["Learning curves"] and "paper, congen:bert-mini" in page
    assert f"report: {workdir / 'report.html'}" in out and " by agreement/spearman</dd>" in page
    title = re.search(r"<title>(.*)</title>", page)[1]
    assert re.fullmatch(r"congen, control term alone: student .*model, layers 1 \(finished\)", title) and title in out


def drawn_in(page):
    """Titles of the figures of a report."""
    return re.findall(r"<h2>(.*?)</h2>", page.read_text())


def test_secrets_of_the_environment_are_neither_printed_nor_written(folder, finished):
    workdir, out, err = finished
    assert SECRET not in out + err
    written = [path for path in (*workdir.rglob("*"), *(folder / "cache").rglob("*")) if path.is_file()]
    assert len(written) > 20 and not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_a_run_ends_with_the_same_bits_after_a_hangup_a_kill_and_a_closed_pipe(folder, finished):
    workdir = folder / "killed"
    arguments = [*tiny_arguments(folder, student__dropout=0.1), f"--workdir={workdir}"]
    workdir.mkdir()  # as a run leaves it that is killed between its first evaluation and its first checkpoint
    shutil.copy(finished[0] / "config.json", workdir)
    (workdir / "metrics.jsonl").write_text('{"step": 0, "agreement/spearman": 0.5}\n')
    out, err = run("main", arguments, before=HANG_UP_AT_STEP_3, status=runtime.AGAIN)
    assert "step 3 is saved" in out + err
    process = start("main", arguments)
    saving = lambda: any((workdir / "checkpoints").glob("1[05]*tmp*"))  # noqa: E731 - while a later step is being saved
    wait_for(lambda: saving() or max(steps_of(workdir)) > 15, process)
    process.kill()
    process.communicate()
    process = start("main", arguments)
    process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    process.stdout = None
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert_identical(state_of(workdir, 20), state_of(finished[0], 20))
    assert steps_of(workdir) == steps_of(finished[0])
    assert series(workdir, "loss") == series(finished[0], "loss")
    assert in_tensorboard(workdir, "loss") == pytest.approx(series(workdir, "loss"), rel=1e-6)
    weights = [(folder / "export" / "model.safetensors").read_bytes() for folder in (workdir, finished[0])]
    assert weights[0] == weights[1] and (workdir / "report.html").exists()


def test_eight_devices_then_two_train_as_one_does(folder, finished, monkeypatch, capsys, caplog):
    arguments = [*tiny_arguments(folder, student__dropout=0.1), f"--workdir={folder / 'eight'}"]
    with interrupted_at(10):
        training_output(arguments, devices=8)
    on_devices(monkeypatch, 2)
    main.main(arguments)
    assert "continuing from the checkpoint of step 10" in caplog.text and "devices: 2" in capsys.readouterr().out
    expected, eight = (series(workdir, "loss") for workdir in (finished[0], folder / "eight"))
    assert list(expected) == list(eight) == list(range(1, 21))
    np.testing.assert_allclose(list(eight.values()), list(expected.values()), rtol=1e-5)


def test_the_users_own_vectors_are_targets(folder, finished):
    out = folder / "vectors.npy"
    encode.main([f"--model={folder / 'model'}", f"--text={folder / 'text.txt'}", f"--output={out}"])
    teacher = dict(teacher__kind="vectors", teacher__model=None, teacher__file=out)
    arguments = tiny_arguments(folder, student__dropout=0.1, student__model=folder / "model", **teacher)
    main.main([*arguments, f"--workdir={folder / 'vectors'}"])
    losses, expected = (list(series(workdir, "loss").values()) for workdir in (folder / "vectors", finished[0]))
    np.testing.assert_allclose(losses, expected, atol=1e-4)


def test_with_a_data_folder_sts_is_scored_and_drawn(folder, tmp_path, monkeypatch, capsys):
    sentences = made_up(16, words=6)
    for published in sts.SETS.values():
        rows = [f"{index % 6}\t{a}\t{b}" for index, (a, b) in enumerate(zip(sentences, sentences[1:], strict=False))]
        eval_cases.write(tmp_path / "data" / "sts" / published.file, ["score\tsentence1\tsentence2", *rows])
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path / "data"))
    main.main([*tiny_arguments(folder, run__steps=5, evals__sts=True), f"--workdir={tmp_path / 'w'}"])
    results = json.loads((tmp_path / "w" / "results.json").read_text())
    assert results["best_metric"] == "sts-b-dev/spearman" and "average" in results["scores"]["student after"]
    stdout = capsys.readouterr().out
    assert "after the last step: 7 STS tests, speed, export" in stdout
    announced = re.findall(r"^[\w ]+: (?:measuring the speed|7 STS tests)$", stdout, re.M)
    shown = " +".join(f"{100 * scores['sick-r']:.2f}" for scores in results["scores"].values())
    assert len(announced) == 2 * 3 and re.search(rf"sick-r +{shown}", stdout)
    assert len(drawn_in(tmp_path / "w" / "report.html")) == 1 + 3


def test_minutes_choose_the_steps_that_a_resumed_run_keeps(folder, monkeypatch, capsys):
    workdir = folder / "timed"
    arguments = [*tiny_arguments(folder, run__steps=None, run__minutes=0.1, run__save_every=2), f"--workdir={workdir}"]

    def trained_at(seconds):
        monkeypatch.setattr(overview, "probe", lambda run, batch: (0, seconds))
        main.main(arguments)
        return state_of(workdir, 6)

    main.main([*arguments, "--dry_run"])
    out = capsys.readouterr().out
    for words in ("columns read: text\n", "memory:", "estimated time:", "dry run: stopped before step 1"):
        assert words in out
    assert not workdir.exists()
    state = trained_at(1.0)
    assert "run.minutes=0.1: 6 steps; a resumed run has as many" in capsys.readouterr().out
    shutil.rmtree(workdir / "checkpoints" / "6")
    (workdir / "export" / "model.safetensors").unlink()
    assert_identical(trained_at(0.1), state)
    assert steps_of(workdir)[-1] == 6


def test_a_damaged_newest_checkpoint_is_reported_and_an_option_goes_back_to_the_previous_one(
    folder, finished, capsys, caplog
):
    workdir = folder / "damaged"
    shutil.copytree(finished[0], workdir, ignore=shutil.ignore_patterns("results.json"))
    for file in (workdir / "checkpoints" / "20" / "state").rglob("d/*"):
        file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))
    arguments = [*tiny_arguments(folder, student__dropout=0.1), f"--workdir={workdir}"]
    line = refused(main, arguments, capsys)
    assert "checkpoints/20 cannot be read" in line and "kept: 15, 20. Go back to the step before by" in line
    flag = "--config.run.restore_step="
    assert "no checkpoint of step 7; kept: 15, 20" in refused(main, [*arguments, f"{flag}7"], capsys)
    arguments.append(re.search(f"{flag}15", line)[0])
    training_output(arguments)
    assert "continuing from the checkpoint of step 15" in caplog.text
    assert_identical(state_of(workdir, 20), state_of(finished[0], 20))
    assert series(workdir, "loss") == series(finished[0], "loss") and steps_of(workdir) == steps_of(finished[0])
    assert len({(path / "export" / "model.safetensors").read_bytes() for path in (workdir, finished[0])}) == 1
    (workdir / "results.json").unlink()  # a launcher gives the same command after a kill
    assert f"{workdir} is finished: " not in training_output(arguments)
    assert "continuing from the checkpoint of step 20" in caplog.text and "is finished" in training_output(arguments)


def test_another_text_option_or_folder_is_refused_on_resume(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(finished[0], tmp_path / "w")
    arguments = [*tiny_arguments(folder, student__dropout=0.1, run__steps=22), f"--workdir={workdir}"]
    note = json.loads((workdir / "inputs.json").read_text())
    (workdir / "inputs.json").write_text(json.dumps(note | {"content of data.text": "0" * 12}))
    assert "the content of data.text has changed since" in refused(main, arguments, capsys)
    other = [*arguments, "--config.student.keep_head=False"]
    assert "student.keep_head: True there, False now" in refused(main, other, capsys)
    assert "Orbax takes" in refused(main, [*arguments[:-1], f"--workdir={tmp_path / 'run[1]'}"], capsys)
