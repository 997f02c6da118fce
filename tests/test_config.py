"""Configs and the command line: every option is spelled out and read, and every preset builds."""

import dataclasses
import json
import re
from functools import cache

import jax
import numpy as np
import pytest

from jaxdistill import config as configs
from jaxdistill import main, objectives
from jaxdistill.config import shipped_configs, stage_names
from jaxdistill.core import InputError, plugins
from jaxdistill.core.plugins import KINDS
from jaxdistill.data import batches
from jaxdistill.data.options import Data
from jaxdistill.training.build import build

from conftest import ROOT
from encoder_cases import torch_encoder
from program import on_devices
from tiny_models import tiny_tokenizer
from tiny_text import made_up

CONFIGS = shipped_configs()
loaded = cache(lambda path: plugins.load_module(str(path)))


def preset_names(module):
    """Every preset of a config file, also with each of its arguments."""
    arguments = getattr(module, "ARGUMENTS", {})
    return [*module.PRESETS, *(f"{preset}:{argument}" for preset, allowed in arguments.items() for argument in allowed)]


PRESETS = [(path, preset) for path in CONFIGS for preset in preset_names(loaded(path))]


def stages_of(path, preset):
    """The options of each stage of a preset."""
    config = loaded(path).get_config(preset)
    return [config[name] for name in stage_names(config)] or [config]


def load(path, preset) -> dict:
    """The options of a preset, of its first stage, in plain types."""
    return json.loads(json.dumps(stages_of(path, preset)[0].to_dict()))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_preset_spells_out_every_option_with_values_of_its_type(path):
    """`config_flags` takes an option's type from its value, so that every option can be set on the command line."""
    for preset in preset_names(loaded(path)):
        for stage in stages_of(path, preset):
            parsed = configs.parse_config(stage)
            assert json.loads(json.dumps(stage.to_dict())) == configs.nested(parsed), preset
            for section, options in stage.to_dict().items():
                if section == "objectives":  # several, whose values and types were compared above
                    continue
                kind = getattr(parsed, section)
                assert options.keys() - {"kind"} == {field.name for field in dataclasses.fields(kind)} - {"kind"}
                for name, value in options.items():
                    assert type(getattr(kind, name, value)) in (type(value), str), (preset, section, name)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda raw: raw["run"].update(steps="many"), r"run\.steps='many' must be a whole number\."),
        (lambda raw: raw["data"].update(columns=5), "data.columns=5 must be of type tuple"),
        (lambda raw: raw["run"].update(steps=10**400), "0 must be at least -1 and at most 2,147,483,647"),
        (lambda raw: configs.defaults(objective="embedding+gram+gram"), r"'embedding\+gram\+gram' names gram twice"),
    ],
)
def test_a_wrong_key_or_type_is_refused_with_its_name(change, words):
    raw = load(ROOT / "configs" / "congen.py", "tiny")
    with pytest.raises(InputError, match=words):
        change(raw)
        configs.parse_config(raw)


