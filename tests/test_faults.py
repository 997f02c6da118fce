"""The quick cases of the table in docs/reliability.md: one line, the right status, and nothing left behind."""

import pytest

from faults import table
from faults.harness import observe

QUICK = [case for case in table.cases() if case.quick]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.given)
def test_a_fault_ends_in_one_line(case, tmp_path, shared):
    assert not observe(case, tmp_path / "room", shared, in_process=True).wrong


def test_every_case_has_an_input_of_its_own():
    given = [case.given for case in table.cases()]
    assert len(given) == len(set(given))
