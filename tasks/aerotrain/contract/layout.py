"""Where everything is in the store: the folders and the names of all objects of this project.

Each pipeline has a folder, whose URL is the ``store`` of its jobs::

    runs/RUN/TASK/            what the job of a task writes; a mapped one has one more level
        job.json result.json lease.json events.json replicas/ logs/
        model.json started_from.json checkpoints/ events-chief.jsonl progress.jsonl
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

RUNS, DATASETS, LATEST, VERSIONS = "runs", "datasets", "latest", "serving"
PREDICTIONS, CODE, REUSE, WATCHED = "predictions", "code", "reuse", "watched"

#: Of any job: its description, what it returned, the lease of its writer, and its event log.
JOB, RESULT, LEASE, RUN_LOG = "job.json", "result.json", "lease.json", "events.json"
#: The folder of what each replica reports, and the log files of callbacks.
REPLICAS, LOGS = "replicas", "logs"
#: The record of the job whose result was taken instead.
REUSED = "reused.json"

#: Of a training: the manifest of the model, and of that from which it started; its checkpoints.
MODEL, STARTED_FROM, CHECKPOINTS = "model.json", "started_from.json", "checkpoints"
#: In a checkpoint, the words of the rows of embeddings.
VOCABULARIES = "beside/vocabularies.json"
#: The chief's event log, the curves, and the evaluator's results.
CHIEF_LOG, CURVES, EVALUATIONS = "events-chief.jsonl", "progress.jsonl", "evaluations"
TENSORBOARD, TENSORBOARD_VALIDATION = "tensorboard", "tensorboard/validation"

#: Of an evaluation.
METRICS, CARD, CARD_DATA = "metrics.json", "card.html", "card.json"

#: Of a data set or of predictions: how it is made, its finished partitions, what was rejected.
PLAN, PARTS, QUARANTINE = "plan.json", "parts", "quarantine/"
#: Of a data set: its columns, the statistics of its columns, and pages of them.
SCHEMA, STATISTICS = "schema.json", "statistics.json"
PICTURES, PAGE = "pictures.json", "statistics.html"
#: Of predictions: the folder of files.
DATA = "data"

#: In the folder of versions: which one is served, its history, and which ones are being removed.
ALIAS, PROMOTIONS, REMOVALS = "aliases/serving.json", "aliases/promotions", "aliases/removals"


def dataset_key(fingerprint: str) -> str:
    """The folder of a data set."""
    return f"{DATASETS}/{fingerprint}"


def latest_key(name: str) -> str:
    """The object that says which data set of that name is the newest."""
    return f"{LATEST}/{name}.json"


def predictions_key(fingerprint: str) -> str:
    """The folder of predictions."""
    return f"{PREDICTIONS}/{fingerprint}"


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
