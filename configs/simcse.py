"""SimCSE (Gao et al., EMNLP 2021), unsupervised and supervised, Mirror-BERT and DistilFACE; none has a teacher.

    python -m jaxdistill.main --config=configs/simcse.py:PRESET --workdir=runs/NAME --config.data.text=FILE

minilm-l3       unsupervised, from layers 1, 3, 5 of all-MiniLM-L6-v2, on your text
minilm-l3-sup   supervised, on a file with the columns text, positive, negative
minilm-l3-mirror   with Mirror-BERT's random span masking and loss
quickstart      the default: on text that comes with the project, offline, in a minute or two
tiny            a one-minute smoke test from text to export; says nothing about quality
unsup-bert unsup-bert-large unsup-roberta unsup-roberta-large
                SimCSE's rows, on wiki1m_for_simcse.txt. Its Table 5 has 76.25 for BERT-base; users report 73.5 to 75.3
sup-bert sup-bert-large
                SimCSE's rows, on nli_for_simcse.csv; 81.57 for BERT-base
sup-tinybert-l6 sup-tinybert-l4
                likewise, as DistilCSE trains them for comparison (its Table 2: 81.09 and 77.19)
congen-unsup:STUDENT congen-sup:STUDENT
                the baselines of ConGen's Table 1 for each of its students, on NLI from the hub and on
                nli_for_simcse.csv: 64.47 and 72.35 for bert-tiny, 55.10 and 76.49 for minilm-l3, and so on; without
                STUDENT, bert-base
simtde-teacher  SimTDE's teacher: supervised, mean pooling, no MLP. Its text is a mix of pair sets; choose your own
mirror mirror-roberta
                Mirror-BERT (Liu et al., EMNLP 2021): one view has a masked span; 10,000 sentences of STS-B, 50 steps.
                Its authors' models score 74.51 (BERT) and 75.08 (RoBERTa)
mirror-drophead mirror-roberta-drophead
                with DropHead instead of dropout: 75.16 and 76.67
distilface      DistilFACE (Lim and others): DistilBERT, mean of the last four layers, the checkpoint after 20,000 steps.
                Its paper has 72.10; a second run of its authors, with the same settings and seed, has 70.58
distilface-alternative   batch 64, learning rate 5e-5, 30,000 steps: 72.17 in its authors' notebook

DistilFACE's quantisation after training (its paper: 52 % of the bytes, 6.9 % of the score lost):
    python -m jaxdistill.export --model=runs/NAME/export --to=onnx --out=runs/NAME/int8

The MLP is the student's head. As in the paper, unsupervised training discards it, and supervised training keeps it.
The papers' repositories link the text files.
"""

from collections.abc import Callable
from functools import partial

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import NLI, STS_B_DEV, chosen, embedded, options, set_kind
from jaxdistill.config.shipped._presets import minilm_l3 as layers_of_minilm
from jaxdistill.config.shipped.congen import PAPER, STUDENTS

VIEWS_OF_TRIPLETS = ("text", "positive", "negative")
TRIPLETS = tuple(zip(VIEWS_OF_TRIPLETS, ("sent0", "sent1", "hard_neg"), strict=True))
"""Columns of SimCSE's own file; ..."""
PLAIN_TRIPLETS = tuple((name, name) for name in VIEWS_OF_TRIPLETS)
"""... of a file whose columns are called as the views are."""

TINYBERTS = {"l6": "nreimers/TinyBERT_L-6_H-768_v2", "l4": "nreimers/TinyBERT_L-4_H-312_v2"}
"""The second release of TinyBERT's general distillation, converted."""


def on_pairs(views: tuple[str, ...], **objective) -> ConfigDict:
    """Layers of all-MiniLM-L6-v2 and one pass over labelled pairs or triplets, for any objective that has views."""
    config = layers_of_minilm(views=views, **objective)
    config.data.columns = PLAIN_TRIPLETS[: len(views)]
    config.optimizer.learning_rate = 5e-5
    config.run.steps, config.run.epochs = -1, 1.0
    return config


def presets_of_pairs(**objective) -> dict[str, Callable[[], ConfigDict]]:
    """`minilm-l3` on pairs, `minilm-l3-sup` on triplets, and the presets on text that comes with the project."""
    return {
        "minilm-l3": partial(on_pairs, VIEWS_OF_TRIPLETS[:2], **objective),
        "minilm-l3-sup": partial(on_pairs, VIEWS_OF_TRIPLETS, **objective),
        **embedded(partial(on_pairs, ("text", "delete_words"), **objective)),
    }


def simcse(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        kind="simcse",
        temperature=0.05,
        learned_scale="none",
        views=("text", "text"),
        negative_weight=1.0,
        among="others",
    )
    return defaults | changed


def papers(student: str, *, batch_size: int, learning_rate: float, supervised: bool = False) -> ConfigDict:
    """SimCSE's scripts: first token, an MLP in training, no weight decay, no warm-up."""
    config = options(**simcse(**(dict(views=VIEWS_OF_TRIPLETS) if supervised else {})))
    config.data.max_length = 32
    config.data.batch_size = batch_size
    config.data.dedupe = False
    config.data.columns = TRIPLETS if supervised else ()
    config.student.model = student
    config.student.max_length = 512  # the code's evaluation truncates nothing
    config.student.pooling = "cls"
    config.student.head = "tanh"
    config.student.head_init = "normal"
    config.student.keep_head = supervised
    config.optimizer.learning_rate = learning_rate
    config.optimizer.warmup_fraction = 0.0
    config.optimizer.weight_decay = 0.0
    config.optimizer.eps = 1e-8
    config.optimizer.eps_before_correction = True
    config.evals.best = STS_B_DEV
    config.evals.every = 125
    config.evals.untrained = False
    config.run.epochs = 3.0 if supervised else 1.0
    config.run.seed = 42
    return config


