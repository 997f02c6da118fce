"""Dual-L2: matches the student's vectors of two views to the teacher's vector of the first view.

    python -m jaxdistill.main --config=configs/dual_l2.py:PRESET --workdir=runs/NAME

minilm-l3   3 layers of all-MiniLM-L6-v2 on your text; word deletion as the second view
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality
paper:STUDENT   ConGen's baseline; teacher and student from the hub; `paper` alone is bert-base. Its Table 3 has mdistilbert
            and mminilm-l12, which read translations as the second view (see configs/congen.py)
en-de       a bilingual student, trained from scratch on English sentences and their translations

With translations this is the method of Reimers and Gurevych (EMNLP 2020): the student reads a sentence and its
translation, and both vectors learn to match the teacher's vector of the English one. `en-de` trains a fresh encoder of
2 layers with a tokenizer of 16,000 entries, which is learned from both columns:

    --config=configs/dual_l2.py:en-de --config.data.text=$JAXDISTILL_DATA/parallel/en-de.tsv.gz

It reads the columns `en` and `de`; for others, `--config.data.columns='(("text", "en"), ("translation", "fr"))'`. To
measure what the translations add, train without them, and with a tokenizer of English only:
`--config.objective.second_view=''`.

Then run `python -m jaxdistill.evaluate --model=runs/NAME/export --tasks=bitext,sts`. 50,000 pairs take about 10 minutes
on 2 CPU cores, including the teacher's targets; docs/results.md has the scores. The authors' students are XLM-R,
trained on millions of pairs.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import TEACHER, chosen, embedded, minilm_l3, options, set_kind
from jaxdistill.config.shipped.congen import PAPER, second_view
from jaxdistill.config.shipped.l2 import l2
from jaxdistill.config.shipped.l2 import paper as l2_paper


def dual_l2(**changed) -> dict:
    """L2's objective with a second view."""
    return l2(**(dict(second_view="delete_words") | changed))


def en_de() -> ConfigDict:
    """A fresh student of the teacher's width, which needs no head, at a higher rate than one that is cut from its teacher."""
    # As `squared` but 192 times larger, half the width: at a gradient of norm 0.14 over 9.9 million numbers, which is what
    # the first steps have, the gradients of `squared` are 2e-7 on average, below Adam's eps.
    config = options(**dual_l2(distance="cosine", second_view="translation"))
    config.data.columns = (("text", "en"), ("translation", "de"))
    config.data.dedupe = False
    config.data.max_length = 64
    config.data.batch_size = 64
    config.teacher.model = TEACHER
    set_kind(config, "teacher", "stored")
    set_kind(config, "student", "fresh", width=384, depth=2, vocabulary=16000)
    config.student.model = "teacher"  # its prompts and pooling
    config.student.dropout = 0.0
    config.optimizer.learning_rate = 1e-3
    config.evals.every = 200
    config.evals.sts = False  # minutes for the teacher alone; see `evaluate`
    return config


def paper(student: str = "bert-base") -> ConfigDict:
    return l2_paper(student, **dual_l2(second_view=second_view(student)))


PRESETS = {
    "minilm-l3": lambda: minilm_l3(**dual_l2()),
    **embedded(lambda: minilm_l3(**dual_l2())),
    "paper": paper,
    "en-de": en_de,
}
ARGUMENTS = {"paper": tuple(PAPER)}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("dual_l2", PRESETS, preset, ARGUMENTS)
