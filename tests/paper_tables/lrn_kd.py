"""LRN-KD, as section 4.3 and Table 2 of SimTDE (Xie et al., SIGIR 2023) have it."""

from paper_tables import Stage, cited
from paper_tables.simtde import BASE, NLI_ROWS

TABLE = {
    "paper": [
        Stage(
            NLI_ROWS,
            BASE
            | cited(
                "SimTDE Table 2, LRN-KD-768-L2(768): the last 2 layers at full width",
                student__layers="last:2",
                student__embedding=0,
            )
            | cited("SimTDE section 4.3: after BERT-PKD, which has no token loss", objective__alpha=0.0)
            | cited("ours; the paper does not weight the layers", objective__hidden_weight=1.0),
        )
    ]
}
