"""docs/inputs.md says what ``prepare`` makes of nasty inputs: each is read, rejected or refused."""

from pathlib import Path

from support import nasty_inputs

PAGE = Path(__file__).parent.parent / "docs" / "inputs.md"


def test_the_table_of_nasty_inputs_is_what_prepare_makes_of_each() -> None:
    """No input ends in an error that is not ours, in a hang or in a crash."""
    assert len(nasty_inputs.CASES) >= 120
    assert PAGE.read_text() == nasty_inputs.page(), "run `make docs`"
