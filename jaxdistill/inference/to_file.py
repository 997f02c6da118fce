"""Encodes a text into a folder of parts or a file of vectors, resumably: one row per sentence or passage."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill.bars import Advance
from jaxdistill.cluster import processes
from jaxdistill.core import InputError
from jaxdistill.data.chunks import Chunking, tokens_around
from jaxdistill.data.fill_parts import Made, filled_from_text
from jaxdistill.data.part_folder import ABOUT, read_origin
from jaxdistill.data.passages import Corpus, Passage
from jaxdistill.data.sources import TEXT, local_files, read
from jaxdistill.data.tables import finished, refuse_changes, write_note
from jaxdistill.data.vectors import EMBEDDING, checked_block, write_part, write_whole
from jaxdistill.files import is_remote, is_special, local, refuse_overwriting, try_writing, without_links, writing
from jaxdistill.files.buckets import Bucket
from jaxdistill.inference import Embedder
from jaxdistill.ops.small_vectors import STEPS, Form, as_ranges, checked_dims, ranges_of
from jaxdistill.ops.unknown import unknown_id

PART_ROWS = 8192
"""Sentences per part, which are in memory together: enough for grouping by length to leave little padding. A killed run
repeats at most this many."""
CALIBRATED = PART_ROWS
"""Number of sentences, from the start of a text, whose vectors determine the ranges of int8 and centred."""
LEAST_FOR_ADVICE = 100
"""Number of sentences from which on the signs of their numbers tell something about the model."""
FORMATS = (".npy", ".parquet")


class Written(NamedTuple):
    """Counts of a finished file of vectors."""

    sentences: int
    """Number of sentences or passages."""
    truncated: int
    """Number of sentences longer than the model's maximum length."""
    cut: int
    """Tokens cut off beyond that length; not counted in `tokens`."""
    unknown: int
    """Number of unknown tokens."""
    tokens: int
    one_sided: int
    """Number of `binary` bits in dimensions whose bit is the same in nine of ten sentences of a part; 0 for other dtypes."""

    def advice(self, dims: int) -> str:
        """A line that advises against plain bits if many of them say little; else empty."""
        share = self.one_sided / max(self.sentences * dims, 1)
        if self.sentences < LEAST_FOR_ADVICE or share < 0.2:
            return ""
        return (
            f"{share:.0%} of the numbers have the same sign in nine of ten texts, so their bits say little; --dtype=centred "
            "subtracts the mean first"
        )

    def loss(self, longest: int, *, chunk_tokens: int = 0) -> str:
        """A line that says how much was cut off, and which option avoids it; empty if nothing was.

        Args:
          longest: maximum tokens of a text that the model reads.
          chunk_tokens: maximum tokens of a passage; 0: texts were whole.
        """
        if not self.truncated:
            return ""
        share, whole = self.truncated / self.sentences, self.tokens + self.cut
        option = f"a --chunk_tokens below {chunk_tokens}" if chunk_tokens else f"--chunk_tokens={longest}"
        return (
            f"{self.truncated:,} of {self.sentences:,} texts ({share:.1%}) are longer than {longest:,} tokens; their ends are "
            f"cut, {self.cut:,} of {whole:,} tokens ({self.cut / whole:.1%}); {option} keeps them as passages"
        )


