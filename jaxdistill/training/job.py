"""Runs one training from its config to an exported student: build, train, export, report."""

from collections.abc import Sequence

from jaxdistill.cluster import processes
from jaxdistill.config import Config
from jaxdistill.data.sources import content_digest, is_hub, split_specs
from jaxdistill.files import parts
from jaxdistill.files.folders import refuse_foreign
from jaxdistill.training.console import kept, say
from jaxdistill.training.final_scores import final_models, final_scores_of
from jaxdistill.training.finish import finish
from jaxdistill.training.loop import train
from jaxdistill.training.metrics import Callback
from jaxdistill.training.overview import print_overview, timed
from jaxdistill.training.paper import repeated
from jaxdistill.training.run import Run, teachers_by_name
from jaxdistill.training.setup.build import build
from jaxdistill.training.setup.dev import retrieval_files
from jaxdistill.training.setup.student import write_student
from jaxdistill.workdir.bucket import Workdir
from jaxdistill.workdir.folder import (
    DEV_SCORE,
    EXPORT,
    LENGTH,
    STEPS,
    TEXT_FILES,
    claim_workdir,
    note_inputs,
    refuse_other_inputs,
)


def run_training(
    config: Config,
    place: Workdir,
    *,
    dry_run: bool,
    command: str,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Runs the job; every process of a multi-host run calls it, and only the first prints and writes."""
    leads, workdir = processes.is_first(), place.folder
    with kept(command) as keep_in:
        with processes.agreed() as facts:
            parts.use(config.run.parts)
            claim_workdir(workdir, config, write=False)
            refuse_foreign(workdir / EXPORT, advice="Move it, or give another --workdir.")
            paper = repeated(config)
            run = build(config, workdir, progress=leads)
            read = digests(run)
            # The student is left out: a resumed run reads it from the workdir.
            inputs = {name: digest for name, digest in read.items() if name != "content of student.model"}
            if not any(map(is_hub, split_specs(config.data.text))) and run.text.store.source_digest:
                inputs[TEXT_FILES] = run.text.store.source_digest
            inputs |= {LENGTH: str(run.text.store.max_length), DEV_SCORE: run.dev.best or "none"}
            refuse_other_inputs(workdir, inputs)
            # Compared between the processes as this block ends, before the first step.
            facts.update(read)
        run = timed(run)
        if config.run.minutes:
            inputs |= {STEPS: str(run.program.steps)}
        teacher_scores = print_overview(run)
        if dry_run:
            say("dry run: stopped before step 1")
            return
        # Not before: a dry run writes nothing, and everything that can be refused has been.
        with place.held():
            if leads:
                claim_workdir(workdir, config, write=True)
                note_inputs(workdir, inputs)
                write_student(run.models.student, workdir)
                keep_in(workdir)
            processes.wait("the workdir is claimed")
            outcome = train(run, place, progress=leads, callbacks=callbacks)
            models = final_models(run, outcome)
            final = {name: final_scores_of(run, name, model) for name, model in models.items()}
            if leads:
                finish(run, outcome, models, teacher_scores, final=final, paper=paper, command=command)
            processes.wait("finished")


def digests(run: Run) -> dict[str, str]:
    """Digests, by name, of inputs that must be the same in all processes of a run."""
    evals = run.config.evals
    files: dict[str, Sequence[str]] = {
        "evals.pairs": split_specs(evals.pairs),
        "evals.agreement": split_specs(evals.agreement),
        "evals.entities": split_specs(evals.entities),
        "evals.retrieval": [str(path) for of_set in retrieval_files(evals) for path in of_set],
    }
    files |= run.config.teacher.files
    contents = {name: content_digest(specs) for name, specs in files.items() if specs}
    contents |= {f"{name}.model": model.digest() for name, model in teachers_by_name(run.models.teachers).items()}
    contents |= {f"labeller {number}": digest for number, digest in enumerate(run.models.labeller_digests, start=1)}
    contents["student.model"] = run.models.student.digest()
    contents["data.text"] = run.text.store.content_digest
    return {f"content of {name}": digest[:12] for name, digest in contents.items()}
