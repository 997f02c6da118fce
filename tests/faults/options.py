"""Options out of range."""

from faults.harness import Case, Ended, Room


def option(name: str, value: object, says: str = "") -> Case:
    """A training with one option that must be refused by its name, before anything is made."""

    def train(room: Room) -> Ended:
        return room.train(**{name.replace(".", "__"): value})

    return Case(f"`{name}={value}`", train, says=says or rf"{name}=", quick=True)


CASES = [
    option("data.batch_size", "many", says="many"),
    option("run.precision", "float8"),
]