def congens_unsupervised(student: str = "bert-base") -> ConfigDict:
    """On ConGen's own text."""
    config = papers(PAPER[student][0], batch_size=64, learning_rate=3e-5)
    config.data.text = NLI
    return config


def congens_supervised(student: str = "bert-base") -> ConfigDict:
    return papers(PAPER[student][0], batch_size=512, learning_rate=5e-5, supervised=True)


def simtde_teacher() -> ConfigDict:
    config = papers("google-bert/bert-base-uncased", batch_size=512, learning_rate=5e-5, supervised=True)
    config.student.pooling = "mean"
    config.student.head = "none"
    return config


def mirror(student: str = "google-bert/bert-base-uncased", *, pooling: str, drophead: float = 0.0) -> ConfigDict:
    """Mirror-BERT's scripts: PyTorch's AdamW at a constant rate, no clipping, one pass.

    Its mean includes padding, of 50 tokens a sentence; here it does not. Its mask for RoBERTa is the text [MASK].
    """
    config = papers(student, batch_size=200, learning_rate=2e-5)
    set_kind(config, "objective", **simcse(temperature=0.04, views=("text", "mask_span"), among="both"))
    config.data.max_length = 50
    config.student.pooling = pooling
    config.student.head = "none"
    config.student.dropout = 0.0 if drophead else 0.1
    config.student.drophead = drophead
    config.optimizer.schedule = "constant"
    config.optimizer.weight_decay = 0.01
    config.optimizer.decay = "all"
    config.optimizer.eps_before_correction = False
    config.optimizer.clip_norm = 0.0
    config.evals.best = "last"
    config.evals.every = 50
    config.evals.untrained = False
    return config


def distilface(batch_size: int, learning_rate: float, steps: int) -> ConfigDict:
    config = papers("distilbert/distilbert-base-uncased", batch_size=batch_size, learning_rate=learning_rate)
    config.student.pooling = "mean:last4"
    config.student.head = "none"
    config.evals.best = "last"
    config.run.steps = steps
    return config


def minilm_l3(supervised: bool = False) -> ConfigDict:
    """From the teacher's layers; its dropout is on, as the two views of a sentence differ in nothing else."""
    config = layers_of_minilm(**simcse(**(dict(views=VIEWS_OF_TRIPLETS) if supervised else {})))
    config.student.dropout = 0.1
    config.optimizer.learning_rate = 5e-5
    if supervised:
        config.data.columns = PLAIN_TRIPLETS
        config.run.steps, config.run.epochs = -1, 1.0
    return config


def minilm_l3_mirror() -> ConfigDict:
    """Mirror-BERT's views, loss and temperature on the same student."""
    config = minilm_l3()
    set_kind(config, "objective", **simcse(temperature=0.04, views=("text", "mask_span"), among="both"))
    return config


PRESETS = {
    "minilm-l3": minilm_l3,
    "minilm-l3-sup": partial(minilm_l3, supervised=True),
    "minilm-l3-mirror": minilm_l3_mirror,
    **embedded(minilm_l3),
    "unsup-bert": partial(papers, "google-bert/bert-base-uncased", batch_size=64, learning_rate=3e-5),
    "unsup-bert-large": partial(papers, "google-bert/bert-large-uncased", batch_size=64, learning_rate=1e-5),
    "unsup-roberta": partial(papers, "FacebookAI/roberta-base", batch_size=512, learning_rate=1e-5),
    "unsup-roberta-large": partial(papers, "FacebookAI/roberta-large", batch_size=512, learning_rate=3e-5),
    "sup-bert": partial(papers, "google-bert/bert-base-uncased", batch_size=512, learning_rate=5e-5, supervised=True),
    "sup-bert-large": partial(
        papers, "google-bert/bert-large-uncased", batch_size=512, learning_rate=1e-5, supervised=True
    ),
    **{
        f"sup-tinybert-{name}": partial(papers, model, batch_size=512, learning_rate=5e-5, supervised=True)
        for name, model in TINYBERTS.items()
    },
    "congen-unsup": congens_unsupervised,
    "congen-sup": congens_supervised,
    "simtde-teacher": simtde_teacher,
    "mirror": partial(mirror, pooling="mean"),
    "mirror-drophead": partial(mirror, pooling="mean", drophead=0.2),
    "mirror-roberta": partial(mirror, "FacebookAI/roberta-base", pooling="cls"),
    "mirror-roberta-drophead": partial(mirror, "FacebookAI/roberta-base", pooling="cls", drophead=0.05),
    "distilface": partial(distilface, 128, 1e-5, 20_000),
    "distilface-alternative": partial(distilface, 64, 5e-5, 30_000),
}
ARGUMENTS = {"congen-unsup": STUDENTS, "congen-sup": STUDENTS}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("simcse", PRESETS, preset, ARGUMENTS)
