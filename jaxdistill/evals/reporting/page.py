"""Writes the report of a training or an evaluation: one HTML page with tables and figures, without scripts, to mail and archive.

The figures, and the plot of a training, are made with matplotlib. `metrics.jsonl` has a JSON object in each line, with `step` and
named numbers: `loss` at log steps, dev scores such as `agreement/spearman` or `pairs/auc` at evaluation steps.
"""

import base64
import io
import itertools
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.core.files import write_atomic, writing
from jaxdistill.evals import geometry
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.evals.reporting.tables import Entry, ScoreRow, score_rows

PAGE = "index.html"
LOSS_COLOR, METRIC_COLORS = "#3b6ea5", ("#c2573a", "#4f8a4c", "#7b5aa6", "#8a6d3b")
COLORS, TEACHER_COLOR = (*METRIC_COLORS, LOSS_COLOR, "#3f9aa0", "#b5507f", "#b8862d"), "#4a4a4a"
DEV_SCORES = ("/spearman", "/auc", "/ndcg@10", "/recall@1", "/recall@10")
"""Suffixes of the names of dev scores."""
ROLE_TEXTS = {"query": "queries", "document": "documents"}
MARKUP = re.compile(r"[\\`*\[\]<>|~&#$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that mean something in Markdown; an underscore does at the ends of words."""

Curves = Mapping[str, Sequence[tuple[int, float]]]
"""Learning curves of a run: maps `loss` and dev scores to `(step, value)` in order of step."""


class Image(NamedTuple):
    """A figure of a report."""

    title: str
    note: str
    """How to read it."""
    address: str
    """The figure itself, as a `data:` address of an SVG."""


def write_page(
    path: Path,
    entries: Sequence[Entry],
    *,
    title: str,
    sections: Mapping[str, Mapping[str, str]],
    warning: str = "",
    teacher: str = "",
    curves: Curves | None = None,
) -> Path:
    """Writes the page; returns its path. Names and sentences are escaped.

    Args:
      sections: maps headings at the end of the page to terms with their lines.
      warning: a prominent line below the title.
      teacher: name of the entry with which others are compared.
      curves: of the training that the report is about.
    """
    main, costs, others = score_rows(entries)
    page = filled(
        "report.html",
        title=title,
        warning=warning,
        models=[entry.name for entry in entries],
        teacher=teacher,
        main=[(row, _shares(row, entries, teacher)) for row in main] + [(row, None) for row in costs],
        others=[(row, None) for row in others],
        images=images(entries, teacher=teacher, curves=curves),
        sections=sections,
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, page)
    return path


def _shares(row: ScoreRow, entries: Sequence[Entry], teacher: str) -> list[str] | None:
    """Each other model's value as a percentage of the teacher's; None without a positive one."""
    of_models = list(zip(entries, row.values, strict=True))
    whole = next((value for entry, value in of_models if entry.name == teacher), None)
    if not whole or whole < 0 or row.is_plain:
        return None
    return [
        "" if value is None or entry.name == teacher or entry.is_cited else f"{value / whole:.1%}"
        for entry, value in of_models
    ]


def entries_of(content: Mapping[str, Any], scored_pairs: Mapping[str, ScoredPairs | None] | None = None) -> list[Entry]:
    """The models and rows of papers in the content of an evaluation's results file.

    Args:
      scored_pairs: maps models to graded pairs with their similarities.
    """
    names = short_names([row["model"] for row in content["models"]])
    models = [
        Entry(
            name=names[row["model"]],
            scores=row["scores"],
            # 0: none, as of an ensemble's vectors
            costs={name: row[name] or None for name in ("parameters", "size_bytes", "vector_bytes")}
            | {"sentences_per_s": row["scores"].get(geometry.RATE)},
            scored_pairs=(scored_pairs or {}).get(row["model"]),
        )
        for row in content["models"]
    ]
    return models + [Entry(name=row["label"], scores=row["scores"], is_cited=True) for row in content["papers"]]


def write_evaluation(content: Mapping[str, Any], scored_pairs: Mapping[str, ScoredPairs | None], path: Path) -> Path:
    """Writes the report of an evaluation; arguments as of `entries_of`."""
    rows = {row["model"]: row for row in content["models"]}
    failed = content["failed"] | {
        f"{unit} of {model}": why for model, row in rows.items() for unit, why in row["failed"].items()
    }
    index = {content["index_model"]: content["index_model_reading"]} if content["index_model"] else {}
    settings = {
        "Data": ", ".join(filter(None, [content["data"], *content["sets"].values()])),
        "Missing sets": " ".join(content["absent"]),
        **{f"Texts as {model} reads them": _reading(row) for model, row in (rows | index).items()},
        "Transform of vectors": content["postprocess"],
        **{row["label"]: row["tables"] for row in content["papers"]},
        "Versions": ", ".join(f"{name} {version}" for name, version in content["versions"].items()),
    }
    return write_page(
        path,
        entries_of(content, scored_pairs),
        title="Evaluation of sentence encoders",
        teacher=short_names(list(rows)).get(content["teacher"], ""),
        sections={"Failed": failed, "What was evaluated": settings, "How it was measured": content["protocol"]},
    )


def _reading(row: Mapping[str, Any]) -> str:
    """How a model, or each member of an ensemble, reads texts."""
    lines = []
    for member in row.get("members", [row]):
        prompts = {"texts": member["prompt"]} | {
            ROLE_TEXTS[role]: text for role, text in member["role_prompts"].items()
        }
        prefixes = "".join(f", {text!r} before {what}" for what, text in prompts.items() if text)
        lines.append(f"pooling {member['pooling']}, at most {member['max_length']:,} tokens{prefixes}")
    return "; ".join(lines)


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Maps models to names in tables: the shortest end of the path that is unique and not just `export` or `model`.

    An ensemble is named by its members.
    """
    members = {member for spec in specs for member in spec.split("+")}

    def short_name(spec: str) -> str:
        parts = spec.removeprefix("package:").rstrip("/").split("/")
        for count in range(1, len(parts) + 1):
            end = "/".join(parts[-count:])
            is_shared = any(other.rstrip("/").endswith(end) for other in members - {spec})
            if not is_shared and end not in ("export", "model"):
                return end
        return spec

    return {spec: "+".join(map(short_name, spec.split("+"))) for spec in specs}


def read_curves(metrics_path: str | Path) -> Curves:
    """The curves of a run; if a resumed run wrote a step again, the last value counts."""
    values: dict[str, dict[int, float]] = {"loss": {}}
    for line in Path(metrics_path).read_text(encoding="utf-8").splitlines():
        for name, value in (row := json.loads(line)).items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and "step" in row and (name == "loss" or name.endswith(DEV_SCORES)):
                values.setdefault(name, {})[row["step"]] = value
    return {name: sorted(of_steps.items()) for name, of_steps in values.items()}


def training_plot(metrics_path: str | Path, out_png: str | Path, *, title: str = "Training") -> Path:
    """Draws loss above and dev scores below against step; returns the path of the PNG."""
    figure = _learning_curves(read_curves(metrics_path), width=8.0)
    figure.suptitle(_plain(title), fontweight="bold", fontsize=11, wrap=True)
    Path(out_png).parent.mkdir(parents=True, exist_ok=True)
    _save(figure, out_png, dpi=130)
    return Path(out_png)


def images(entries: Sequence[Entry], *, teacher: str = "", curves: Curves | None = None) -> list[Image]:
    """The figures of a report that have data.

    Args:
      teacher: name of the entry to draw in grey.
      curves: of the training that the report is about.
    """
    others = [entry.name for entry in entries if entry.name != teacher]
    colors = dict(zip(others, itertools.cycle(COLORS), strict=False)) | {teacher: TEACHER_COLOR}
    drawn = []
    if curves:
        note = "The star is the best dev score. Losses of different objectives are not comparable."
        drawn.append(_image("Learning curves", note, _learning_curves(curves, width=5.5)))
    scored = [(entry.name, entry.scored_pairs) for entry in entries if entry.scored_pairs]
    every = [similarity for _, pairs in scored for similarity in pairs.similarities]
    for name, pairs in scored:
        figure, (panel,) = _canvas(height=3.4, width=4.6)
        # As pixels: a set may have thousands of pairs.
        panel.scatter(pairs.gold, pairs.similarities, s=9, alpha=0.5, linewidths=0, color=colors[name], rasterized=True)
        panel.set(xlabel="gold score", ylabel="cosine similarity", ylim=(min(every) - 0.05, max(every) + 0.05))
        note = f"{len(pairs.gold):,} pairs of {pairs.name}. A good model's points rise from left to right in a narrow band."
        drawn.append(_image(f"Gold score and similarity: {name}", note, figure))
    return drawn


def _canvas(*, height: float, width: float, panels: int = 1) -> tuple[Any, Sequence[Any]]:
    """A figure with its panels one below the other on a shared x axis; sizes in inches."""
    # Imported here: matplotlib is slow to import. A Figure without pyplot needs no display and leaves no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(panels, sharex=True, squeeze=False)[:, 0])
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _image(title: str, note: str, figure: Any) -> Image:
    svg = io.BytesIO()
    _save(figure, svg, format="svg", dpi=150, metadata={"Date": None})
    encoded = base64.b64encode(svg.getvalue()).decode("ascii")
    return Image(title, note, f"data:image/svg+xml;base64,{encoded}")


def _save(figure: Any, target: str | Path | io.BytesIO, **options: Any) -> None:
    from matplotlib import rc_context

    # Text stays text, for which a browser finds the glyphs that matplotlib's font lacks.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxdistill"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(target, **options)


def _learning_curves(curves: Curves, *, width: float) -> Any:
    figure, (top, bottom) = _canvas(height=6.4, panels=2, width=width)
    steps, losses = [step for step, _ in curves["loss"]], [loss for _, loss in curves["loss"]]
    window = max(1, len(losses) // 25)
    raw = {"alpha": 0.35, "linewidth": 1.0} if window > 1 else {"marker": "o", "markersize": 3}
    top.plot(steps, losses, color=LOSS_COLOR, label="as logged", **raw)
    if window > 1:
        last = (losses[max(0, end - window) : end] for end in range(1, len(losses) + 1))
        smooth = [sum(part) / len(part) for part in last]
        top.plot(steps, smooth, color=LOSS_COLOR, linewidth=2, label=f"mean of {window} log steps")
        top.legend(frameon=False)
    lines, scores = [], {name: series for name, series in curves.items() if name != "loss"}
    for color, (name, series) in zip(itertools.cycle(METRIC_COLORS), scores.items(), strict=False):
        steps, values = zip(*((step, 100 * value) for step, value in series), strict=True)
        best = max(range(len(values)), key=values.__getitem__)
        label = f"{_plain(name)}, best {values[best]:.2f} at step {steps[best]:,}"
        lines += bottom.plot(steps, values, color=color, marker="o", markersize=4, label=label)
        bottom.plot(steps[best], values[best], color=color, marker="*", markersize=14)
    if lines:
        figure.legend(handles=lines, frameon=False, loc="outside lower left")
    top.set_title("Training loss (lower is better)", loc="left", fontsize=11)
    bottom.set_title("Dev evaluation (higher is better)", loc="left", fontsize=11)
    top.set(ylabel="mean over sentences")
    bottom.set(xlabel="step (updates of the student)", ylabel="dev score × 100")
    return figure


def _plain(text: str) -> str:
    """The text without mathematics, which matplotlib finds between dollars."""
    return text.replace("$", r"\$")


def filled(name: str, **values: Any) -> str:
    """Fills a template of `assets/` with values; escapes them in .html. A name without a value is an error.

    Templates of Markdown write each text by one of the filters `plain`, `code` and `literal`.
    """
    # Imported here, because most programs need no template.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdistill", "core/assets"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=name.endswith(".md"),  # .html keeps the line break after a tag
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, code=code, literal=literal)
    return environment.get_template(name).render(**values)


def plain(text: str) -> str:
    """The text as Markdown that shows it as it is, in one line, also in a table."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """The text as code within a line of Markdown, also in a table; line ends become `\\n`."""
    line = "\\n".join(text.splitlines()) + "\\n" * text.endswith("\n")
    if not re.search("[`|]|^ .* $", line):
        return f"`{line}`"
    # A table would split such code, and a code span end in it or lose its spaces.
    return f"<code>{MARKUP.sub(lambda match: f'&#{ord(match[0])};', line)}</code>"


def literal(value: object) -> str:
    """The value in Python, for a block of code that it cannot end."""
    shown = f'"{value}"' if isinstance(value, str) and re.fullmatch(r"[\w ./:@+-]*", value) else repr(value)
    return shown.replace("`", "\\x60")
