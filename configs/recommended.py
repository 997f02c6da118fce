"""The best student for a budget: layers of the teacher, distilled on your text, then fine-tuned on labelled pairs.

    python -m jaxdistill.main --config=configs/recommended.py:two-stage --workdir=runs/NAME \\
      --config.stage1.data.text=TEXT --config.stage2.data.text=TRIPLETS.tsv

l6, l3, compact   the reference students of gte-small. l6 keeps six of the teacher's twelve layers, chosen on the text:
            the shape of all-MiniLM-L6-v2 (22.6M parameters), distilled on sentences, titles and passages. l3 (three of
            those layers, 17.2M) and compact (all six, with narrow feed-forward networks and compact tables, 9.4M) are
            distilled from the same stored vectors in a second stage. docs/results.md says what the text holds:
            --config.data.text=mixture.txt
l6:documents   for retrieval: l6, then 600 steps of 64 texts, including passages of up to 256 tokens and code:
            --config.stage2.data.text=documents.txt. The student is the mean of both stages
l6:retrieval   adds 1,000 steps of 256 short texts: --config.stage3.data.text=queries.txt. The student is the mean of the last two
            stages, the best for retrieval in docs/results.md
l6:e5, l6:mpnet   the same from e5-small with its prompt `query: `, or from all-mpnet-base-v2 (another tokenizer and
            width); likewise l3:e5, compact:mpnet, static:e5 and so on
l6:gte+e5, l6:gte+mpnet, l6:gte+e5+mpnet   from several teachers together; likewise l3 and compact
l6:index, l3:index, compact:index   for queries that search vectors which the teacher made, whole or cut to their first 64, 128
            or 256 numbers: `evaluate --index_model=TEACHER --dims=64,128,256`. A last stage of 2,000 steps of 256 short texts;
            of l6 (the others have one stage more): --config.stage2.data.text=queries.txt
l6:labelled, l3:labelled, compact:labelled   adds CoSENT on graded pairs as the last stage. Of l6
            (the others have one stage more): --config.stage2.data.text=pairs.tsv --config.stage2.teacher.file=scores.npy
l6:tuned, l3:tuned, compact:tuned, static:tuned   gte-small learns the graded pairs first, and then teaches:
            --config.stage1.data.text=pairs.tsv --config.stage1.teacher.file=scores.npy. All but static:tuned learn the pairs
            too, in a last stage with the same two options
static:tuned:gte+e5   gte-small and e5-small both learn the pairs, in stages 1 and 2, and then teach a table of width 384 together
domain      400 steps on passages of one subject, without labels, from l6 or another student of gte-small:
            --config.student.model=runs/l6/export --config.data.text=PASSAGES,OTHER. OTHER is other text, for what the student
            should not forget; 40 % of the rows are from there
code        for code search: six layers of gte-small read questions and the functions that answer them, learn the teacher's vectors of
            both and tell each question's function from the others: --config.data.text=code.tsv, which launch/code_text.py writes from
            your own Python. CodeSearchNet on the hub: --config.data.text=hf:sentence-transformers/codesearchnet:train:comment
            --config.data.columns='(("text","comment"),("positive","code"))'
two-stage   3 layers of all-MiniLM-L6-v2: ConGen on 115,200 sentences of your text, then fine-tuning of the best student
            on triplets with the columns text, positive, negative (a premise, a sentence it entails, one it contradicts)
simtde      about half that size, 9.3M parameters: SimTDE on 115,200 sentences, then TRIPLETS.tsv as above
short       cosine distillation instead, which learns faster at first: 52,000 sentences including the triplets
unlabelled  the first stage alone, if you have no triplets: congen.py:minilm-l3
static      a table of token vectors of width 256 instead of an encoder, from gte-small (or static:e5, static:mpnet):
            cosine distillation towards whitened vectors. sentence-transformers and model2vec load it. static:gte+e5 and so on:
            of width 384, from several teachers
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test from text to export; says nothing about quality

docs/results.md says what each ingredient gained, and which ones gained nothing.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import Stages, chosen, embedded, minilm_l3, options, set_kind
from jaxdistill.config.shipped.ckd import second_stage
from jaxdistill.config.shipped.congen import minilm_l3 as unlabelled
from jaxdistill.config.shipped.l2 import l2
from jaxdistill.config.shipped.simcse import PLAIN_TRIPLETS, VIEWS_OF_TRIPLETS
from jaxdistill.config.shipped.simtde import minilm_128_l3 as simtde
from jaxdistill.config.shipped.trans_encoder import COLUMNS as PAIRS

GTE, E5, MPNET = "thenlper/gte-small", "intfloat/e5-small", "sentence-transformers/all-mpnet-base-v2"
TEACHERS = {"gte": GTE, "e5": E5, "mpnet": MPNET}
OTHER_TEACHERS = ("e5", "mpnet")
PROMPTS = {E5: "query: "}
SEVERAL_TEACHERS = ("gte+e5", "gte+mpnet", "gte+e5+mpnet")


def fine_tuned(first: ConfigDict, *, steps: int) -> list[ConfigDict]:
    """Adds the second stage, without dropout and at a tenth of the first one's rate: more than 50 steps bring nothing."""
    second = second_stage(first, batch_size=128)
    second.data.columns = PLAIN_TRIPLETS
    second.evals.every = 50
    second.run.epochs, second.run.steps = 1.0, steps
    return [first, second]


