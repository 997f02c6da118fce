"""LMX-KD, as section 4.3 and Table 2 of SimTDE (Xie et al., SIGIR 2023) have it."""

from paper_tables import Stage, facts
from paper_tables.simtde import BASE_ROW, NLI_ROWS

LMX_KD = facts("""
SimTDE Table 2, LMX-KD-384-L12(384): a small BERT | student.layers=, student.kind=fresh, student.width=384, student.depth=12,
  student.embedding=0
ours; BERT-base's, as Table 4 calls the form BERT-BASE-384-L12(384) | student.heads=12
SimTDE section 4.3: distilled each layer from the teacher | objective.hidden_map=last
ours; the paper does not weight the layers | objective.hidden_weight=1.0
ours; sentence vectors of different widths meet through a linear layer, dropped at the end | student.head=linear,
  student.keep_head=False
""")
TABLE = {"paper": [Stage(NLI_ROWS, BASE_ROW | LMX_KD)]}