def encode_file(
    embedder: Embedder,
    specs: Sequence[str],
    output: str | Path,
    *,
    column: str = TEXT,
    prompt_name: str | None = None,
    role: str = "",
    keep_text: bool = False,
    chunk_tokens: int = 0,
    dims: int = 0,
    dtype: str = "float32",
    calibrate: Sequence[str] = (),
    progress: bool = True,
    part_rows: int = PART_ROWS,
) -> Written:
    """Writes vectors of shape [sentences, dims], in float32 or a small form; resumes an earlier call that was killed.

    Args:
      specs: the text, as for training.
      output: a folder of `.parquet` parts, also in a bucket: an address or path that ends in `/`, or a folder that an earlier
        call began. Or a `.npy` or `.parquet` file, which only a single process can write; it appears once it is complete.
      column: column of the sentences, if the text is a table.
      prompt_name: name of one of the model's prompts; None: its default one.
      role: `query` or `document`, whose prompt is used instead; empty: no role.
      keep_text: write the sentences beside their vectors; not for `.npy`.
      chunk_tokens: above 0, not for `.npy`: encode passages of at most this many tokens, special tokens and prompt included,
        and write their text, the id of the whole text, and their start and end in it.
      dims: number of leading dimensions to keep, normalised to unit length; 0: all.
      dtype: one of `small_vectors.STORED_AS`; for any but float32, vectors are normalised to unit length first.
      calibrate: text whose first `CALIBRATED` sentences determine the ranges of int8 and centred; empty: the text `specs`.
      part_rows: number of sentences computed and written together; a killed call repeats at most this many.

    Raises:
      InputError: text that cannot be read, an output that cannot be written or has other inputs, or a vector that is not finite.
    """
    place, whole = _target(output, keep_text=keep_text, chunk_tokens=chunk_tokens)
    # First, because it refuses an unknown prompt or a cross-encoder before any text is read.
    prefix = embedder.prefix(prompt_name, role)
    text = Corpus(specs, column, chunking_for(embedder, chunk_tokens, prefix) if chunk_tokens else None)
    checked_dims(dims, embedder.width, dtype)
    if calibrate and dtype not in STEPS:
        raise _without_ranges(dtype)
    sample = Corpus(calibrate, column, text.chunking) if calibrate else text
    with processes.agreed() as origin:
        origin |= origin_of(embedder, text, column=column, prefix=prefix)
        origin |= {"calibrate": sample.digest} if calibrate else {}
    columns = () if whole and whole.suffix == ".npy" else _columns(text, keep_text or chunk_tokens > 0)
    small = {"dims": dims, "dtype": dtype} if dims or dtype != "float32" else {}
    origin |= {"columns": [*columns, EMBEDDING]} | small
    if isinstance(place, Path):
        refuse_overwriting(place, local_files(specs))
    if written := _finished(place, whole, origin):
        return written
    begun = partial(_begun_form, _unfinished(whole) if whole else place, origin)
    form = _form(embedder, sample, prefix, begun=begun, dims=dims, dtype=dtype)
    options: dict[str, Any] = {"form": form, "progress": progress, "part_rows": part_rows}
    if whole:
        return _encode_whole(embedder, text, whole, origin, columns=columns, **options)
    return encode_parts(embedder, text, place, origin, columns=columns, **options)


def _target(output: str | Path, *, keep_text: bool, chunk_tokens: int) -> tuple[Path | Bucket, Path | None]:
    """The output, and the same path if it is one file. Raises `InputError` for a file that cannot be written."""
    place = _place(output)
    if isinstance(place, Bucket) or is_folder(output):
        return place, None
    _check_file(place, "--keep_text" if keep_text else f"--chunk_tokens={chunk_tokens}" if chunk_tokens else "")
    return place, without_links(place)


def _finished(parts: Path | Bucket, whole: Path | None, origin: Mapping[str, Any]) -> Written | None:
    """The counts of a whole file that is complete; raises `InputError` if a file or parts of other inputs would be replaced."""
    if whole:
        counts = finished(whole, origin)
        return Written(**counts) if counts else None
    if noted := read_origin(parts):
        made_from = {name: noted[name] for name in noted.keys() - {"form", "rows", "part_rows"}}
        refuse_changes(parts if isinstance(parts, Path) else parts.address, made_from, origin)
    return None


def _without_ranges(dtype: str) -> InputError:
    other = "centred" if dtype == "binary" else "int8"
    return InputError(f"--calibrate determines ranges, which {dtype} does not have; omit it, or give --dtype={other}.")


