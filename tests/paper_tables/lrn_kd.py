"""LRN-KD, as section 4.3 and Table 2 of SimTDE (Xie et al., SIGIR 2023) have it."""

from paper_tables import Stage, facts
from paper_tables.simtde import BASE_ROW, NLI_ROWS

LRN_KD = facts("""
SimTDE Table 2, LRN-KD-768-L2(768): the last 2 layers at full width | student.layers=last:2, student.embedding=0
SimTDE section 4.3: after BERT-PKD, which has no token loss | objective.alpha=0.0
ours; the paper does not weight the layers | objective.hidden_weight=1.0
""")
TABLE = {"paper": [Stage(NLI_ROWS, BASE_ROW | LRN_KD)]}
