"""ConGen's teacher and its pooling (its Table 4).

    python -m jaxdistill.sweep --grid=congen_teacher --workdir=runs/teacher

STS averages (x 100) in the paper:

                   ConSERT      BSL        SimCSE
                   BERT-large   BERT-base  RoBERTa-large
    teacher          76.45       73.85       78.90
    BERT-Tiny        74.88       70.61       76.85
    TinyBERT-L4      76.28       71.63       78.54
    MiniLM-L12       76.93       72.45       79.68
    TinyBERT-L6      76.87       73.44       79.73
    BERT-base        77.03       72.87       80.06

A better teacher makes a better student. With ConSERT and SimCSE as teachers, larger students exceed their teacher.

SimCSE's 78.90 is with the first token (`cls`). The code's loader pools this checkpoint by `mean`, which the paper does
not mention; the grid has both. The other two teachers are not on the hub: ConSERT's authors link
`unsup-consert-large` from their repository (mean of the last two layers), and BSL's repository has only the code
(mean). With your own folders:

    --config=configs/congen.py:paper:bert-tiny --config.teacher.pooling=mean:last2 --config.teacher.model=FOLDER --seeds=0,1,2
"""

CONFIG = "configs/congen.py:paper:bert-tiny"
GRID = [
    {"teacher.pooling": "mean", "teacher.model": "princeton-nlp/unsup-simcse-roberta-large"},
    {"teacher.pooling": "cls", "teacher.model": "princeton-nlp/unsup-simcse-roberta-large"},
]
