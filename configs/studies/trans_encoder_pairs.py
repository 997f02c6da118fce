r"""Trans-Encoder's number of training pairs (its Figure 5).

    mkdir pairs
    for f in $JAXDISTILL_DATA/sts/sts1* $JAXDISTILL_DATA/sts/stsb.* $JAXDISTILL_DATA/sts/sick.*; do
      zcat $f | tail -n +2 | cut -f3,4
    done | sort -u | shuf --random-source=<(yes) > pairs/sts
    zcat $JAXDISTILL_DATA/nli/train.tsv.gz | tail -n +2 | cut -f1,2 | shuf --random-source=<(yes) > pairs/nli
    for n in 1 2 5 10 15 20; do (printf 'sentence1\tsentence2\n'; head -n ${n}000 pairs/sts) > pairs/sts-${n}k.tsv; done
    for n in 0 10 20 30 40 50; do
      (printf 'sentence1\tsentence2\n'; cat pairs/sts; head -n ${n}000 pairs/nli) > pairs/all-and-${n}k.tsv
    done
    python -m jaxdistill.sweep --grid=trans_encoder_pairs --workdir=runs/pairs

In the paper: from SimCSE-BERT-base, the average of the seven STS tests. Its text speaks of three runs with different
seeds; each point of the figure is a single run. More STS pairs usually help, up to all 37,081. Up to 30,000 additional SNLI pairs help further; beyond that the score slowly falls. The figure has no other
numbers. A data folder has 23,694 STS pairs; in place of SNLI, its nli/train.tsv.gz has pairs of SNLI and MultiNLI.
"""

CONFIG = "configs/trans_encoder.py:paper"
GRID = [
    *({"text": f"pairs/sts-{n}k.tsv"} for n in (1, 2, 5, 10, 15, 20)),
    *({"text": f"pairs/all-and-{n}k.tsv"} for n in (0, 10, 20, 30, 40, 50)),
]
