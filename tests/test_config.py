"""Configs and the command line: every option is spelled out and read, and every preset builds and takes a step."""

import json
import re
from functools import cache

import jax
import numpy as np
import pytest
import transformers
from ml_collections import ConfigDict

from jaxdistill import config as configs
from jaxdistill import main, objectives
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster.mesh import batch_sharding, place
from jaxdistill.config.kinds import turned
from jaxdistill.core import InputError
from jaxdistill.data import batches
from jaxdistill.options import config_file
from jaxdistill.options.option_help import OBJECTIVE, sections
from jaxdistill.training.setup.build import build
from jaxdistill.training.stages import run_stages

from conftest import ROOT
from tiny_models import tiny_tokenizer
from tiny_text import made_up

CONFIGS = config_file.shipped_configs()
loaded = cache(config_file.load_config_module)


def preset_names(module):
    """Every preset of a config file, also with each of its arguments."""
    arguments = getattr(module, "ARGUMENTS", {})
    return [*module.PRESETS, *(f"{preset}:{one}" for preset, allowed in arguments.items() for one in allowed)]


PRESETS = [(path, preset) for path in CONFIGS for preset in preset_names(loaded(path))]


def load(path, preset):
    """The options of each stage of a preset."""
    made = loaded(path).get_config(preset)
    return [stage.to_dict() for stage in (made if isinstance(made, list) else [made])]


def tiny_congen():
    (raw,) = load(ROOT / "configs" / "congen.py", "tiny")
    return raw


@pytest.mark.parametrize("path, preset", PRESETS, ids=lambda value: getattr(value, "stem", value))
def test_every_preset_spells_out_every_option(path, preset):
    for stage in configs.parse_stages(load(path, preset)):
        options = {key: value for key, value in stage.objective.items() if key != "kind"}
        objectives.make(stage.objective["kind"], options)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_plain_data_and_has_a_tiny_preset(path):
    assert "jaxdistill" not in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    assert "tiny" in loaded(path).PRESETS


@pytest.mark.parametrize(
    "preset, words",
    [
        ("paper:bert-tinny", "argument 'bert-tinny' is unknown; paper takes bert-tiny, bert-mini"),
        ("tiny:bert-tiny", "tiny takes no argument; give congen.py:tiny"),
        ("papers", "preset 'papers' is unknown; configs/congen.py has quickstart, tiny"),
    ],
)
def test_a_wrong_preset_or_argument_is_refused_with_the_allowed_ones(preset, words):
    with pytest.raises(InputError, match=words):
        main.parse_flags([f"--config=configs/congen.py:{preset}", "--workdir=w"])


def test_an_argument_chooses_the_row_of_a_preset():
    raw = main.parse_flags(["--config=configs/congen.py:paper:bert-tiny", "--workdir=w"]).config
    assert raw["student"]["model"] == "nreimers/BERT-Tiny_L-2_H-128_A-2"


@pytest.mark.parametrize(
    ("given", "because"),
    [
        (["objective.generalize_view=crop", "run.steps=5"], "objective.alpha is 1"),
        (["student.head_init=normal"], "student.head is none"),
    ],
)
def test_an_option_that_is_not_read_is_a_warning(monkeypatch, caplog, given, because):
    monkeypatch.setattr("jaxdistill.training.stages.run_stages", lambda *_, **__: None)
    main.main(["--config=configs/congen.py:tiny", "--workdir=w", *(f"--config.{option}" for option in given)])
    (said,) = caplog.messages
    assert said == f"warning: --config.{given[0].partition('=')[0]} has no effect, because {because}"


def test_every_option_is_read_somewhere():
    source = "\n".join(path.read_text() for path in (ROOT / "jaxdistill").rglob("*.py") if path.name != "config.py")
    for section, _, options in sections():
        for option in options if not section.startswith(OBJECTIVE) else ():
            assert re.search(rf"\.{option.name}\b", source), f"{section}.{option.name} is read nowhere"


