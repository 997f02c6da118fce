"""ConGen's augmentation for the generalise view (its Table 6).

    python -m jaxdistill.sweep --grid=congen_augmentation --workdir=runs/augmentation --config.data.text=TEXT
    python -m jaxdistill.sweep --grid=congen_augmentation --workdir=runs/augmentation-tiny \\
      --config=configs/congen.py:paper:bert-tiny

STS averages (x 100) in the paper:

                                     BERT-Tiny  BERT-base
    EN-DE-EN, Google NMT               76.85      80.06
    EN-DE-EN, MBart                    71.35      75.37
    masked language model, 15 %        74.99      78.44
    synonyms                           76.01      80.01
    crop, 10 %                         76.14      79.95
    word deletion, 10 %                76.15      80.06
    delete one word                    76.14      80.02

The grid has the last three, which are computed during training, with both terms of the loss (alpha 0.5); `minilm-l3`
alone has only the control term. The others are read from a column of your file:

    --config=configs/congen.py:minilm-l3 --config.objective.alpha=0.5 --config.data.text=FILE.tsv
    --config.data.columns='(("text", "FIRST"), ("translation", "SECOND"))'
    --config.objective.generalize_view=translation,delete_words
"""

CONFIG = "configs/congen.py:minilm-l3"
GRID = {"objective.alpha": [0.5], "objective.generalize_view": ["crop", "delete_words", "delete_one_word"]}
