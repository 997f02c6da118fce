"""Scores are made once for the same model and sets, and again for others or when the file is damaged."""

from jaxdistill.evals import caches
from jaxdistill.evals.caches import cached_scores


def test_scores_are_made_once(tmp_path, monkeypatch):
    made = []

    def score():
        made.append(1)
        return {"sts12": 0.5}

    for _ in range(2):
        assert cached_scores(tmp_path / "scores", ["model", "sets"], score) == {"sts12": 0.5}
    assert len(made) == 1
    cached_scores(tmp_path / "scores", ["other model", "sets"], score)
    assert len(made) == 2
    for path in (tmp_path / "scores").iterdir():
        path.write_text('{"sts12": 0.')
    assert cached_scores(tmp_path / "scores", ["model", "sets"], score) == {"sts12": 0.5}
    assert len(made) == 3
    with monkeypatch.context() as other:
        other.setattr(caches, "source_digest", lambda *within: "".join(within))
        cached_scores(tmp_path / "other code", ["model", "sets"], score)
    cached_scores(tmp_path / "other code", ["model", "sets"], score)
    assert len(made) == 5
    assert len(list((tmp_path / "scores").iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path):
    (tmp_path / "scores").write_text("a file")
    assert cached_scores(tmp_path / "scores", ["model"], lambda: {"a": 1.0}) == {"a": 1.0}
