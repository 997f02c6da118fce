"""CKD of DistilCSE (Xu et al., 2021): the student picks its own teacher vector out of batch and queue.

    python -m jaxdistill.main --config=configs/ckd.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text; fixed temperature, no projection (the student starts aligned)
two-stage   the same, then supervised contrastive fine-tuning of the best student:
            --config.then.data.text=TRIPLETS.tsv with the columns text, positive, negative
tiny        the path from text to export in a minute; proves nothing about quality
tiny-two-stage   likewise, both stages
paper       BERT-base from sup-SimCSE-RoBERTa-large: batch 512, fixed temperature 0.05, no dropout in the teacher;
            its Table 2 has 83.45 for stage 1, and 85.04 for both
code        the same as the code has it: batch 8 x 512, learned temperature from 0.368, the teacher's dropout on
congen      as ConGen's authors adapted it: unsupervised teacher, their text; their Table 1 has 76.19 to 78.34

paper and code go on with stage 2. Text: NEWS5M (`ffgcc/NEWS5M` on the hub); triplets: SimCSE's `nli_for_simcse.csv`, which
you download and name with --config.then.data.text.
"""

from _presets import TEACHER, chosen, congens_setting, minilm_l3, options, tiny
from ml_collections import ConfigDict
from simcse import PLAIN_TRIPLETS, TRIPLETS, VIEWS_OF_TRIPLETS, simcse


def ckd(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(name="ckd", temperature=0.05, learn_temperature=False, queue_size=65536, view="text")
    return defaults | changed


def distilcse(objective: dict, *, batch_size: int) -> ConfigDict:
    """What DistilCSE's first stages have in common; the warm-up is a tenth of one epoch of five million sentences."""
    config = options(**objective)
    config.data.text = "hf:ffgcc/NEWS5M:train:text"
    config.data.max_length = 64
    config.data.batch_size = batch_size
    config.teacher.model = "princeton-nlp/sup-simcse-roberta-large"
    config.teacher.pooling = "pooler"
    config.student.model = "google-bert/bert-base-uncased"
    config.student.pooling = "pooler"
    config.student.head = "linear"
    config.student.keep_head = False
    config.optimizer.learning_rate = 2e-4
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 5_000_000 // batch_size // 10
    config.optimizer.weight_decay = 0.0
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.eps_before_correction = True
    config.evals.every = 125
    config.run.epochs = 20.0
    config.run.seed = 1111
    return config


def second_stage(config: ConfigDict, *, batch_size: int) -> ConfigDict:
    """Supervised contrastive fine-tuning of the previous stage's best student; its temperature is learned."""
    then = options(**simcse(views=VIEWS_OF_TRIPLETS, learn_temperature=True))
    then.data = config.data.copy_and_resolve_references()
    then.data.text = ""
    then.data.columns = TRIPLETS
    then.data.weights = ()
    then.data.batch_size = batch_size
    then.teacher.model = ""
    then.student.model = "previous"
    then.student.pooling = ""
    then.student.dropout = config.student.dropout
    then.optimizer = config.optimizer.copy_and_resolve_references()
    then.optimizer.learning_rate = 5e-5
    then.optimizer.clip_norm = 1.0
    then.optimizer.warmup_steps = 0
    then.evals = config.evals.copy_and_resolve_references()
    then.run = config.run.copy_and_resolve_references()
    then.run.epochs, then.run.steps = 5.0, 0
    config.then = then
    return config


def hub(*, batch_size: int, second_batch_size: int, learned: bool) -> ConfigDict:
    """Both stages with models and text from the hub."""
    start = 0.36787944117144233 if learned else 0.05
    config = distilcse(ckd(temperature=start, learn_temperature=learned), batch_size=batch_size)
    config.teacher.dropout = learned
    return second_stage(config, batch_size=second_batch_size)


def adapted() -> ConfigDict:
    """ConGen's comparison: its teacher, text and optimiser."""
    config = congens_setting(**ckd())
    config.student.head = "linear"
    return config


def aligned() -> ConfigDict:
    return minilm_l3(**ckd(queue_size=16384))


def two_stage() -> ConfigDict:
    config = second_stage(aligned(), batch_size=128)
    config.then.data.columns = PLAIN_TRIPLETS
    config.then.run.epochs = 1.0
    return config


def tiny_two_stage() -> ConfigDict:
    """The second stage contrasts the embedded text with word deletions of itself: there are no triplets in it."""
    config = two_stage()
    config.then = tiny(config.then)
    config = tiny(config)
    config.then.objective.views = ("text", "delete_words")
    config.then.teacher.model = TEACHER
    return config


PRESETS = {
    "minilm-l3": aligned,
    "two-stage": two_stage,
    "tiny": lambda: tiny(aligned()),
    "tiny-two-stage": tiny_two_stage,
    "paper": lambda: hub(batch_size=512, second_batch_size=128, learned=False),
    "code": lambda: hub(batch_size=4096, second_batch_size=512, learned=True),
    "congen": adapted,
}


def get_config(preset: str = "minilm-l3") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("ckd", PRESETS, preset)
