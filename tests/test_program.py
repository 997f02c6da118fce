"""The real program: trained, killed, resumed, on several devices."""

import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxdistill import cli, encode, main
from jaxdistill.evals import sts
from jaxdistill.training import overview
from jaxdistill.workdir.checkpoint import Checkpoints

import eval_cases
from program import on_devices, refused, run, series, start, tiny_arguments, trained, wait_for
from tiny_text import made_up

SECRETS = ("HF_TOKEN", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_API_KEY")
SECRET = "hf_nobody-may-read-this"


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
    checkpoints = Checkpoints(workdir)
    state = checkpoints.restore_alone(step)
    checkpoints.close()
    return jax.tree.map(np.asarray, (state.params, state.objective, state.optimizer))


def assert_identical(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def logged(workdir, step):
    path = workdir / "metrics.jsonl"
    return path.exists() and any(f'"step": {number}' in path.read_text() for number in range(step, step + 4))


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
    assert re.search(r"student after +paper +\n", out) and "agreement with the teacher" in out
    for metric, row in (("agreement/recall@1", "nearest sentence found"), ("agreement/recall@10", "ten nearest found")):
        shown = " +".join(f"{100 * scores[metric]:.2f}" for scores in results["scores"].values())
        assert re.search(rf"{row} \(%\) +{shown} ", out) and row in (workdir / "report.html").read_text()
    assert set(series(workdir, "vectors/rank")) == {0, 5, 10, 15, 20} and "collapse" not in out + err
    assert "estimated time" in out and "teacher's own dev scores" in out
    assert "sentences/s" in err  # the progress bar
    assert list((workdir / "tensorboard").iterdir()) and "paper, congen:bert-mini: sts12 74.17, " in out


def drawn_in(page):
    """Points of each trace, by figure."""
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page.read_text(), re.S)[1])
    return {figure["id"]: [len(trace["x"]) for trace in figure["data"]] for figure in figures}


def test_a_run_ends_with_a_report_of_what_it_has_evaluated(finished):
    workdir, out, _ = finished
    page = (workdir / "report.html").read_text()
    drawn = drawn_in(workdir / "report.html")
    assert set(drawn) == {"gold-0", "gold-1", "gold-2", "similarities", "loss", "dev", "size", "speed"}
    assert drawn["loss"] == [20] and drawn["dev"] == [5, 5, 5] and len(drawn["size"]) == 3
    assert drawn["gold-2"] == [512]
    assert f"report: {workdir / 'report.html'}" in out and "chosen by agreement/spearman</dd>" in page
    assert "paper, congen:bert-mini" in page
    title = re.search(r"<title>(.*)</title>", page)[1]
    assert re.fullmatch(r"congen, control term alone: student .*model, layers 1 \(finished\)", title) and title in out


def test_secrets_of_the_environment_are_neither_printed_nor_written(folder, finished):
    workdir, out, err = finished
    assert SECRET not in out + err
    written = [path for path in (*workdir.rglob("*"), *(folder / "cache").rglob("*")) if path.is_file()]
    assert len(written) > 20 and not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_the_loss_falls(finished):
    loss = series(finished[0], "loss/kl")
    assert np.mean([loss[step] for step in range(16, 21)]) < np.mean([loss[step] for step in range(1, 6)])


def test_a_run_killed_twice_ends_with_the_same_bits(folder, finished):
    workdir = folder / "killed"
    arguments = [*tiny_arguments(folder, student__dropout=0.1), f"--workdir={workdir}"]
    workdir.mkdir()  # as a run leaves it that is killed between its first evaluation and its first checkpoint
    shutil.copy(finished[0] / "config.json", workdir)
    (workdir / "metrics.jsonl").write_text('{"step": 0, "agreement/spearman": 0.5}\n')
    process = start("main", arguments)
    wait_for(lambda: logged(workdir, 7), process)
    process.kill()
    process.communicate()
    process = start("main", arguments)
    saving = lambda: any((workdir / "checkpoints").glob("1[05]*tmp*"))  # noqa: E731 - while a later step is being saved
    wait_for(lambda: saving() or logged(workdir, 16), process)
    process.kill()
    process.communicate()
    out, _ = run("main", arguments)
    assert "continuing from the checkpoint of step" in out
    assert_identical(state_of(workdir, 20), state_of(finished[0], 20))
    assert steps_of(workdir) == steps_of(finished[0])
    assert series(workdir, "loss") == series(finished[0], "loss")
    assert in_tensorboard(workdir, "loss") == pytest.approx(series(workdir, "loss"), rel=1e-6)
    assert (workdir / "export" / "model.safetensors").read_bytes() == (
        finished[0] / "export" / "model.safetensors"
    ).read_bytes()


