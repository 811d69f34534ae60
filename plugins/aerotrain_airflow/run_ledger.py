"""The ledger of a run, closed: what both sides saw, merged, added up, and put into the store."""

import json
from collections.abc import Iterable

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.store import MissingError, Store
from aerotrain_airflow.recovery.goodput import Goodput, goodput_of, merged

#: Under the job's prefix: the whole ledger, and what the chief has written of it.
KEY = "ledger.json"
CHIEFS = "ledger-chief.jsonl"


def close_ledger(outside: Iterable[Event], store: Store, now: float) -> Goodput | None:
    """Write the whole ledger beside the job's result, with what an earlier try has left there.

    None where there is nothing to tell: the job does not train, and nothing happened to it.
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
    """What they left, merged; nothing where this is the first."""
    whole = json.loads(_text(store, KEY) or "{}")
    return read(json.dumps(each) for each in whole.get("entries", []))


def chiefs_ledger(store: Store) -> list[Event]:
    """What the chief has written, in all its lives."""
    return read(_text(store, CHIEFS).splitlines())


def _text(store: Store, key: str) -> str:
    try:
        return store.get(key).decode()
    except MissingError:
        return ""