def test_command_line_values_reach_the_config(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    argv = ["--config", "congen.py:tiny", "--workdir", "~/w", "--config.objective.alpha=1", "--profile=2:3"]
    argv += ["--config.data.weights=(1,2)", "--config.data.columns=body", "--config.run.sharding=fsdp", "--dry_run"]
    argv += ["--config.run.steps", "9", "--config.run.remat", "--noconfig.data.dedupe", "--config.run.steps=7"]
    flags = main.parse_flags(argv)
    config = flags.stages[0]
    assert (flags.workdir, flags.dry_run, flags.check) == ("/home/someone/w", True, "")
    temperatures = dict(student_temperature=0.2, teacher_temperature=0.2)
    assert config.objective == objectives.ConGen(alpha=1.0, queue_size=64, **temperatures)
    assert (config.data.weights, config.data.columns, config.data.dedupe) == ((1.0, 2.0), (("text", "body"),), False)
    assert (config.run.sharding, config.run.remat, config.run.profile, config.run.steps) == ("fsdp", True, "2:3", 7)


CONFIG_FILE = """
from jaxdistill.config import chain, defaults, set_kind
from jaxdistill.config.shipped.l2 import get_config as l2

def get_config(preset="one"):
    config = defaults(objective="ckd", teacher="stored")
    config.objective.queue_size, config.run.steps = 64, 5
    if preset == "one":
        return config
    then = l2("minilm-l3")
    set_kind(then, "student", "static", width=8)
    then.run.seed = 7
    return chain([config, then])
"""


def test_a_users_config_file_starts_from_the_defaults_or_a_preset(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CONFIG_FILE)
    monkeypatch.chdir(tmp_path)
    config = main.parse_flags(["--config=mine.py", "--config.objective.temperature=0.1"]).stages[0]
    assert config.objective == objectives.CKD(queue_size=64, temperature=0.1)
    assert (config.teacher.kind, config.run.steps, config.data) == ("stored", 5, Data())
    argv = ["--config=mine.py:two", "--config.text=a.txt", "--config.stage1.run.steps=9"]
    first, then = main.parse_flags(argv).stages
    assert (first.run.steps, first.data.text, then.data.text) == (9, "a.txt", "a.txt")
    assert (then.student.kind, then.student.width, then.run.seed) == ("static", 8, 7)
    with pytest.raises(InputError, match="unknown option --config.seed. Did you mean --config.stage"):
        main.parse_flags(["--config=mine.py:two", "--config.seed=1"])  # the stages begin with different ones


def test_help_shows_the_presets_and_of_a_config_its_description_and_options(capsys):
    main.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"configs/{path.name}: " in shown for path in CONFIGS) and "minilm-l3-mirror" in shown
    main.main(["--config=configs/l2.py:paper", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("L2: the student's vector") and "paper:ARGUMENT  bert-tiny, bert-mini" in shown
    assert "  objective.kind=embedding\n  --config.objective.normalize=True\n" in shown
    assert "--config.optimizer.eps=1e-08\n" in shown


COLUMNS = ("text", "positive", "negative", "translation", "second")


def write_checkpoint(checkpoints, *, layers):
    """A plain Hugging Face folder, without pooling, as the paper's checkpoints are."""
    folder = checkpoints / f"bert-{layers}"
    if not (folder / "config.json").exists():
        torch_encoder("bert", num_hidden_layers=layers).save_pretrained(folder)
        tiny_tokenizer(folder, max_length=64)
    return str(folder)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    lines = ["\t".join((*row, *row, row[1])) for row in zip(made_up(200, words=6), made_up(200, words=5), strict=True)]
    (folder / "text.tsv").write_text("\n".join(["\t".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    graded = zip(range(40), made_up(40), made_up(40, seed=1), strict=True)  # fewer are all alike to a random model
    lines = ["score\tsentence1\tsentence2", *(f"{score}\t{first}\t{second}" for score, first, second in graded)]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def on_random_models(raw: dict, checkpoints) -> dict:
    """The options with a small random BERT instead of the models, and a small text."""
    if raw["teacher"]["kind"] in ("columns", "scores"):
        raw["teacher"] = KINDS["teacher"].default_options("labels") | dict(model="any")
    teacher, student = raw["teacher"], raw["student"]
    pooled = re.findall(r":last(\d+)", f"{teacher.get('pooling')} {student['pooling']}")
    layers = max([2 if student.get("layers") else 1, *map(int, pooled)])  # a student of chosen layers keeps one of two
    for part in ("teacher", "student"):
        if "model" not in raw[part]:
            continue
        names = raw[part]["model"].split(",")
        raw[part]["model"] = ",".join(
            name if name in ("", "teacher") else write_checkpoint(checkpoints, layers=layers) for name in names
        )
    columns = tuple((view, view if view in COLUMNS else "negative") for view, _ in raw["data"]["columns"])
    raw["data"] |= dict(
        text=str(checkpoints / "text.tsv"), max_length=32, cache_folder=str(checkpoints / "cache"), batch_size=16,
        columns=columns, exclude="", pack_shapes=2, weights=(),
        chunk_tokens=min(raw["data"]["chunk_tokens"], 32),
    )  # fmt: skip
    if "model" in teacher:
        teacher["pooling"] = teacher["pooling"] or "mean"
        teacher["max_length"] = min(teacher["max_length"], 64)
    if teacher.get("components"):
        teacher["components"] = min(teacher["components"], 16)
    if student["kind"] == "cut":
        student["model"] = student["model"] or "teacher"  # only `domain` leaves it to the user
    student["pooling"] = student["pooling"] or ("pooler" if student["kind"] == "cross_encoder" else "mean")
    small = dict(layers="last:1", width=16 if student["kind"] == "static" else 32, depth=1, heads=4, embedding=8)
    small |= dict(vocabulary=256, dims=(8,))
    student |= {name: value for name, value in small.items() if student.get(name)}
    for objective in objectives_of(raw):
        if objective.get("queue_size"):
            objective["queue_size"] = 48
    raw["evals"] |= dict(pairs=str(checkpoints / "pairs.tsv"), agreement="", best="")
    return raw


def objectives_of(raw: dict) -> list[dict]:
    return list(raw["objectives"].values()) if "objectives" in raw else [raw["objective"]]


def test_a_preset_of_each_combination_of_kinds_builds_a_step_that_takes_its_batches(checkpoints, monkeypatch):
    """The first stages; later ones are presets of their own kind, and need the stage before. No step is compiled."""
    on_devices(monkeypatch, 1)
    monkeypatch.setattr(batches, "SIMULATED_STEPS", 8)
    preset_of_kinds = {}
    for raw in (load(path, preset) for path, preset in PRESETS):
        parts = raw["teacher"], raw["student"], *objectives_of(raw)
        preset_of_kinds[tuple(part["kind"] for part in parts)] = raw
    for kinds, raw in preset_of_kinds.items():
        run = build(configs.parse_config(on_random_models(raw, checkpoints)), checkpoints / "w", progress=False)
        state, metrics = run.program.train_step.eval_shape(
            run.program.like, run.teacher_params, run.batches.batch_at(0)
        )
        assert jax.tree.map(np.shape, state.params) == jax.tree.map(np.shape, run.program.like.params), kinds
        assert metrics["loss"].shape == (), kinds