def test_a_lost_terminal_saves_and_the_same_command_continues_also_when_nobody_reads_its_output(folder, finished):
    workdir = folder / "interrupted"
    arguments = [*tiny_arguments(folder, student__dropout=0.1), f"--workdir={workdir}"]
    process = start("main", arguments)
    wait_for(lambda: logged(workdir, 6), process)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=200)
    assert process.returncode == cli.AGAIN and "is saved" in out + err
    process = start("main", arguments)
    process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    process.stdout = None
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert_identical(state_of(workdir, 20), state_of(finished[0], 20))
    assert (workdir / "report.html").exists()


@pytest.fixture(scope="module")
def trained_on_devices(folder):
    """Folder of a training on so many devices, and the arguments of one with so many steps; dropout on.

    60 steps on one device, 50 on the others; with a constant rate a longer run begins as a shorter one.
    """

    def arguments(steps):
        constant = dict(optimizer__schedule="constant", optimizer__warmup_fraction=0.0)
        options = dict(student__dropout=0.1, evals__every=50, objective__queue_size=43, run__steps=steps)
        return tiny_arguments(folder, **constant, **options)

    for devices in (1, 2, 4, 8):
        given = [*arguments(60 if devices == 1 else 50), f"--workdir={folder / f'devices{devices}'}"]
        trained(given, devices=devices)
    return {devices: folder / f"devices{devices}" for devices in (1, 2, 4, 8)}, arguments


def test_one_two_four_and_eight_devices_give_the_same_losses(trained_on_devices):
    losses = {devices: list(series(folder, "loss").values())[:50] for devices, folder in trained_on_devices[0].items()}
    for devices in (2, 4, 8):
        np.testing.assert_allclose(losses[devices], losses[1], atol=1e-5)
    assert len(losses[1]) == len(losses[8]) == 50


def test_a_checkpoint_of_eight_devices_goes_on_with_two_and_more_steps(trained_on_devices, monkeypatch, capsys, caplog):
    workdirs, arguments = trained_on_devices
    on_devices(monkeypatch, 2)
    main.main([*arguments(60), f"--workdir={workdirs[8]}"])
    assert "continuing from the checkpoint of step 50" in caplog.text and "devices: 2" in capsys.readouterr().out
    whole = series(workdirs[1], "loss")
    assert list(whole) == list(range(1, 61))
    np.testing.assert_allclose(list(series(workdirs[8], "loss").values()), list(whole.values()), atol=1e-5)


def test_stored_targets_train_as_a_live_teacher_does(folder, finished):
    workdir = folder / "stored"
    main.main([*tiny_arguments(folder, student__dropout=0.1, teacher__kind="stored"), f"--workdir={workdir}"])
    np.testing.assert_allclose(
        list(series(workdir, "loss").values()), list(series(finished[0], "loss").values()), atol=1e-5
    )


def test_the_users_own_vectors_are_targets(folder, finished):
    out = folder / "vectors.npy"
    encode.main([f"--model={folder / 'model'}", f"--input={folder / 'text.txt'}", f"--output={out}"])
    workdir = folder / "vectors"
    given = tiny_arguments(
        folder,
        student__dropout=0.1,
        teacher__kind="vectors",
        teacher__model=None,
        teacher__file=out,
        student__model=folder / "model",
    )
    main.main([*given, f"--workdir={workdir}"])
    np.testing.assert_allclose(
        list(series(workdir, "loss").values()), list(series(finished[0], "loss").values()), atol=1e-4
    )


def test_with_a_data_folder_sts_is_scored_and_the_vectors_geometry_drawn(folder, tmp_path, monkeypatch, capsys):
    sentences = made_up(16, words=6)
    for published in sts.SETS.values():
        rows = [f"{place % 6}\t{a}\t{b}" for place, (a, b) in enumerate(zip(sentences, sentences[1:], strict=False))]
        eval_cases.write(tmp_path / "data" / "sts" / published.file, ["score\tsentence1\tsentence2", *rows])
    monkeypatch.setenv("JAXDISTILL_DATA", str(tmp_path / "data"))
    main.main([*tiny_arguments(folder, run__steps=5, evals__sts=True), f"--workdir={tmp_path / 'w'}"])
    results = json.loads((tmp_path / "w" / "results.json").read_text())
    assert results["best_metric"] == "sts-b-dev/spearman" and "average" in results["scores"]["student after"]
    said = capsys.readouterr().out
    assert (
        "after the last step: 7 STS tests of teacher, student before and student after, 16 sentences each, about"
        in said
    )
    announced = re.findall(
        r"^[\w ]+: (?:measuring the speed|7 STS tests, 16 sentences, about \d+ s|geometry)", said, re.M
    )
    assert len(announced) == 3 * 3 and "student after: sts12" in said
    drawn = drawn_in(tmp_path / "w" / "report.html")
    assert drawn["geometry"] == [1, 1, 1] and drawn["gold-2"] == [15]


def test_dry_run_prints_the_same_lines_and_writes_nothing(folder, finished, capsys):
    main.main([*tiny_arguments(folder), f"--workdir={folder / 'dry'}", "--dry_run"])
    out = capsys.readouterr().out
    for words in ("columns read: text\n", "memory:", "steps: 20", "estimated time:", "dry run: stopped before step 1"):
        assert words in out
    assert not (folder / "dry").exists() and "to train for less time" not in out