def short() -> list[ConfigDict]:
    """256 x 128 sentences and 50 x 128 triplets are 51,968 sentences."""
    config = minilm_l3(**l2(distance="cosine"))
    config.run.steps = 256
    config.evals.every = 64
    return fine_tuned(config, steps=50)


def reference(steps: int, every: int, teachers: str = "gte", **student) -> ConfigDict:
    """Cosine distillation from one teacher or several, whose vectors are stored once for all students of a text."""
    config = options(**l2(distance="cosine"))
    config.data.batch_size, config.data.pack_groups = 128, 4
    config.data.max_length = 192
    models = [TEACHERS[name] for name in teachers.split("+")]
    config.teacher.model = ",".join(models)
    if E5 in models:
        config.teacher.prompt = "|".join(PROMPTS.get(model, "none") for model in models)
    config.teacher.max_length = 192
    set_kind(config, "teacher", "stored")
    config.student.dropout = 0.0
    config.student.update(student)
    config.optimizer.schedule = "cosine"
    config.run.steps, config.evals.every = steps, every
    return config


def l6(teachers: str = "gte") -> ConfigDict:
    config = reference(2200, 275, teachers, model="teacher", layers="greedy:6")
    if teachers == "e5":
        config.student.prompt = PROMPTS[E5]
        config.student.export_prompt = True
    elif teachers != "gte":
        # Another width than the student's, which is cut from gte-small all the same.
        config.student.update(model=GTE, head="linear", head_init="fitted")
    return config


def smaller(steps: int, teachers: str, **student) -> list[ConfigDict]:
    """A student cut from l6, on the same text and vectors."""
    first = l6(teachers)
    second = reference(steps, 100, teachers, model="previous", **student)
    second.student.prompt, second.student.export_prompt = first.student.prompt, first.student.export_prompt
    return [first, second]


def documents() -> list[ConfigDict]:
    """l6, and a second stage on longer text."""
    second = reference(600, 300, model="previous")
    second.evals.average = (0, 600)  # STS-B dev, which would choose, falls by 0.1 while retrieval gains
    second.data.batch_size = 64
    second.data.max_length = second.teacher.max_length = 256
    second.optimizer.learning_rate = 8e-4  # chosen for the mean, which gains more than the last step
    return [l6(), second]


