"""The policy by which retention removes what is old from a store."""

from dataclasses import dataclass
from typing import ClassVar

from aerotrain.contract.options import Section, option
from aerotrain.contract.validation import Validated


@dataclass(frozen=True, kw_only=True)
class RetentionPolicy(Validated):
    """What of each pipeline is kept; all else is removed, unless something kept was made of it."""

    TITLE: ClassVar = "retention"

    keep_days: float = option(
        90.0,
        title="Keep for (days)",
        help="Age up to which everything is kept, since it was written or last prepared.",
        section=Section.RETENTION,
        minimum=0,
    )
    keep_runs: int = option(
        20,
        title="Runs to keep",
        help="Newest runs of each pipeline that are kept at any age.",
        section=Section.RETENTION,
        minimum=1,
    )
    keep_versions: int = option(
        5,
        title="Versions to keep",
        help="Newest versions of each pipeline that are kept at any age.",
        section=Section.RETENTION,
        minimum=1,
    )
    keep_rollbacks: int = option(
        3,
        title="Rollbacks to keep",
        help="How many rollbacks, one after another, stay possible: the versions that they would "
        "serve are kept at any age, as the served one is.",
        section=Section.RETENTION,
        minimum=1,
    )
    margin_hours: float = option(
        24.0,
        title="Safety margin (hours)",
        help="Whatever was written within this time is kept, with all that it names, because a job "
        "may still use it. It must be longer than the longest time in which a job writes nothing.",
        section=Section.RETENTION,
        minimum=1,
    )
