"""Names derived from Airflow's ids: deterministic, safe and unique.

The id of a DAG run may contain slashes, spaces, colons and dots. This module makes names for a
store, a folder or the DNS from such ids: safe characters are kept, and a short hash of the original
is added if anything was changed, so that two originals never share a name.
"""

import hashlib
import re

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
DNS_LABEL_LENGTH = 63  # RFC 1123, section 2.1

_SEGMENT = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9_+=.:-]*")
_SEGMENT_LENGTH = 80
_HASH_LENGTH = 8
_HASHED = re.compile(r"(^|-)[0-9a-f]{8}$")


def is_path_segment(text: str) -> bool:
    """Whether ``text`` is safe as one segment of a path."""
    return bool(_SEGMENT.fullmatch(text)) and len(text) <= _SEGMENT_LENGTH and ".." not in text


def path_segment(original: str) -> str:
    """``original`` as one segment of a store key or a path.

    A safe name is returned unchanged. Any other name is cleaned and gets a hash, so that ``../x``
    can neither leave its folder nor collide with another run's.
    """
    # A name that ends like a hash could collide with a generated one.
    if is_path_segment(original) and not _HASHED.search(original):
        return original
    readable = re.sub(r"[^A-Za-z0-9_+=:-]+", "-", original).strip("-")
    return f"{readable[: _SEGMENT_LENGTH - _HASH_LENGTH - 1]}-{_hash(original)}".lstrip("-")


def job_name(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """The DNS label of the job that one task instance runs, at most 40 characters long.

    It leaves 23 characters for the launcher's suffix, such as ``-worker-12``. The task comes first,
    because users look for it in a list of pods.
    """
    identity = "\0".join((dag_id, run_id, task_id, str(map_index)))
    readable = re.sub(r"[^a-z0-9]+", "-", f"{task_id}-{dag_id}".lower()).strip("-")
    if not readable[:1].isalpha():  # the name of a Service begins with a letter: RFC 1035
        readable = f"job-{readable}".rstrip("-")
    return f"{readable[:31].rstrip('-')}-{_hash(identity)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
