"""LMX-KD, as section 4.3 and Table 2 of SimTDE (Xie et al., SIGIR 2023) have it."""

from paper_tables import Stage, cited
from paper_tables.simtde import BASE, NLI_ROWS

TABLE = {
    "paper": [
        Stage(
            NLI_ROWS,
            BASE
            | cited(
                "SimTDE Table 2, LMX-KD-384-L12(384): a small BERT",
                student__layers="",
                student__kind="fresh",
                student__width=384,
                student__depth=12,
                student__embedding=0,
            )
            | cited("ours; BERT-base's, as Table 4 calls the form BERT-BASE-384-L12(384)", student__heads=12)
            | cited("SimTDE section 4.3: distilled each layer from the teacher", objective__hidden_map="last")
            | cited("ours; the paper does not weight the layers", objective__hidden_weight=1.0)
            | cited(
                "ours; sentence vectors of different widths meet through a linear layer, dropped at the end",
                student__head="linear",
                student__keep_head=False,
            ),
        )
    ]
}