def _form(
    embedder: Embedder, sample: Corpus, prefix: str, *, begun: Callable[[], Mapping[str, Any]], dims: int, dtype: str
) -> Form | None:
    """The form in which to store vectors; None: as the model gives them. All processes of a run call this together.

    Args:
      begun: returns the form of the parts that an earlier call began.
    """
    if not dims and dtype == "float32":
        return None
    kept, ranges = dims or embedder.width, None
    if dtype in STEPS:
        numbers = None
        if processes.is_first():  # alone: other processes' ranges may differ by rounding, and so may other devices'
            noted = begun()
            is_same = (noted.get("dims"), noted.get("dtype")) == (kept, dtype)
            numbers = noted["ranges"] if is_same else ranges_of(_sampled_vectors(embedder, sample, prefix), kept, dtype)
        ranges = as_ranges(processes.gathered(numbers)[0])
    return Form(dims=kept, dtype=dtype, ranges=ranges)


def _begun_form(parts: Path | Bucket, origin: Mapping[str, Any]) -> Mapping[str, Any]:
    """The form of the parts that an earlier call of the same origin began; empty if there are none."""
    noted = {}
    with contextlib.suppress(OSError):  # whoever writes the parts says why they cannot be read
        noted = read_origin(parts) or {}
    return noted.get("form", {}) if noted == {**noted, **origin} else {}


def _sampled_vectors(embedder: Embedder, sample: Corpus, prefix: str) -> Float[np.ndarray, "n e"]:
    texts = [prefix + passage.text for passage in islice(sample.passages(), CALIBRATED)]
    ids = [np.asarray(encoding.ids, np.int32) for encoding in embedder.model.encodings(texts)]
    return checked_block(embedder.encode_ids(ids), 0, embedder.width)


def _encode_whole(embedder: Embedder, text: Corpus, output: Path, origin: Mapping[str, Any], **options: Any) -> Written:
    """Writes one file with a note of what it was made from, from parts in a hidden folder beside it."""
    with writing(output):
        try_writing(output)
    unfinished = _unfinished(output)
    written = encode_parts(embedder, text, unfinished, origin, **options)
    write_whole(unfinished, output, partial(write_note, output, origin=origin, counts=written._asdict()))
    shutil.rmtree(unfinished)
    return written


def _unfinished(output: Path) -> Path:
    """The hidden folder with the parts of a file."""
    return output.with_name(f".{output.name[:200]}.parts")


def _columns(text: Corpus, wants_text: bool) -> tuple[str, ...]:
    """Columns of a table besides the vectors."""
    return (*text.kept, *(TEXT,) * wants_text)


def is_folder(output: str | Path) -> bool:
    """Whether an output is a folder of parts: its name ends in `/`, or an earlier call began it."""
    return str(output).endswith("/") or (not is_remote(output) and (local(output, "--output") / ABOUT).is_dir())


def _place(output: str | Path) -> Path | Bucket:
    return Bucket(output) if is_remote(output) and is_folder(output) else local(output, "--output")


def _check_file(output: Path, needs_table: str) -> None:
    """Raises `InputError` for a file that cannot be written, or not by several processes."""
    if output.is_dir():
        raise InputError(f"--output={output} is a folder; name a file, or --output={output}/ for a folder of parts.")
    if is_special(output):
        raise InputError(f"--output={output} is a device or pipe; name a file.")
    if output.suffix not in FORMATS:
        raise InputError(f"--output={output} must end in .npy, .parquet or /, for a folder of parts.")
    if needs_table and output.suffix != ".parquet":
        raise InputError(f"{needs_table} needs a table: --output={output.with_suffix('.parquet')}.")
    if processes.count() > 1:
        raise InputError(
            f"several processes can only write a folder of parts; give --output={output.with_suffix('')}/."
        )


