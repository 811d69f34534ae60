"""What a run costs: the core hours of its replicas by role, from its event log."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from aerotrain.contract.errors import SpecError
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.launch.size import QUEUED, Size


def core_hours(events: Sequence[Event], job: Job) -> dict[str, float]:
    """The hours of cores that the replicas of each role had, in all attempts at the job.

    A replica has its cores from the first process of the chief, or from its own restart, until it
    fails or its group ends. So the time in a queue does not count.
    """
    began: dict[str, float] = {}
    failed: set[str] = set()
    seconds: dict[str, float] = defaultdict(float)

    def end(replica: str, at: float) -> None:
        if replica in began:
            seconds[replica.partition("-")[0]] += at - began.pop(replica)

    for each in events:
        match each.event:
            case EventType.START if each.replica:
                for name in map(str, job.names()):
                    if name not in failed:
                        began.setdefault(name, each.at)
            case EventType.START:
                failed.clear()
            case EventType.DETECT:
                failed.add(each.replica)
                end(each.replica, each.at)
            case EventType.RESTART if each.kind != QUEUED:
                failed.discard(each.replica)
                began.setdefault(each.replica, each.at)
            case EventType.RESIZE:  # those that start then have a restart of their own
                asked = Size.of(job, [each]).names() if each.kind != QUEUED else ()
                for name in began.keys() - {*map(str, asked)}:
                    end(name, each.at)
            case EventType.END:
                for name in [*began]:
                    end(name, each.at)
    cores = {each.role.value: each.resources.cpu for each in job.replicas}
    return {role: took * cores.get(role, 0.0) / 3600 for role, took in seconds.items()}


def price_list(setting: str) -> dict[str, float]:
    """The price of a core hour by role, from ``role=price`` separated by commas.

    Raises:
        SpecError: it is not written so.
    """
    pairs = [each.partition("=") for each in setting.split(",") if each.strip()]
    try:
        return {Role(role.strip()).value: float(price) for role, _, price in pairs}
    except ValueError as error:
        raise SpecError(
            f"[aerotrain] core_prices is {setting!r} ({error}); write the price of a core hour by "
            "role, such as chief=0.05, worker=0.015"
        ) from error


def cost_of(hours: Mapping[str, float], prices: Mapping[str, float]) -> float | None:
    """The cost of these core hours; None if a role has no price."""
    if not hours or not hours.keys() <= prices.keys():
        return None
    return sum(took * prices[role] for role, took in hours.items())
