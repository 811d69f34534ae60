"""The complete event log of a run: the events of both sides, merged, summed up and stored."""

import json
from collections.abc import Iterable

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.store import MissingError, Store
from aerotrain_airflow.goodput import Goodput, goodput_of, merged

#: Keys under the job's prefix: the complete event log, and the part that the chief writes.
KEY = "ledger.json"
CHIEFS = "ledger-chief.jsonl"


def close_ledger(outside: Iterable[Event], store: Store, now: float) -> Goodput | None:
    """Write the complete event log next to the job's result, including earlier attempts.

    Returns None, and writes nothing, where the job does not train and no event but its start was
    recorded.
    """
    seen = list(outside)
    inside = chiefs_ledger(store)
    if not inside and all(each.event is EventType.START for each in seen):
        return None
    earlier = ledger_of_earlier_tries(store)
    end = Event(event=EventType.END, at=now)
    entries = merged({*earlier, *inside, *seen, end})
    account = goodput_of(entries)
    whole = {
        "version": 1,
        **account.to_dict(),
        "entries": [json.loads(each.to_json()) for each in entries],
    }
    store.put(KEY, json.dumps(whole, indent=1).encode())
    return account


def ledger_of_earlier_tries(store: Store) -> list[Event]:
    """The merged events of earlier attempts; empty for the first one."""
    whole = json.loads(_text(store, KEY) or "{}")
    return read(json.dumps(each) for each in whole.get("entries", []))


def chiefs_ledger(store: Store) -> list[Event]:
    """The events that the chief has written, across all of its restarts."""
    return read(_text(store, CHIEFS).splitlines())


def _text(store: Store, key: str) -> str:
    try:
        return store.get(key).decode()
    except MissingError:
        return ""