def test_extensions_are_options_that_exist():
    known = configs.flat(configs.parse_config(tiny_congen()))
    assert set(configs.EXTENSIONS) <= set(known)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda raw: raw["data"].update(txt="x"), r"data\.txt is unknown\. Did you mean text"),
        (lambda raw: raw["run"].update(steps="many"), r"run\.steps='many' has type str; it must have type int"),
        (lambda raw: raw["run"].update(steps=True), r"run\.steps=True has type bool"),
        (lambda raw: raw["data"].update(columns=5), r'a tuple such as \(\("name", "name"\),\)'),
        (lambda raw: raw["data"].update(weights=5), r"a tuple such as \(1\.0,\)"),
        (lambda raw: raw["run"].update(sharding=(("a", "b"),)), r'a tuple such as \("name",\)'),
        (lambda raw: raw.update(extra={}), "extra is unknown"),
        (lambda raw: raw["objective"].pop("kind"), r"objective\.kind is missing\.$"),
        (lambda raw: raw["objective"].update(name=raw["objective"].pop("kind")), "; objective.name is its former name"),
    ],
)
def test_a_wrong_key_or_type_is_refused_with_its_name(change, words):
    raw = tiny_congen()
    change(raw)
    with pytest.raises(InputError, match=words):
        configs.parse_config(raw)


def test_options_that_are_not_given_have_their_defaults():
    config = configs.parse_config({"data": {"columns": "body"}, "objective": {"kind": "ckd"}})
    assert config.data.columns == (("text", "body"),) and config.data.batch_size == configs.Data().batch_size
    assert config.run == configs.RunOptions()
    assert objectives.make("ckd", {}).queue_size == 65536
    with pytest.raises(InputError, match="config section run has type int"):
        configs.parse_config({"run": 5, "objective": {"kind": "ckd"}})


def test_a_changed_option_is_an_extension_or_another_training():
    before = configs.flat(configs.parse_config(tiny_congen()))
    configs.refuse_other_training(before, before | {"run.steps": 999, "evals.every": 3}, workdir="w")
    with pytest.raises(InputError, match=r"objective\.alpha: 1\.0 there, 0\.6 now"):
        configs.refuse_other_training(before, before | {"objective.alpha": 0.6}, workdir="w")


