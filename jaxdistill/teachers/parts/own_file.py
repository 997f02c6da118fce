"""The base class of teachers that are a file of your own targets."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxdistill.teachers.parts.teacher import Teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFile(Teacher):
    """Your own targets in a file."""

    file: str = ""
    """A `.npy` file, also at `s3://` or `gs://`, with one row per row of `data.text`: its vector, or one score for each of its
    pairs."""

    of_rows = True
    given_by = "file=FILE.npy"

    @property
    def is_given(self) -> bool:
        return bool(self.file)

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        return {"teacher.file": [self.file]}

    @property
    def shown(self) -> Sequence[str]:
        return [self.file]
