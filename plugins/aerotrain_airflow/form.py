"""The kinds of fields that the form of a pipeline is made of, and its sections."""

from collections.abc import Sequence

from airflow.sdk import Param

CLUSTER = "Cluster"
LAUNCHER = "Launcher"
TRAINING = "Training"
SPEED = "Speed"
DATA = "Data"
RECOVERY = "Recovery"
GATE = "Gate"


def count(title: str, description: str, *, section: str = CLUSTER) -> Param:
    return Param(
        None,
        title=title,
        description=description,
        type=["null", "integer"],
        minimum=0,
        section=section,
    )


def choice(title: str, description: str, known: Sequence[str]) -> Param:
    return Param(
        known[0],
        title=title,
        description=description,
        type="string",
        enum=list(known),
        section=SPEED,
    )


def switch(title: str, description: str, section: str) -> Param:
    return Param(False, title=title, description=description, type="boolean", section=section)


def positive(value: float, title: str, description: str, *, section: str = TRAINING) -> Param:
    return Param(
        value,
        title=title,
        description=description,
        type="number",
        exclusiveMinimum=0,
        section=section,
    )


def mapping(title: str, description: str, *, section: str = CLUSTER) -> Param:
    return Param({}, title=title, description=description, type="object", section=section)


def whole(
    value: int, title: str, description: str, minimum: int, *, section: str = TRAINING
) -> Param:
    return Param(
        value,
        title=title,
        description=description,
        type="integer",
        minimum=minimum,
        section=section,
    )
