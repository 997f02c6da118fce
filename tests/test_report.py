"""The page of a report: its tables by hand, and in a real browser its plots, sorting, width and silence."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from jaxdistill.core import InputError
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.reporting import page as report
from jaxdistill.reporting.figures import BINS, Entry, Examples, figures
from jaxdistill.reporting.plots import Curves
from jaxdistill.reporting.tables import Costs

PAIRS, HOSTILE = 60, "<script>document.title = 'taken'</script><img src=x onerror=alert(1)> & \"quotes\" </script>"
PHONE = 390
NAMES = ("teacher", "small", f"own {HOSTILE}")


def entry(number: int) -> Entry:
    """A model with everything that can be shown; the scores fall with its number."""
    gold = np.linspace(0.0, 5.0, PAIRS)
    found = np.clip(gold / 5 + np.random.default_rng(number).normal(0, 0.1, PAIRS), -1, 1)
    return Entry(
        name=NAMES[number],
        scores={
            "average": 0.8 - 0.1 * number,
            "transfer/average": 0.5 + 0.1 * number,
            "sts12/MSRpar": 0.3,
            "geometry/alignment": 0.2 + 0.01 * number,
            "geometry/uniformity": -2.0,
        },
        costs=Costs(
            parameters=9_000_000 // (number + 1),
            size_bytes=36_000_000 // (number + 1),
            sentences_per_s=100.0 * (number + 1),
        ),
        examples=Examples(
            scored_pairs=ScoredPairs(
                name="pairs.tsv", gold=gold.tolist(), similarities=found.tolist(), pairs=[(HOSTILE, "rain")] * PAIRS
            ),
            curves=Curves(
                loss=[(step, 1 / step) for step in range(1, 8)], metrics={"pairs/spearman": [(0, 0.5), (7, 0.6)]}
            )
            if number
            else None,
        ),
        failed={"nli/snli": HOSTILE} if number else {},
    )


ENTRIES = [entry(number) for number in range(len(NAMES))]
REPORT = report.Report(
    title=HOSTILE,
    entries=ENTRIES,
    warning=HOSTILE,
    teacher="teacher",
    facts={"Data": HOSTILE},
    protocols={"sts": HOSTILE},
    absent=[HOSTILE],
)


def drawn(entries=ENTRIES, **options):
    options = {"teacher": "teacher", "score": "average", "heading": "STS"} | options
    return {figure.id: figure for figure in figures(entries, **options)}


def test_the_best_of_a_column_is_marked_and_retention_is_a_share_of_the_teacher():
    table = report.headline(ENTRIES, "teacher")
    assert list(table.headings) == ["STS, average of 7", "transfer", "parameters", "weights (MB)", "sentences/s"]
    cells = {name: [(cell.text, cell.is_best, cell.retention) for cell in row] for name, row in table.rows}
    assert cells["teacher"] == [
        ("80.00", True, ""), ("50.00", False, ""), ("9,000,000", False, ""), ("36.0", False, ""), ("100", False, "")
    ]  # fmt: skip
    assert cells["small"][:2] == [("70.00", False, "87.5%"), ("60.00", False, "120.0%")]
    assert [cell[1] for cell in cells[NAMES[2]]] == [False, True, True, True, True]


def test_equal_scores_are_both_best_and_one_model_is_not_marked():
    twins = [
        dataclasses.replace(ENTRIES[0], name=name, scores={"average": 0.8 + 1e-6 * len(name)}) for name in ("a", "bb")
    ]
    assert [row[0].is_best for _, row in report.headline(twins, "").rows] == [True, True]
    assert not any(cell.is_best for _, row in report.headline(twins[:1], "").rows for cell in row)


def test_a_model_without_a_score_has_a_dash_and_is_never_best():
    table = report.headline([*ENTRIES[:2], Entry(name="failed", scores={})], "teacher")
    assert [(cell.text, cell.value) for cell in dict(table.rows)["failed"]] == [("–", None)] * 5


def test_without_the_average_of_sts_single_sets_are_shown():
    table = report.headline([Entry(name="a", scores={"sts-b": 0.5, "sts12": 0.25, "sts12/MSRpar": 0.1})], "")
    assert list(table.headings) == ["sts12", "sts-b"]
    assert report.headline([Entry(name="a", scores={})], "").rows == [("a", [])]


@pytest.mark.parametrize(
    ("scores", "headings"),
    [
        ({"bitext/average recall@1": 0.5, "tatoeba.en-de/en-de recall@1": 0.5}, ["translations, recall@1"]),
        ({"tatoeba.en-de/en-de recall@1": 0.5}, ["tatoeba.en-de/en-de recall@1"]),
        ({"entity/de recall@1": 0.5, "entity/de recall@5": 0.6}, ["entity/de recall@1"]),
        ({"documents/a ndcg@10": 0.5, "documents/a map": 0.4}, ["documents/a ndcg@10"]),
        ({"documents/average ndcg@10": 0.5, "documents/a ndcg@10": 0.5}, ["documents, nDCG@10"]),
        ({"transfer/mr": 0.5, "geometry/anisotropy": 0.5}, ["transfer/mr"]),
        ({"agreement/spearman": 0.5, "sts-b-dev": 0.5, "pairs": 0.5}, ["graded pairs", "STS-B dev", "agreement with the teacher"]),
    ],
)  # fmt: skip
def test_every_group_has_columns(scores, headings):
    assert list(report.headline([Entry(name="a", scores=scores)], "").headings) == headings


def test_only_what_was_measured_is_drawn_and_the_page_says_what_is_lacking():
    bare = [Entry(name="a", scores={"average": 0.5}, costs=Costs(parameters=100))]
    assert list(drawn(bare)) == ["size"]
    page = report.html_page(report.Report(title="t", entries=bare))
    assert "Not measured: gold scores" in page and "--tasks=geometry" in page and "score and size;" not in page


def test_pairs_of_a_later_model_alone_are_not_said_to_be_lacking():
    """As where the teacher's scores come from its student's run."""
    entries = [Entry(name="teacher", scores={}), ENTRIES[1]]
    assert "Not measured: gold scores" not in report.html_page(report.Report(title="t", entries=entries))


def test_the_histogram_counts_every_pair_of_every_model():
    for trace in drawn()["similarities"].data:
        assert len(trace["x"]) == BINS and sum(trace["y"]) == PAIRS


def test_each_set_of_documents_has_a_bar_of_each_model_that_it_was_measured_for():
    known = {"documents/one ndcg@10": 0.25, "reranked documents/one ndcg@10": 0.5, "documents/one map": 0.1}
    found = drawn([Entry(name="a", scores=known), Entry(name="b", scores={"average": 0.5})])["documents"].data
    assert [(bars["name"], bars["x"], bars["y"]) for bars in found] == [("a", ["one", "reranked one"], [25.0, 50.0])]


def test_the_teacher_is_grey_and_the_others_differ():
    colors = {trace["name"]: trace["marker"]["color"] for trace in drawn()["size"].data}
    assert len(set(colors.values())) == 3 and colors["teacher"] == "#4a4a4a"


def test_names_are_the_shortest_ends_that_differ():
    specs = ["package:gt/model", "runs/a/export", "runs/b/export", "tiny", "runs/a/export+runs/b/export"]
    assert list(report.short_names(specs).values()) == ["gt/model", "a/export", "b/export", "tiny", "a/export+b/export"]
    assert list(report.short_names(["x/a", "y/a", "a"]).values()) == ["x/a", "y/a", "a"]
    assert list(report.short_names(["runs/a/", "x/c/export/", "b", "b/"]).values()) == ["a", "c/export", "b", "b/"]


def test_without_a_teacher_no_model_is_called_one():
    page = report.html_page(report.Report(title="t", entries=[Entry(name="", scores={"average": 0.5})]))
    assert "<small>teacher</small>" not in page


def test_forms_for_other_runtimes_have_a_table_where_there_are_any():
    rows = [{"form": "onnx/model.onnx", "batch 32": "210"}, {"form": HOSTILE, "batch 32": "190"}]
    page = report.html_page(dataclasses.replace(REPORT, forms=rows)).replace(report.javascript(), "")
    table = page[page.index('<table id="forms">') :]
    assert "<td>onnx/model.onnx</td><td>210</td>" in table and "<script>document.title" not in table
    assert "Forms for other runtimes" not in report.html_page(REPORT)


def test_whatever_a_user_wrote_is_text_and_the_page_asks_nothing_of_the_network():
    page = report.html_page(REPORT)
    own = page.replace(report.javascript(), "")
    assert "<script>document.title" not in own and "<img" not in own
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//""", own) and "default-src 'none'" in own


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="could not be written"):
        report.write_page(REPORT, tmp_path / "file" / "index.html")


