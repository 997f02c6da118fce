"""Options out of range."""

from faults.harness import Case, Ended, Room


def option(name: str, value: object, says: str = "") -> Case:
    """A training with one option that must be refused by its name, before anything is made."""

    def train(room: Room) -> Ended:
        return room.train(**{name.replace(".", "__"): value})

    return Case(f"`{name}={value}`", train, says=says or rf"{name}=", quick=True)


NUMBERS = {
    "data.batch_size": (0, -1, 10**20),
    "data.max_length": (-1,),
    "data.pack_groups": (0,),
    "data.pack_shapes": (-1, 5),
    "teacher.max_length": (-1,),
    "student.embedding": (-16,),
    "student.dropout": ("nan", 1),
    "student.drophead": (-0.1, 1),
    "optimizer.learning_rate": (0, -1, "nan", "inf"),
    "optimizer.warmup_fraction": (2, -0.1),
    "optimizer.warmup_steps": (-1,),
    "optimizer.weight_decay": (-1,),
    "optimizer.b1": (1, -0.5),
    "optimizer.b2": (1.5,),
    "optimizer.eps": (-1e-6, 0),
    "optimizer.clip_norm": ("nan", -1),
    "evals.every": (0, -5),
    "evals.patience": (-1,),
    "evals.patience_epochs": (-1, "nan"),
    "run.steps": (-1, 10**20),
    "run.epochs": ("nan", -1, "inf"),
    "run.seed": (-1, 10**20),
    "run.accumulate": (0,),
    "run.model_axis": (0,),
    "run.log_every": (0, -1),
    "run.save_every": (-1,),
    "run.keep": (0, 1),
    "objective.alpha": (1.5, "nan"),
    "objective.student_temperature": (0, "inf"),
    "objective.teacher_temperature": (-1,),
    "objective.queue_size": (0, 10**20),
}
CASES = [
    *(option(name, value) for name, values in NUMBERS.items() for value in values),
    option("data.weights", "(nan,)", says=r"data\.weights"),
    option("data.weights", "(-1.0,)", says=r"data\.weights\[0\]=-1\.0 must be above 0"),
    option("data.columns", "('en',)", says=r"data\.columns\[0\]=.* a tuple such as"),
    option("student.dims", "(0,4)", says=r"student\.dims\[0\]=0 must be at least 1"),
    option("optimizer.schedule", "square", says="allowed: linear, cosine, constant"),
    option("optimizer.decay", "none", says="allowed: matrices, all"),
    option("optimizer.lr", 1, says=r"Did you mean --config\.optimizer\.learning_rate\?"),
    option("optimiser.learning_rate", 1, says=r"Did you mean --config\.optimizer\.learning_rate\?"),
    option("run.precision", "float8", says="allowed: auto, float32, bfloat16"),
    option("teacher.kind", "later", says="available: columns, labels, live, scores, several, stored, vectors"),
    option("run.sharding", "(('kernel',('modle','')),)", says="may name each of model, data and slice once"),
    option("run.sharding", "(('kernel',('model','model')),)", says="may name each of model, data and slice once"),
    option("run.sharding", "(('(',('model','')),)", says="invalid regular expression"),
    option("run.sharding", "(('nothing',('model','')),)", says="matches no parameter"),
    option("run.sharding", "(('kernel',('model',)),)", says="matches arrays of 2"),
    option("run.sharding", "('kernel','model')", says=r"run\.sharding\[0\]="),
]
