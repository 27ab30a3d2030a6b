"""custom: tables in comma- or tab-separated values, with the columns of IFBench's prompts."""

from __future__ import annotations

import csv
import io
import re

from rlvr.verifiers.ifbench.table import check

_CITY = ["ID", "Country", "City", "Year", "Count"]
_PRODUCT = ("ProductID", "Category", "Brand", "Price", "Stock")
_STUDENT = ("StudentID", "Subject", "Grade", "Semester", "Score")
_SPECIAL = re.compile(r"[^\w\s]")


@check("custom:csv_city")
def csv_city(text: str) -> bool:
    """A heading of ID, Country, City, Year, Count, and seven rows of five fields, with commas between."""
    rows = _rows(text, ",")
    return len(rows) == 8 and rows[0] == _CITY and all(len(row) == 5 for row in rows)


@check("custom:csv_special_character")
def csv_special_character(text: str) -> bool:
    """A heading of ProductID to Stock, fourteen rows of five fields, one field in quotes with a special character.

    As published, rows behind the first such field may have other numbers of fields.
    """
    rows = _rows(_keep_quotes(text), ",")
    if not _heads(text, _PRODUCT, r",[ \t]*") or len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(_quotes_special(field) for field in row):
            return True
    return False


@check("custom:csv_quotes")
def csv_quotes(text: str) -> bool:
    """A heading of StudentID to Score, and three rows; five fields each, all in double quotes, tabs between."""
    rows = _rows(_keep_quotes(text), "\t")
    if not _heads(text, _STUDENT, r"\t *") or len(rows) != 4:
        return False
    return all(len(row) == 5 and all(_in_quotes(field.strip()) for field in row) for row in rows)


def _rows(text: str, delimiter: str) -> list[list[str]]:
    """The rows of a table; none where it cannot be read, as with a field of more than 131,072 characters."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def _keep_quotes(text: str) -> str:
    """Make quotes part of the fields."""
    return text.replace('"', '"""')


def _heads(text: str, columns: tuple[str, ...], between: str) -> bool:
    pattern = between.join(f'(?:{name}|"{name}")' for name in columns)
    return re.fullmatch(pattern, text.split("\n", 1)[0].strip()) is not None


def _quotes_special(field: str) -> bool:
    line = field.split("\n", 1)[0]
    return line.startswith('"') and _SPECIAL.search(line, 1, max(1, line.rfind('"'))) is not None


def _in_quotes(field: str) -> bool:
    return field.startswith('"') and field.endswith('"')
