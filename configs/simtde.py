"""SimTDE (Xie et al., SIGIR 2023): compact embedding tables, a projection, and the teacher's last layers.

    python -m jaxdistill.main --config=configs/simtde.py:PRESET --workdir=runs/NAME

minilm-128-l3   SIMTDE-128-L3(384) of all-MiniLM-L6-v2 on your text, with tables from the teacher's by SVD (ours): 9.5M
                parameters as the paper counts them, with a pooler. Its Table 2 has 78.09
quickstart      the default: on text that comes with the project, offline, in a minute or two
tiny            a one-minute smoke test from text to export; says nothing about quality
paper-384-l3 paper-384-l12 paper-128-l3
                the paper's rows: 34.1M parameters (Tables 1 and 2: 80.47), 97.9M (80.51), 9.5M (78.09); random tables,
                alpha 0.5, vectors compared as pooled (all-MiniLM-L6-v2 without its Normalize module)
paper-no-tokens paper-hidden paper-kl paper-cosine-mse paper-cosine-mae
                ablations of paper-384-l3, from Table 2 and section 4.3. In paper-hidden, three fresh layers of the
                teacher's width learn the outputs of its last three layers, instead of being copies of them
paper-64-l2 paper-32-l2
                entity resolution (Table 3), 2.4M and 1.4M parameters. First, BERT-Tiny learns from your pairs of a
                query and the entity it means (--config.text=PAIRS.tsv with the columns query and entity). It then
                teaches the student on the queries, or on --config.stage2.data.text=SENTENCES.txt. Recall@1 of
                --config.entities=dev.de.tsv,dev.fr.tsv (query, entity, label) chooses both checkpoints, which are never
                the untrained models. Evaluate with --tasks=retrieval --entities=test.de.tsv,test.fr.tsv

The paper's BERT teacher is the authors' own and not public (a mean-pooled supervised SimCSE,
configs/simcse.py:simtde-teacher); the presets use the public one. The paper gives no learning rate, batch, epochs or
text: those are ours. The export is an ELECTRA model, which sentence-transformers and AutoModel load as it is.
"""

from functools import partial

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import NLI, STS_B_DEV, TEACHER, chosen, embedded, minilm_l3, options, set_kind
from jaxdistill.config.shipped.simcse import simcse

# Rows: teacher, its pooling, compact width, layers.
ROWS = {
    "paper-384-l3": ("princeton-nlp/sup-simcse-bert-base-uncased", "mean", 384, 3),
    "paper-384-l12": ("princeton-nlp/sup-simcse-bert-base-uncased", "mean", 384, 12),
    "paper-128-l3": ("sentence-transformers/all-MiniLM-L6-v2", "", 128, 3),
}
BERT_TINY = "nreimers/BERT-Tiny_L-2_H-128_A-2"


def simtde(**changed) -> dict:
    """The objective with its options."""
    defaults = dict(
        kind="simtde",
        alpha=0.5,
        token_loss="batch",
        sentence_loss="mse",
        hidden_weight=0.0,
        hidden_map="last",
        view="text",
    )
    return defaults | changed


def paper(row: str, **changed) -> ConfigDict:
    """A row of Tables 1 and 2."""
    teacher, pooling, width, layers = ROWS[row]
    config = compact(width, layers, **changed)
    config.data.text = NLI
    config.teacher.model = teacher
    config.teacher.pooling = pooling
    config.evals.best = STS_B_DEV
    config.teacher.normalize = False  # section 4: "we create final representations using mean pooling over all tokens"
    return config


def compact(width: int, layers: int, **changed) -> ConfigDict:
    """A student of the teacher's last layers behind tables of this width."""
    config = unpublished_settings(options(**simtde(**changed)))
    config.student.model = "teacher"
    config.student.layers = f"last:{layers}"
    config.student.embedding = width
    config.student.embedding_init = "random"
    config.optimizer.learning_rate = 1e-4
    config.run.epochs = 3.0
    return config


def unpublished_settings(config: ConfigDict) -> ConfigDict:
    """Settings on which the paper is silent."""
    config.data.max_length = 64
    config.data.dedupe = False
    # The default of PyTorch's AdamW. With 1e-6, mean squares of sentence vectors, whose gradients are about 1e-7 a number,
    # hardly move the student.
    config.optimizer.eps = 1e-8
    return config


def fresh_layers() -> ConfigDict:
    """Table 2, "+ hidden states distillation": it replaces the initialisation from the teacher's layers (section 4.3)."""
    config = paper("paper-384-l3", hidden_weight=1.0)
    set_kind(config, "student", "fresh", width=768, depth=3)
    return config


def entities(width: int) -> list[ConfigDict]:
    """A row of Table 3: a dual encoder learns which entity a query means, then its compact student."""
    config = unpublished_settings(options(**simcse(views=("text", "positive"))))
    config.data.columns = (("text", "query"), ("positive", "entity"))
    config.student.model = BERT_TINY
    config.student.pooling = "mean"
    config.optimizer.learning_rate = 1e-4
    config.run.epochs = 3.0
    student = compact(width, 2)
    student.teacher.model = "previous"
    student.data.columns = (("text", "query|text"),)
    for stage in (config, student):
        stage.evals.best = "entities/recall@1"
        stage.evals.untrained = False
    return [config, student]


def minilm_128_l3() -> ConfigDict:
    """Sentence vectors of all-MiniLM-L6-v2 have unit length, so that their squares are small: compared by cosine."""
    config = minilm_l3(**simtde(sentence_loss="cosine_mae", alpha=0.1))
    config.teacher.model = TEACHER
    config.student.layers = "last:3"
    config.student.embedding = 128
    return config


PRESETS = {
    "minilm-128-l3": minilm_128_l3,
    **embedded(minilm_128_l3),
    **{row: partial(paper, row) for row in ROWS},
    "paper-no-tokens": partial(paper, "paper-384-l3", alpha=0.0),
    "paper-hidden": fresh_layers,
    "paper-kl": partial(paper, "paper-384-l3", sentence_loss="kl"),
    "paper-cosine-mse": partial(paper, "paper-384-l3", sentence_loss="cosine_mse"),
    "paper-cosine-mae": partial(paper, "paper-384-l3", sentence_loss="cosine_mae"),
    "paper-64-l2": partial(entities, 64),
    "paper-32-l2": partial(entities, 32),
}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("simtde", PRESETS, preset)
