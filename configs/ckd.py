"""CKD of DistilCSE (Gao et al., 2021): contrasts the student's vector with the teacher's, over the batch and a queue.

    python -m jaxdistill.main --config=configs/ckd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text; fixed temperature, no projection (the student starts aligned)
two-stage   the same, then supervised contrastive fine-tuning of the best student on
            --config.stage2.data.text=TRIPLETS.tsv, with the columns text, positive, negative
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
tiny-two-stage   the same for both stages
paper:STUDENT   the paper's settings: teacher sup-SimCSE-RoBERTa-large without dropout, batch 512; then stage 2 at batch
            128. STUDENT is bert-base (Table 2: 83.45, after stage 2 85.04), tinybert-l6 (83.17, 84.58) or tinybert-l4
            (81.16, 82.84); `paper` alone is bert-base. The paper names no temperature: 0.05 is SimCSE's
code:STUDENT    the released code's settings: batch 8 x 512, a learned temperature that starts at 0.368, the teacher's
            dropout on; stage 2 at batch 4 x 128 with a learned scale that starts at 20. One difference: negatives are
            the whole batch and one queue (4,096 + 65,536), while each of the code's eight processes has 512 + 65,536
paper-simcse:STUDENT   as `paper`, but the student is first trained by SimCSE (Table 3, STS-B dev: 89.03, 88.70, 87.21).
            BERT-base starts from a checkpoint on the hub; each TinyBERT gets an extra stage before the two
congen:STUDENT  as adapted by ConGen's authors: unsupervised teacher, their text; `congen` alone is bert-base

Text: `news5m.txt`, and SimCSE's `nli_for_simcse.csv` (docs/guide/data.md downloads both). Name the triplets with
--config.stage2.data.text (TinyBERTs of paper-simcse: --config.stage1.data.text and --config.stage3.data.text).
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import STS_B_DEV, TEACHER, chosen, embedded, minilm_l3, options, tiny
from jaxdistill.config.shipped.congen import STUDENTS as CONGENS_STUDENTS
from jaxdistill.config.shipped.congen import of_student
from jaxdistill.config.shipped.simcse import PLAIN_TRIPLETS, TINYBERTS, TRIPLETS, VIEWS_OF_TRIPLETS, simcse
from jaxdistill.config.shipped.simcse import papers as by_simcse

# Section 4.2: student, learning rate of stage 1 and of stage 2.
STUDENTS = {
    "bert-base": ("google-bert/bert-base-uncased", 2e-4, 5e-5),
    "tinybert-l6": (TINYBERTS["l6"], 3e-4, 1e-5),
    "tinybert-l4": (TINYBERTS["l4"], 3e-4, 5e-5),
}


def ckd(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(kind="ckd", temperature=0.05, learned_scale="none", queue_size=65536, view="text")
    return defaults | changed


def distilcse(objective: dict, student: str, *, batch_size: int) -> ConfigDict:
    """What the first stages of DistilCSE have in common."""
    model, learning_rate, _ = STUDENTS[student]
    config = options(**objective)
    config.data.text = "news5m.txt"
    config.data.dedupe = False
    config.data.max_length = 64
    config.data.batch_size = batch_size
    config.teacher.model = "princeton-nlp/sup-simcse-roberta-large"
    config.teacher.pooling = "pooler"
    config.teacher.max_length = 64
    config.student.model = model
    config.student.max_length = 512  # as in SimCSE's code, on which theirs is built
    config.student.pooling = "pooler"
    config.student.head = "linear"
    config.student.keep_head = False
    config.optimizer.learning_rate = learning_rate
    config.optimizer.schedule = "cosine"
    config.optimizer.weight_decay = 0.0
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.eps_before_correction = True
    config.evals.best = STS_B_DEV
    config.evals.every = 125
    config.evals.patience_epochs = 3.0
    config.evals.untrained = False
    config.run.epochs = 20.0
    config.run.seed = 1111
    config.optimizer.warmup_fraction = 0.1 / config.run.epochs  # a tenth of one epoch
    return config


def second_stage(config: ConfigDict, *, batch_size: int, learned_scale: str = "none") -> ConfigDict:
    """Supervised contrastive fine-tuning of the best student of a stage."""
    second = options(**simcse(views=VIEWS_OF_TRIPLETS, learned_scale=learned_scale))
    second.data = config.data.copy_and_resolve_references()
    second.data.text = ""
    second.data.columns = TRIPLETS
    second.data.weights = ()
    second.data.batch_size = batch_size
    second.student.model = "previous"
    second.student.max_length = config.student.max_length
    second.student.dropout = config.student.dropout
    second.optimizer = config.optimizer.copy_and_resolve_references()
    second.optimizer.learning_rate = 5e-5
    second.optimizer.clip_norm = 1.0
    second.evals = config.evals.copy_and_resolve_references()
    second.evals.patience_epochs = 0.0
    second.run = config.run.copy_and_resolve_references()
    second.run.epochs, second.run.steps = 5.0, -1
    return second


def distilcse_stages(first: ConfigDict, student: str, *, code: bool) -> list[ConfigDict]:
    """The second stage of the paper has equation 7 with a fixed temperature and batch 128. The code learns the scale, at batch
    4 x 128."""
    second = second_stage(first, batch_size=512 if code else 128, learned_scale="linear" if code else "none")
    second.optimizer.learning_rate = STUDENTS[student][2]
    second.optimizer.warmup_fraction = 0.1 / second.run.epochs  # a tenth of one epoch
    second.run.seed = 1111
    return [first, second]


def paper(student: str = "bert-base") -> list[ConfigDict]:
    """Section 4.2."""
    return distilcse_stages(distilcse(ckd(), student, batch_size=512), student, code=False)


def code(student: str = "bert-base") -> list[ConfigDict]:
    """The released scripts."""
    learned = ckd(temperature=0.36787944117144233, learned_scale="log")  # a scale of e
    config = distilcse(learned, student, batch_size=8 * 512)
    config.teacher.dropout = True
    return distilcse_stages(config, student, code=True)


def paper_from_simcse(student: str = "bert-base") -> list[ConfigDict]:
    """Table 3."""
    distilled, tuned = paper(student)
    if student == "bert-base":
        distilled.student.model = "princeton-nlp/sup-simcse-bert-base-uncased"
        return [distilled, tuned]
    distilled.student.model = "previous"
    distilled.student.pooling = ""
    first = by_simcse(STUDENTS[student][0], batch_size=512, learning_rate=5e-5, supervised=True)
    return [first, distilled, tuned]


def adapted(student: str = "bert-base") -> ConfigDict:
    """ConGen's comparison: its teacher, text, head and optimiser."""
    return of_student(student, ckd())


def aligned() -> ConfigDict:
    return minilm_l3(**ckd(queue_size=16384))


def two_stage() -> list[ConfigDict]:
    first = aligned()
    second = second_stage(first, batch_size=128, learned_scale="log")
    second.data.columns = PLAIN_TRIPLETS
    second.run.epochs = 1.0
    return [first, second]


def tiny_two_stage() -> list[ConfigDict]:
    """The second stage contrasts the embedded text with word deletions of itself: there are no triplets in it."""
    first, second = map(tiny, two_stage())
    second.objective.views = ("text", "delete_words")
    second.teacher.model = TEACHER
    return [first, second]


PRESETS = {
    "minilm-l3": aligned,
    "two-stage": two_stage,
    **embedded(aligned),
    "tiny-two-stage": tiny_two_stage,
    "paper": paper,
    "code": code,
    "paper-simcse": paper_from_simcse,
    "congen": adapted,
}
ARGUMENTS = {preset: tuple(STUDENTS) for preset in ("paper", "code", "paper-simcse")} | {"congen": CONGENS_STUDENTS}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("ckd", PRESETS, preset, ARGUMENTS)
