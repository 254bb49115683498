"""docs/numerics.md defines every D2 operator, and is what the code says."""

from __future__ import annotations

import math
import re

import pytest
import torch
from docs import numerics_tables as tables

from easyscale.numerics.kernels import attention, primitives, recurrent, safe
from easyscale.numerics.kernels.catalogue import FORMS
from easyscale.numerics.kernels.formulas import FORMULAS


@pytest.fixture(scope="module")
def page() -> str:
    return tables.PAGE.read_text()


def test_every_form_is_defined_in_a_section_that_is_written_by_hand(page: str) -> None:
    defined = tables.sections(page)
    ours = (*FORMS, *recurrent.COMPOSITES, *attention.COMPOSITES)
    missing = sorted({tables.packet(name) for name in ours} - set(defined))
    assert not missing, f"docs/numerics.md defines no {', '.join(missing)}: add them to a line 'Operators:'"


def test_a_form_without_a_definition_is_noticed(page: str) -> None:
    without = page.replace("`exp`, ", "", 1)
    assert "exp" not in tables.sections(without)
    with pytest.raises(AssertionError, match=r"no section of numerics.md defines \['exp'\]"):
        tables.made(without)


def test_no_section_defines_an_operator_that_is_not_there(page: str) -> None:
    assert sorted(set(tables.sections(page)) - set(tables.forms())) == []


def test_every_safe_stock_operator_is_named(page: str) -> None:
    named = set(re.findall(r"`([^`\n]+)`", page))
    assert sorted((safe.SAFE | safe.SAFE_CPU | safe.SAFE_CUDA) - named) == []


def test_every_formula_has_its_text_and_a_check_value(page: str) -> None:
    checked = {name for name, *_, result in tables.check_values() if not math.isnan(result)}
    assert checked == set(FORMULAS)
    elsewhere = {"pow": "power", "add_scaled": "fused_for_single", "add_scaled_double": "fused", "lerp_weights": "lerp"}
    for name in FORMULAS:
        assert f"\ndef {elsewhere.get(name, name)}(" in page, name


def test_what_is_made_from_the_code_is_up_to_date(page: str) -> None:
    assert tables.made(page) == page, "run: python docs/numerics_tables.py"


@pytest.mark.parametrize("portable", [False, True])
def test_check_values_are_those_of_the_operators(portable: bool) -> None:
    primitives.use_portable(portable)
    try:
        for name, elements, numbers, wanted in tables.check_values():
            given = [torch.tensor([x], dtype=torch.float64) for x in elements]
            got = primitives.evaluate(name, given, numbers, dtype=torch.float64).item()
            assert got == wanted or (math.isnan(got) and math.isnan(wanted)), (name, elements, numbers)
    finally:
        primitives.use_portable(False)


def test_links_within_the_page_lead_somewhere(page: str) -> None:
    titles = {tables.anchor(title) for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    assert sorted(set(re.findall(r"\]\(#([\w-]+)\)", page)) - titles) == []