@pytest.fixture(scope="module")
def chromium():
    """A headless browser that keeps everything that its console says."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.fail("Chromium is not there; launch/test.sh installs it, or: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


def opened(browser, page, width):
    """The page at this width, when all of it is drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.body.dataset.drawn"))
    return browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return report.write_page(REPORT, tmp_path_factory.mktemp("report") / "index.html")


@pytest.mark.parametrize("width", [1200, PHONE])
def test_the_browser_draws_every_point_and_says_nothing(chromium, page, width):
    browser = opened(chromium, page, width)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") == []
    assert browser.title == HOSTILE
    plots = drawn()
    assert len(plots) == 3 + 1 + 2 + 2 + 1
    assert browser.execute_script("return document.body.dataset.drawn") == str(len(plots))
    for name, figure in plots.items():
        shapes = browser.execute_script(
            """const traces = [...document.getElementById(arguments[0]).querySelectorAll(".scatterlayer .trace")];
            return traces.map((trace) => [trace.querySelectorAll(".points path").length,
              ...[...trace.querySelectorAll("path.js-line")].map((line) => line.getTotalLength())]);""",
            name,
        )
        assert len(shapes) == len(figure.data), name
        for (points, *lines), trace in zip(shapes, figure.data, strict=True):
            assert points == (len(trace["x"]) if "markers" in trace["mode"] else 0), name
            assert len(lines) == ("lines" in trace["mode"]) and all(length > 10 for length in lines), name