def test_command_line_values_reach_the_config(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    given = [
        "--config=configs/congen.py:tiny",
        "--workdir=~/w",
        "--config.objective.alpha=0.25",
        "--config.data.weights=(1.0,2.0)",
    ]
    (raw,), workdir, dry_run, *_ = main.parse_flags(given)
    assert (raw["objective"]["alpha"], tuple(raw["data"]["weights"]), str(workdir), dry_run) == (
        0.25,
        (1.0, 2.0),
        "/home/someone/w",
        False,
    )


def test_a_column_is_named_by_one_word(tmp_path):
    raw = main.parse_flags(["--config=configs/l2.py", f"--workdir={tmp_path}", "--config.data.columns=body"]).config
    assert configs.parse_config(raw).data.columns == (("text", "body"),)


def test_a_config_file_of_ones_own_states_what_differs(tmp_path):
    lines = ["from ml_collections import ConfigDict", "def get_config():"]
    lines += ["    return ConfigDict(dict(objective=dict(kind='ckd', queue_size=64), run=dict(steps=5)))"]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    given = [f"--config={tmp_path / 'mine.py'}", "--workdir=w", "--config.objective.temperature=0.1"]
    config = configs.parse_config(main.parse_flags(given).config)
    assert config.objective == dict(kind="ckd", queue_size=64, temperature=0.1, learned_scale="none", view="text")
    assert (config.run.steps, config.data) == (5, configs.Data())


def test_help_shows_every_option_with_its_default_and_a_configs_docstring(capsys):
    main.main(["--help"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert (
        shown.index("configs/congen.py: quickstart")
        < shown.index("Options (")
        < shown.index("Options of each objective")
    )
    shown = re.sub(r"\n {8,}", " ", shown)  # each option in one line
    for _, _, options in sections():
        for option in options:
            assert re.search(rf"^    {option.name}: .*default .*  \S", shown, re.MULTILINE), option.name
    main.main(["--config=configs/l2.py:paper", "--help"])
    assert capsys.readouterr().out.startswith("L2: the student's vector")


def options_of(stages):
    """`(stage1.section.option, value)`"""
    for number, stage in enumerate(stages, start=1):
        for section, options in stage.items():
            yield from ((f"stage{number}.{section}.{name}", value) for name, value in options.items())


def test_every_option_can_be_given_on_the_command_line():
    """Some names, such as `keys`, are methods of ConfigDict and would be shadowed."""
    for path in CONFIGS:
        raw = load(path, "tiny")
        values = dict(options_of(raw))
        assert not [name for name in values if hasattr(ConfigDict, name.split(".")[-1])], path
        given = [f"--config.{name}={value}" for name, value in values.items()]
        again = main.parse_flags([f"--config={path}:tiny", "--workdir=w", *given]).stages
        assert json.loads(json.dumps(again)) == json.loads(json.dumps(raw))


# One step of every named preset: its own families and options on small, randomly initialised checkpoints.
FAMILIES = {
    "roberta": (transformers.RobertaConfig, dict(type_vocab_size=1, pad_token_id=0, max_position_embeddings=70)),
    "distilbert": (transformers.DistilBertConfig, None),
    "bert": (transformers.BertConfig, dict(max_position_embeddings=70)),
}


COLUMNS = ("text", "positive", "negative", "translation", "second")


def family_of(checkpoint: str) -> str:
    """What the named hub checkpoint is made of; multilingual MiniLM is a BERT body with XLM-R's tokenizer."""
    return next((family for family in ("roberta", "distilbert") if family in checkpoint.lower()), "bert")


def write_checkpoint(checkpoints, family, *, layers):
    """A plain Hugging Face folder, without pooling, as the paper's checkpoints are."""
    folder = checkpoints / f"{family}-{layers}"
    if (folder / "config.json").exists():
        return str(folder)
    tokenizer = tiny_tokenizer(folder, max_length=64)
    kind, more = FAMILIES[family]
    vocab = tokenizer.get_vocab_size()
    if family == "distilbert":
        config = kind(vocab_size=vocab, dim=32, n_layers=layers, n_heads=2, hidden_dim=64, max_position_embeddings=70)
    else:
        sizes = dict(vocab_size=vocab, hidden_size=32, num_attention_heads=2, intermediate_size=64)
        config = kind(num_hidden_layers=layers, **sizes, **more)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
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
    """The options with small random checkpoints of the same families instead of the models, and a small text."""
    if raw["teacher"]["kind"] in ("columns", "scores"):
        raw["teacher"] = turned("teacher", {}, "labels") | dict(model="any")
    teacher, student = raw["teacher"], raw["student"]
    # Exports of stages say their own pooling, or are cross-encoders.
    made_by_stages = teacher.get("model", "").startswith("stage")
    pooled = re.findall(r":last(\d+)", f"{teacher.get('pooling')} {student['pooling']}")
    layers = max([2 if student.get("layers") else 1, *map(int, pooled)])  # a student of chosen layers keeps one of two
    for part in ("teacher", "student"):
        if "model" not in raw[part]:
            continue
        names = raw[part]["model"].split(",")
        raw[part]["model"] = ",".join(
            name
            if name in ("", "teacher", "previous") or name.startswith("stage")
            else write_checkpoint(checkpoints, family_of(name), layers=layers)
            for name in names
        )
    named = tuple((view, view if view in COLUMNS else "negative") for view, _ in raw["data"]["columns"])
    raw["data"] |= dict(
        text=str(checkpoints / "text.tsv"), max_length=32, cache_folder=str(checkpoints / "cache"), batch_size=16,
        columns=named, exclude="", pack_shapes=2, weights=(),
        chunk_tokens=min(raw["data"]["chunk_tokens"], 32),
    )  # fmt: skip
    if "model" in teacher:
        teacher["pooling"] = teacher["pooling"] or ("" if made_by_stages else "mean")
        teacher["max_length"] = min(teacher["max_length"], 64)
    if teacher.get("components"):
        teacher["components"] = min(teacher["components"], 16)
    if student["kind"] == "cut":
        student["model"] = student["model"] or "teacher"  # only `domain` leaves it to the user
    student["pooling"] = student["pooling"] or ("pooler" if student["kind"] == "cross_encoder" else "mean")
    small = dict(layers="last:1", width=16 if student["kind"] == "static" else 32, depth=1, heads=4, embedding=8)
    small |= dict(vocabulary=256, dims=(8,))
    student |= {name: value for name, value in small.items() if student.get(name)}
    if raw["objective"].get("queue_size"):
        raw["objective"]["queue_size"] = 48
    raw["evals"] |= dict(pairs=str(checkpoints / "pairs.tsv"), agreement="", best="")
    return raw


def on_one_device(monkeypatch):
    """Compiles in half the time of eight; and shapes of batches are chosen from few of them."""
    one = meshes.make_mesh(devices=jax.devices()[:1])
    monkeypatch.setattr(meshes, "make_mesh", lambda **_: one)
    monkeypatch.setattr(batches, "SIMULATED_STEPS", 8)


def program_of(raw: dict) -> str:
    """Equal for presets whose steps are the same program: they differ in rates, lengths, names and the like alone."""

    def kind(value):
        if isinstance(value, dict):
            return {name: kind(inner) for name, inner in value.items()}
        return "a number" if isinstance(value, float) and value not in (0.0, 1.0) else value

    parts = {part: raw[part] for part in ("data", "teacher", "student", "objective", "optimizer", "run")}
    parts["optimizer"] = raw["optimizer"] | dict(warmup_steps=bool(raw["optimizer"]["warmup_steps"]))
    parts["data"] = raw["data"] | dict(dedupe=True)
    parts["run"] = raw["run"] | dict(steps=0, epochs=0.0, seed=0, log_every=0, paper="")
    parts["student"] = raw["student"] | dict(max_length=0)  # the text is shorter
    return json.dumps(kind(parts))


@pytest.fixture(scope="module")
def stepped():
    """Programs of which a step was taken."""
    return set()


def students_of(path, preset):
    """Arguments of the preset."""
    return getattr(loaded(path), "ARGUMENTS", {}).get(preset.partition(":")[0])


STUDENTS = students_of(ROOT / "configs" / "congen.py", "paper")
NAMED = [
    (path, preset)
    for path, preset in PRESETS
    if not preset.startswith("tiny")
    and (path.stem == "congen" or ":" not in preset or students_of(path, preset) != STUDENTS)
]
"""The students of ConGen's tables take their step in congen.py alone; its baselines have the same ones."""


@pytest.mark.parametrize("path, preset", NAMED, ids=lambda value: getattr(value, "stem", value))
def test_every_named_preset_builds_and_takes_a_step(path, preset, checkpoints, stepped, monkeypatch):
    on_one_device(monkeypatch)
    # Later stages are presets of their own kind, and need the stage before.
    raw = on_random_models(json.loads(json.dumps(load(path, preset)[0])), checkpoints)
    if program_of(raw) in stepped:
        return
    stepped.add(program_of(raw))
    run = build(configs.parse_config(raw), checkpoints / "w", progress=False)
    state = run.first_state(run.text.seeds())
    before = {name: np.asarray(array) for name, array in state.params["student"].items()}
    batch = place(run.text.batches.batch_at(0), batch_sharding(run.program.mesh))
    for _ in range(2):  # the first update of a warm-up has the rate 0
        state, metrics = run.program.train_step(state, run.program.teacher_params, batch)
    assert np.isfinite(jax.device_get(metrics["loss"]))
    assert any(np.any(before[name] != np.asarray(array)) for name, array in state.params["student"].items())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_trains_from_tiny_to_its_export(path, checkpoints, monkeypatch, capsys):
    on_one_device(monkeypatch)
    stages = [on_random_models(stage, checkpoints) for stage in json.loads(json.dumps(load(path, "tiny")))]
    if path.stem == "simcse":
        stages[0]["student"]["pooling"] = "mean:last2:concat"  # which sentence-transformers lacks
    for stage in stages:
        stage["run"] |= dict(steps=2, log_every=1)
        stage["evals"]["every"] = 2
    workdir = checkpoints / "tiny" / path.stem
    run_stages(configs.parse_stages(stages), workdir, dry_run=False, command="")
    assert "export (reloaded and compared)" in capsys.readouterr().out
    of_stages = list(workdir.glob("stage*/results.json"))
    for path_of_results in of_stages or [workdir / "results.json"]:
        results = json.loads(path_of_results.read_text())
        assert results["last_step"] == 2 and np.isfinite(results["scores"]["student after"]["pairs/spearman"])


def test_entity_resolution_trains_its_teacher_first(checkpoints, monkeypatch):
    """SimTDE's Table 3: BERT-Tiny learns from pairs of query and entity, and teaches the compact student."""
    on_one_device(monkeypatch)
    raw = json.loads(json.dumps(load(ROOT / "configs" / "simtde.py", "paper-32-l2")))
    stages = [on_random_models(stage, checkpoints) for stage in raw]
    for stage in stages:
        stage["run"] |= dict(steps=2, log_every=1)
        stage["evals"]["every"] = 2
    workdir = checkpoints / "entities"
    run_stages(configs.parse_stages(stages), workdir, dry_run=False, command="")
    card = (workdir / "stage2" / "export" / "README.md").read_text()
    assert "| Teacher | stage1/export |" in card
    small, large = (json.loads((workdir / f"stage{n}" / "export" / "config.json").read_text()) for n in (2, 1))
    assert (small["model_type"], small["embedding_size"], large["model_type"]) == ("electra", 8, "bert")
