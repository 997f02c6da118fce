"""Tables and the page of a report, by hand, and the plot of a training."""

import base64
import io
import json
import re

import pytest
from matplotlib.image import imread

from jaxdistill.evals.report import (
    Entry,
    as_text,
    read_curves,
    score_rows,
    score_table,
    stage_table,
    training_plot,
    write_page,
)

HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)> & \"quotes\" $x$ [b]:smile:"


def entry(name, average, **options):
    pairs = dict(name="pairs.tsv", gold=[0, 2, 5], similarities=[0.1, 0.4, average])
    return Entry(
        name=name,
        scores={"sts12": 0.7, "average": average, "geometry/anisotropy": 12.345},
        costs={"parameters": 22_713_216, "size_bytes": 90_868_376, "sentences_per_s": None},
        scored_pairs=pairs,
        **options,
    )


ENTRIES = [entry("teacher", 0.8), entry(HOSTILE, 0.7), Entry(name="paper", scores={"average": 0.75}, is_cited=True)]


def written(folder, entries=ENTRIES, *, sections=None, **options):
    options = {"title": HOSTILE, "teacher": "teacher"} | options
    write_page(folder / "page.html", entries, sections=sections or {}, **options)
    return (folder / "page.html").read_text()


def test_the_table_has_main_scores_then_costs_then_all_others():
    text = as_text(score_table([*ENTRIES[:1], entry("runs/a-long-name/of-a-student", 0.7), *ENTRIES[2:]]))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert lines[2:] and lines[-5:] == [
        ["STS,", "average", "of", "7", "80.00", "70.00", "75.00"],
        ["parameters", "22,713,216", "22,713,216", "–"],
        ["weights", "file", "(MB)", "90.9", "90.9", "–"],
        ["sts12", "70.00", "70.00", "–"],
        ["geometry/anisotropy", "12.3", "12.3", "–"],
    ]
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ({"average": 0.5, "sts12": 0.25, "sts12/MSRpar": 0.1}, ["STS, average of 7"]),
        ({"sts-b": 0.5, "sts12": 0.25}, ["sts-b", "sts12"]),
        ({"entity/de recall@1": 0.5, "entity/de recall@5": 0.6}, ["entity/de recall@1", "entity/de recall@5"]),
        ({"documents/average ndcg@10": 0.5, "documents/a ndcg@10": 0.5}, ["documents, nDCG@10"]),
        ({"transfer/mr": 0.5, "geometry/anisotropy": 0.5}, ["transfer/mr"]),
        ({"agreement/spearman": 0.5, "sts-b-dev": 0.5, "pairs": 0.5}, ["STS-B dev", "graded pairs", "agreement with the teacher"]),
    ],
)  # fmt: skip
def test_every_evaluation_has_main_scores(scores, labels):
    main, _, remaining = score_rows([Entry(name="a", scores=scores)])
    assert [row.label for row in main] == labels and len(main) + len(remaining) == len(scores)


def test_a_page_has_everything_in_one_file_whatever_users_write(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1, "loss": 0.5}')
    plot = training_plot(tmp_path / "m.jsonl", tmp_path / "training.png")
    page = written(tmp_path, warning=HOSTILE, sections={HOSTILE: {HOSTILE: HOSTILE}, "empty": {}}, plot=plot)
    assert "<script" not in page and "<img src=x" not in page and "default-src 'none'" in page
    addresses = re.findall('(?:src|href)="(.*?)"', page)
    assert len(addresses) == 3 and all(address.startswith("data:image/png;base64,") for address in addresses)
    for address in addresses:
        assert imread(io.BytesIO(base64.b64decode(address.partition(",")[2]))).std() > 0
    assert page.count("<summary>") == 2 and ">empty<" not in page


def test_shares_are_of_the_teacher_and_neither_its_own_nor_a_papers(tmp_path):
    assert re.findall("<small>(.*?)</small>", written(tmp_path)) == ["", "87.5%", ""]
    assert "<small>" not in written(tmp_path, teacher="")


def test_the_plot_of_a_training_is_a_picture_also_without_curves(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1}')
    image = imread(training_plot(tmp_path / "m.jsonl", tmp_path / "out" / "training.png", title="$\\x$ 中文"))
    assert image.shape[0] > 600 and image.shape[1] > 900 and image.std() > 0.01


def test_curves_are_the_loss_and_every_dev_score_with_each_step_once(tmp_path):
    rows = [
        {"step": 0, "qnli-dev/auc": 0.5, "sts-b-dev/spearman": 0.1, "retrieval-dev/ndcg@10": 0.2},
        {"step": 2, "loss": 5.0, "sentences_per_s": 9.0},
        {"step": 2, "loss": 3.0},  # a resumed run writes a step again
        {"step": 4, "loss": float("nan")},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    scores = {"qnli-dev/auc": [(0, 0.5)], "sts-b-dev/spearman": [(0, 0.1)], "retrieval-dev/ndcg@10": [(0, 0.2)]}
    assert read_curves(tmp_path / "m.jsonl") == {"loss": [(2, 3.0)], **scores}


def test_stages_have_their_gain_and_the_papers_score_where_one_repeats_a_paper():
    common = dict(form="bi", student="s", metric="dev", before=0.5, sts=None, paper=None)
    rows = [
        dict(common, number=1, after=0.512, no_gain=""),
        dict(common, number=2, after=0.5, no_gain="NO GAIN: dev was"),
    ]
    text = as_text(stage_table(rows))
    assert "+1.20" in text and text.count("NO GAIN") == 1 and "paper" not in text
    text = as_text(stage_table([*rows, dict(common, number=3, after=None, no_gain="", paper=0.7832)]))
    assert "paper's STS" in text and "78.32" in text