def encode_parts(
    embedder: Embedder,
    text: Corpus,
    place: Path | Bucket,
    origin: Mapping[str, Any],
    *,
    columns: Sequence[str] = (),
    form: Form | None = None,
    progress: bool = True,
    part_rows: int = PART_ROWS,
) -> Written:
    """Writes the missing parts of a folder of `.parquet` parts. The processes of a run share the work.

    Args:
      origin: the result of `origin_of`.
      columns: fields of `Passage` to write besides the vectors.
      form: form in which to store the vectors; None: float32, as the model gives them.

    Raises:
      InputError: as `filled_from_text`.
    """
    of_form = {"form": json.loads(json.dumps(dataclasses.asdict(form)))} if form else {}
    origin = {**origin, **of_form, "columns": [*columns, EMBEDDING]}
    make = partial(_part, embedder, form, columns, origin["prompt"], unknown_id(embedder.model.tokenizer))
    parts = filled_from_text(place, origin, text, text.passages, make=make, part_rows=part_rows, shown=progress)
    counts = parts.counts()
    return Written(*(counts.get(name, 0) for name in ("rows", *Written._fields[1:])))


def _part(
    embedder: Embedder,
    form: Form | None,
    columns: Sequence[str],
    prompt: str,
    unknown: int | None,
    rows: range,
    passages: Sequence[Passage],
    advance: Advance,
) -> Made:
    """Encodes the passages of a part; returns the function that writes them, and counts."""
    encodings = embedder.model.encodings([prompt + passage.text for passage in passages])
    ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
    block = checked_block(embedder.encode_ids(ids, advance=advance), rows.start, embedder.width)
    counts = {
        "truncated": sum(bool(encoding.overflowing) for encoding in encodings),
        "cut": sum(
            len(part) - sum(part.special_tokens_mask) for encoding in encodings for part in encoding.overflowing
        ),
        "unknown": sum(int((row == unknown).sum()) for row in ids),
        "tokens": sum(map(len, ids)),
        "one_sided": 0,
    }
    if form and form.dtype == "binary":
        above = np.mean(block[:, : form.dims] > 0, axis=0)
        counts["one_sided"] = len(block) * int(np.sum(np.abs(above - 0.5) > 0.4))
    cells = {name: [getattr(passage, name) for passage in passages] for name in columns}
    return partial(write_part, columns=cells, block=block, form=form), counts


def chunking_for(embedder: Embedder, chunk_tokens: int, prefix: str) -> Chunking:
    """How to split texts into passages for a model, as `data.chunk_tokens` does; raises `InputError` if it cannot read them.

    Args:
      chunk_tokens: maximum tokens of a passage, including special tokens and the prompt `prefix`.
    """
    model = embedder.model
    around = tokens_around(model.tokenizer, [prefix])
    if not around < chunk_tokens <= model.max_length:
        raise InputError(
            f"--chunk_tokens={chunk_tokens} must be from {around + 1} (one token besides special tokens and prompt) to "
            f"{model.max_length} (the maximum length of {model.source}, which --max_length raises up to its positions)."
        )
    return Chunking(tokenizer=model.tokenizer, most=chunk_tokens - around)


def origin_of(embedder: Embedder, text: Corpus, *, column: str = TEXT, prefix: str = "") -> dict[str, object]:
    """Everything that determines the vectors, except the devices."""
    facts: dict[str, object] = {
        "model": embedder.model.digest(),
        "max_length": embedder.model.max_length,
        "prompt": prefix,
        "input": text.digest,
        "column": column,
        "batch_size": embedder.batch_size,
        "precision": embedder.compute_dtype.name,
    }
    return facts | ({"passage_tokens": text.chunking.most} if text.chunking else {})


def sentences(specs: Sequence[str], column: str) -> Iterator[str]:
    """Yields the texts of all rows."""
    return (text for (text,) in read(specs, {TEXT: column}))
