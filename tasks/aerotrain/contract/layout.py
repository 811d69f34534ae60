"""Where everything is in the store: the folders and the names of all objects of this project.

Each pipeline has a folder, whose URL is the ``store`` of its jobs::

    runs/RUN/TASK/            what the job of a task writes; a mapped one has one more level
        job.json result.json lease.json events.json size.json replicas/ logs/
        model.json started_from.json checkpoints/ events-chief.jsonl events-group.jsonl
        progress.jsonl
        evaluations/ tensorboard/                                        of a training
        metrics.json card.json card.html                                 of an evaluation
    datasets/FINGERPRINT/     plan.json parts/ schema.json statistics.* quarantine/ manifest.json
    parts/FINGERPRINT.json    where a partition of a data set was written
    latest/NAME.json          which data set of that name is the newest
    serving/NUMBER/           a version, with manifest.json; aliases/ says which one is served
    predictions/FINGERPRINT/  plan.json parts/ data/ quarantine/ manifest.json
    code/SHA256.tar.gz        the user's modules of runs
    reuse/SHA256.json         the results of jobs, by a hash of their inputs
    watched/                  which new files were reported

A folder with ``manifest.json`` (``aerotrain.store.MANIFEST``) is complete.

The ids of Airflow's runs may contain slashes, spaces, colons and dots. Names are made of them that
a store, a folder or the DNS takes: safe characters are kept, and a short hash of the original is
added if anything was changed, so that two originals never share a name.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

RUNS, DATASETS, LATEST, VERSIONS = "runs", "datasets", "latest", "serving"
PREDICTIONS, CODE, REUSE, WATCHED = "predictions", "code", "reuse", "watched"

#: Of any job: its description, what it returned, the lease of its writer, and its event log.
JOB, RESULT, LEASE, RUN_LOG = "job.json", "result.json", "lease.json", "events.json"
#: The size that a user has set for it.
SIZE = "size.json"
#: The folder of what each replica reports, and the log files of callbacks.
REPLICAS, LOGS = "replicas", "logs"
#: The record of the job whose result was taken instead.
REUSED = "reused.json"

#: Of a training: the manifest of the model, and of that from which it started; its checkpoints.
MODEL, STARTED_FROM, CHECKPOINTS = "model.json", "started_from.json", "checkpoints"
#: The event logs of the chief and, while it is followed, of its replica group.
CHIEF_LOG, GROUP_LOG = "events-chief.jsonl", "events-group.jsonl"
#: The curves, and the evaluator's results.
CURVES, EVALUATIONS = "progress.jsonl", "evaluations"
TENSORBOARD, TENSORBOARD_VALIDATION = "tensorboard", "tensorboard/validation"

#: Of an evaluation.
METRICS, CARD, CARD_DATA = "metrics.json", "card.html", "card.json"

#: Of a data set or of predictions: how it is made, its finished partitions, what was rejected.
PLAN, PARTS, QUARANTINE = "plan.json", "parts", "quarantine/"
#: Of a data set: its columns, the statistics of its columns, and a page of them.
SCHEMA, STATISTICS, PAGE = "schema.json", "statistics.json", "statistics.html"
#: Of predictions: the folder of files.
DATA = "data"

#: In the folder of versions: which one is served, its history, and which ones are being removed.
ALIAS, PROMOTIONS, REMOVALS = "aliases/serving.json", "aliases/promotions", "aliases/removals"


@dataclass(frozen=True)
class ItemKind:
    """The entries of a pipeline's ``folder``, each of which retention keeps or removes as a whole.

    ``names`` is a pattern of their names. ``documents`` are the names of those that say what an
    entry was made of.
    """

    title: str
    folder: str
    names: str
    documents: tuple[str, ...] = ()
    has_manifest: bool = False
    is_folder: bool = True


_FINGERPRINT, _SHA256, _MANIFEST = r"[0-9a-f]{8,64}", r"[0-9a-f]{64}", "manifest.json"
_OF_JOBS = (JOB, MODEL, STARTED_FROM, RESULT)

#: By folder; in this order a plan of a retention lists them.
ITEM_KINDS: Mapping[str, ItemKind] = {
    kind.folder: kind
    for kind in (
        ItemKind("run", RUNS, r".+", _OF_JOBS),
        ItemKind("version", VERSIONS, r"[1-9]\d*", (_MANIFEST,), has_manifest=True),
        ItemKind("data set", DATASETS, _FINGERPRINT, (PLAN,), has_manifest=True),
        ItemKind("predictions", PREDICTIONS, _FINGERPRINT, (PLAN,), has_manifest=True),
        ItemKind("code archive", CODE, rf"{_SHA256}\.tar\.gz", is_folder=False),
        ItemKind("reuse record", REUSE, rf"{_SHA256}\.json", is_folder=False),
    )
}

#: A folder of ``runs/`` without any of these was written by something else.
OF_RUNS = {*_OF_JOBS, LEASE, RUN_LOG}


def dataset_key(fingerprint: str) -> str:
    """The folder of a data set."""
    return f"{DATASETS}/{fingerprint}"


def latest_key(name: str) -> str:
    """The object that says which data set of that name is the newest."""
    return f"{LATEST}/{name}.json"


def code_key(sha256: str) -> str:
    """The archive of modules with that hash."""
    return f"{CODE}/{sha256}.tar.gz"


def reuse_key(sha256: str) -> str:
    """The record of the result of a job whose inputs have that hash."""
    return f"{REUSE}/{sha256}.json"


def status_key(replica: str) -> str:
    """The report of a replica, in the folder of its task."""
    return f"{REPLICAS}/{replica}.json"


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
