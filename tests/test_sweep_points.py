"""Points of a sweep before it trains: options that some configs lack, and points that would fail."""

import json

from jaxdistill import sweep
from jaxdistill.config import flat
from jaxdistill.workdir.folder import claim_workdir

from program import refused, tiny_arguments

TINY = "configs/congen.py:tiny"


def test_an_option_that_one_of_several_configs_lacks_is_given_to_the_others_and_that_is_said(capsys):
    specs = [TINY, "l2.py:tiny"]
    given, chosen = ["--config.objective.queue_size=8"], [{"objective.alpha": alpha} for alpha in (0.5, 0.25)]
    planned = sweep.plan(specs, given, chosen)
    assert [point.shown for point in planned] == [
        "config=congen:tiny objective.alpha=0.5 run.seed=0",
        "config=congen:tiny objective.alpha=0.25 run.seed=0",
        "config=l2:tiny run.seed=0",
    ]
    assert planned[0].stages[0].objective["queue_size"] == 8 and len(sweep.base_options(specs, given)) == 2
    sweep.say_who_takes(specs, ["objective.alpha", "run.steps"])
    line = "objective.alpha is given to the configs that have it, not to l2:tiny\n"
    assert capsys.readouterr().out == line


def test_a_dry_run_says_which_points_would_fail(tmp_path, capsys):
    plain = tiny_arguments(tmp_path)
    arguments = [
        *plain,
        f"--workdir={tmp_path / 'w'}",
        "--grid=optimizer.learning_rate=0.1;student.model=/absent,teacher",
    ]
    assert "1 of 2 points would fail" in refused(sweep, [*arguments, "--dry_run"], capsys)


def test_a_seed_is_that_of_every_stage():
    (point,) = sweep.plan(["ckd.py:tiny-two-stage"], [], [{"run.seed": 3, "stage2.run.steps": 2}])
    assert [stage.run.seed for stage in point.stages] == [3, 3] and point.stages[1].run.steps == 2
    assert point.shown == "stage2.run.steps=2 run.seed=3"
    both = sweep.plan(["ckd.py:tiny-two-stage", TINY], ["--config.all.run.precision=float32"], [{"run.seed": 4}])
    assert {stage.run.seed for point in both for stage in point.stages} == {4}
    assert {stage.run.precision for point in both for stage in point.stages} == {"float32"}


def test_a_stage_that_an_earlier_point_has_trained_is_not_trained_again(tmp_path, monkeypatch):
    trained = []

    def train(point, folder):
        for stage, place in zip(point.stages, sweep.stage_folders(point, folder), strict=True):
            if not place.exists():
                trained.append((place.name, point.stages[0].run.steps, stage.run.steps, stage.run.seed))
                claim_workdir(place, stage, write=True)
                (place / "export").mkdir()
                scores = {"student after": {"pairs/spearman": 0.5}}
                content = {"config": flat(stage), "best_metric": "pairs/spearman", "scores": scores}
                (place / "results.json").write_text(json.dumps(content))
        return 0

    monkeypatch.setattr(sweep, "train_point", train)
    grid = "--grid=stage2.run.steps=2,3;stage1.run.steps=4,5"
    sweep.main(["--config=ckd.py:tiny-two-stage", grid, "--seeds=0,1", f"--workdir={tmp_path}/sweep"])
    first = [("stage1", steps, steps, seed) for steps in (4, 5) for seed in (0, 1)]
    second = [("stage2", steps, own, seed) for own in (2, 3) for steps in (4, 5) for seed in (0, 1)]
    assert sorted(trained) == sorted(first + second)