def queries(steps: int) -> ConfigDict:
    """Short texts; each of the student's widths learns the same numbers of the teacher's vectors."""
    stage = reference(steps, steps // 2, model="previous", dims=(64, 128, 256), dims_targets="truncated")
    stage.data.batch_size = 256
    stage.data.max_length = stage.teacher.max_length = 64
    stage.student.max_length = 256  # of the measured evaluations
    return stage


def retrieval() -> list[ConfigDict]:
    """`documents`, and short texts after it."""
    last = queries(1000)
    last.evals.average = (0, 1000)
    return [*documents(), last]


FOR_RETRIEVAL = {"documents": documents, "retrieval": retrieval}


def index(stages: list[ConfigDict]) -> list[ConfigDict]:
    """Adds short texts alone, because the student of an index encodes nothing else."""
    last = queries(2000)
    last.evals.best = "last"  # STS-B dev, which would choose, says little about queries
    return [*stages, last]


def domain() -> ConfigDict:
    """A student that is close to gte-small learns passages of one subject, beside other text that keeps the rest."""
    config = reference(400, 100)
    config.data.weights = (0.6, 0.4)
    config.data.batch_size = 64
    config.data.chunk_tokens, config.data.chunk_least = 256, 16
    config.data.max_length = config.teacher.max_length = 256
    config.optimizer.learning_rate = 2e-4
    config.evals.best = "agreement/spearman"
    return config


def code() -> ConfigDict:
    """Pairs of a question and a function, one pass over the text. The teacher hides negatives that it finds as good as the answer."""
    config = reference(-1, 100, model="teacher", layers="greedy:6")
    config.objectives = ConfigDict({
        "questions": {**l2(distance="cosine"), "weight": 1.0},
        "functions": {**l2(distance="cosine", view="positive"), "weight": 1.0},
        "pairs": dict(
            kind="gist", weight=0.05, temperature=0.02, margin=0.0, candidates="all", views=VIEWS_OF_TRIPLETS[:2]
        ),
    })  # fmt: skip
    del config.objective
    config.data.columns = PLAIN_TRIPLETS[:2]
    config.data.batch_size = 64
    config.data.max_length = config.teacher.max_length = 128
    config.student.max_length = 256
    config.evals.best = "last"  # no dev set of sentences says much about code
    return config


def graded(model: str) -> ConfigDict:
    """CoSENT on graded pairs."""
    stage = options(kind="cosent", temperature=0.05)
    stage.data.columns = PAIRS
    stage.data.batch_size, stage.data.pack_groups = 64, 4
    stage.data.max_length = 64
    set_kind(stage, "teacher", "scores")
    stage.student.model, stage.student.prompt = model, PROMPTS.get(model, "")
    stage.student.dropout = 0.0
    stage.optimizer.learning_rate = 5e-5
    stage.run.steps, stage.evals.every = 249, 83
    return stage


def labelled(stages: list[ConfigDict]) -> list[ConfigDict]:
    """Adds graded pairs as the last stage."""
    return [*stages, graded("previous")]


def from_tuned(stages: list[ConfigDict], teachers: str = "gte") -> list[ConfigDict]:
    """Each teacher learns the graded pairs first, in a stage of its own."""
    before = [graded(TEACHERS[name]) for name in teachers.split("+")]
    for stage in stages:
        stage.teacher.model = ",".join(f"stage{number + 1}" for number in range(len(before)))
    return [*before, *stages]


def tuned(stages: list[ConfigDict]) -> list[ConfigDict]:
    """After a tuned teacher, the student learns the pairs at a fifth of the rate; at 5e-5, `compact` gains nothing on STS-B dev."""
    chain = labelled(from_tuned(stages))
    chain[-1].optimizer.learning_rate = 1e-5
    return chain


ADDED = {"labelled": labelled, "tuned": tuned, "index": index}
STUDENTS = {
    "l6": lambda teachers: [l6(teachers)],
    "l3": lambda teachers: smaller(1300, teachers, layers="greedy:3"),
    "compact": lambda teachers: smaller(1600, teachers, intermediate=384, embedding=128),
}


def reference_preset(name: str) -> Callable[..., Stages]:
    """The preset of a reference student, whose argument adds stages or names other teachers."""

    def preset(argument: str = "gte") -> list[ConfigDict]:
        if argument in FOR_RETRIEVAL:
            return FOR_RETRIEVAL[argument]()
        return ADDED[argument](STUDENTS[name]("gte")) if argument in ADDED else STUDENTS[name](argument)

    return preset


def table(teachers: str = "gte") -> ConfigDict:
    """A step of a table costs so little that batches are large. Vectors of several teachers fill a wider table."""
    config = reference(400, 100, teachers, model="teacher")
    width = 384 if teachers in SEVERAL_TEACHERS else 256
    set_kind(config, "student", "static", width=width)
    config.data.batch_size, config.data.pack_groups = 1024, 64
    config.teacher.whiten, config.teacher.components = 0.75, width
    config.optimizer.learning_rate, config.optimizer.weight_decay = 1e-3, 0.0
    config.optimizer.eps = 1e-8  # a rare token's gradients are below 1e-6
    return config


def static(argument: str = "gte") -> Stages:
    """A table from the named teachers; with `tuned`, they learn the graded pairs first."""
    kind, _, names = argument.partition(":")
    if kind != "tuned":
        return table(argument)
    teachers = names or "gte"
    return from_tuned([table(teachers)], teachers)


PRESETS = {
    "two-stage": lambda: fine_tuned(unlabelled(), steps=100),
    "simtde": lambda: fine_tuned(simtde(), steps=100),
    "short": short,
    "unlabelled": unlabelled,
    "static": static,
    "domain": domain,
    "code": code,
    **embedded(unlabelled),
} | {name: reference_preset(name) for name in STUDENTS}
ARGUMENTS = {name: (*ADDED, *OTHER_TEACHERS, *SEVERAL_TEACHERS) for name in STUDENTS} | {
    "static": ("tuned", "tuned:gte+e5", *OTHER_TEACHERS, *SEVERAL_TEACHERS)
}
ARGUMENTS["l6"] += tuple(FOR_RETRIEVAL)


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("recommended", PRESETS, preset, ARGUMENTS)
