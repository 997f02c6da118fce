"""Six kinds of student in every form and runtime that holds them: the second table of docs/deployment.md.

  PYTHONPATH=tests:. JAXDISTILL_DATA=DATA python benchmarks/forms.py --model=gte-small --to=onnx,openvino,stablehlo,gguf

`--model` is a BERT-like sentence encoder. The students are cut from it without training, which changes no form: six of its layers
(`l6`), the same with compact tables (`compact`), a table of its token vectors and a cross-encoder. A ModernBERT and a Qwen3 are tiny and
random, from the tests; their STS-B dev says nothing and is left out.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Iterator

import jax

from jaxdistill import exports
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.surgery import resizing
from jaxdistill.training.export import weights_bytes

import encoder_cases
from tiny_models import word_table


def students(spec: str, folder: pathlib.Path) -> Iterator[tuple[str, SentenceModel]]:
    """Each student with its name."""
    model, key = load_model(spec), jax.random.key(0)
    six = resizing.from_layers(model, "even:6")
    yield "`l6`", six
    yield "`compact`", resizing.compact(six, 128, key=key, init="svd")
    yield "table", word_table(model)
    yield "cross-encoder", resizing.cross_encoder(six, key=key)
    for family in ("modernbert", "qwen3"):
        encoder_cases.write_encoder(folder / family, family)
        yield f"tiny {family}", load_model(str(folder / family), pooling="mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--to", default="onnx,openvino,stablehlo")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, model) in enumerate(students(given.model, pathlib.Path(temporary))):
            folder = pathlib.Path(temporary) / str(number)
            save(model, folder)
            held = [form for form in given.to.split(",") if not exports.form(form).refusal(model)]
            for row in exports.add(held, model, folder, size=weights_bytes(folder)):
                cells = row.cells()
                if name.startswith("tiny"):
                    cells.pop("STS-B dev", None)
                rows.append({"student": name} | cells)
                print(rows[-1], flush=True)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    print("", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n")
    for row in rows:
        print(f"| {' | '.join(row.get(column, '') for column in columns)} |")


if __name__ == "__main__":
    main()