def test_a_long_training_is_told_what_shortens_it_and_where_its_pooling_is_from(folder, monkeypatch, capsys, caplog):
    # A step takes 200 s, half of it in the student.
    monkeypatch.setattr(overview, "probe", lambda run, batch: (0, 200.0, 0.5))
    main.main([*tiny_arguments(folder, teacher__pooling="cls"), f"--workdir={folder / 'dry'}", "--dry_run"])
    out = capsys.readouterr().out
    assert "--config.run.minutes=30 takes 9 of the 20 steps; --config.data.max_length=16 takes about 64.0 min" in out
    assert "model: teacher.pooling=cls instead of the checkpoint's own mean" in caplog.text


def test_a_finished_run_is_not_trained_again(folder, finished, capsys):
    before = state_of(finished[0], 20)
    main.main([*tiny_arguments(folder, student__dropout=0.1), f"--workdir={finished[0]}"])
    assert "student after" in capsys.readouterr().out
    assert_identical(state_of(finished[0], 20), before)


def test_minutes_choose_the_steps_that_a_resumed_run_keeps(folder, monkeypatch, capsys):
    workdir = folder / "timed"
    given = [*tiny_arguments(folder, run__steps=None, run__minutes=0.1, run__save_every=2), f"--workdir={workdir}"]

    def trained_at(seconds):
        monkeypatch.setattr(overview, "probe", lambda run, batch: (0, seconds, 0.5))
        main.main(given)
        return state_of(workdir, 6)

    whole = trained_at(1.0)
    assert "run.minutes=0.1: 6 steps; a resumed run has as many" in capsys.readouterr().out
    for lost in ("checkpoints/6", "export"):
        shutil.rmtree(workdir / lost)
    assert_identical(trained_at(0.1), whole)
    assert steps_of(workdir)[-1] == 6
    assert "exclude each other" in refused(main, [*given, "--config.run.steps=9"], capsys)


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_taken(folder, finished):
    workdir = folder / "damaged"
    shutil.copytree(finished[0], workdir)
    # Of every file, since some bytes of a checkpoint are never read; a single one is flipped in test_checkpoint.py.
    for file in (workdir / "checkpoints" / "20" / "state").glob("ocdbt.process_*/d/*"):
        file.write_bytes(bytes(byte ^ 0xFF for byte in file.read_bytes()))
    out, _ = run("main", [*tiny_arguments(folder, student__dropout=0.1), f"--workdir={workdir}"])
    assert "step 20 is damaged" in out and "continuing from the checkpoint of step 15" in out
    assert_identical(state_of(workdir, 20), state_of(finished[0], 20))


def test_a_run_that_is_asked_to_end_where_it_was_killed_scores_that_step(folder):
    workdir = folder / "ended"

    def given(steps):
        saved = dict(run__save_every=2, run__keep=3)  # step 0 too, which may be the best
        return [*tiny_arguments(folder, evals__every=100, run__steps=steps, **saved), f"--workdir={workdir}"]

    main.main(given(4))
    scored = series(workdir, "agreement/spearman")
    shutil.rmtree(workdir / "checkpoints" / "4")
    shutil.rmtree(workdir / "export")
    main.main(given(2))
    again = series(workdir, "agreement/spearman")
    assert list(scored) == [0, 4] and list(again) == [0, 2]
    results = json.loads((workdir / "results.json").read_text())
    best = max(again, key=lambda step: (again[step], step))
    assert results["best_step"] == best and (workdir / "export").is_dir()


@pytest.mark.parametrize(
    ("name", "words"), [("run[1]", "Orbax takes"), ("nowhere", "is a link to a folder that does not exist")]
)
def test_a_workdir_that_would_lose_the_run_is_refused_before_it(folder, tmp_path, capsys, name, words):
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    assert words in refused(main, [*tiny_arguments(folder), f"--workdir={tmp_path / name}"], capsys)


def test_another_tokenizer_and_a_damaged_note_are_refused_on_resume(folder, finished, capsys, tmp_path):
    workdir = shutil.copytree(finished[0], tmp_path / "w")
    given = [*tiny_arguments(folder, student__dropout=0.1, run__steps=22), f"--workdir={workdir}"]
    note = json.loads((workdir / "inputs.json").read_text())
    form = "content of the layers and tokenizer of student.model"
    (workdir / "inputs.json").write_text(json.dumps(note | {form: "0" * 12}))
    assert f"the {form} has changed since" in refused(main, given, capsys)
    (workdir / "inputs.json").write_text("")
    assert "inputs.json is damaged; remove it if" in refused(main, given, capsys)
    (workdir / "inputs.json").write_text(json.dumps(note))
    assert "student.keep_head: True there, False now" in refused(
        main, [*given, "--config.student.keep_head=False"], capsys
    )