def test_the_histogram_in_the_browser_has_a_step_for_each_bin(chromium, page):
    lines = opened(chromium, page, 1200).execute_script(
        """return [...document.querySelectorAll("#similarities .scatterlayer path.js-line")].map((line) => line.getAttribute("d"))"""
    )
    steps = [len(re.findall("H", line)) for line in lines]
    # From the middle of a bin to its edge and from there to the next middle: two pieces between neighbours.
    assert steps == [2 * (BINS - 1)] * len(NAMES)


@pytest.mark.parametrize("width", [1200, PHONE])
def test_the_page_is_as_wide_as_the_screen(chromium, page, width):
    browser = opened(chromium, page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    right = "return Math.max(...[...document.querySelectorAll('figure, .answers, h1, h3, p, dl')].map((e) => e.getBoundingClientRect().right))"
    assert browser.execute_script(right) <= width


def test_a_click_on_a_heading_sorts(chromium, page):
    browser = opened(chromium, page, 1200)

    def click(heading):
        browser.find_elements(By.CSS_SELECTOR, "#headline thead button")[heading].click()
        state = [th.get_attribute("aria-sort") for th in browser.find_elements(By.CSS_SELECTOR, "#headline thead th")]
        assert sum(value is not None for value in state) == 1
        rows = browser.find_elements(By.CSS_SELECTOR, "#headline tbody tr")
        return state[heading], [row.find_element(By.TAG_NAME, "td").get_attribute("data-value") for row in rows]

    teacher, small, own = NAMES
    assert click(1) == ("descending", [teacher, small, own])
    assert click(1) == ("ascending", [own, small, teacher])
    assert click(2) == ("descending", [own, small, teacher])
    assert click(0) == ("ascending", [own, small, teacher])
    assert click(3) == ("descending", [teacher, small, own])


def test_the_data_of_a_page_is_json_of_finite_numbers(page):
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page.read_text(), re.S)[1]
    refuse = {"parse_constant": lambda name: pytest.fail(f"{name} in the data")}
    assert [figure["id"] for figure in json.loads(text, **refuse)] == list(drawn())
