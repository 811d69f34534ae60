"""The object store of data sets, checkpoints and results: one protocol, ``s3://`` and ``file://``.

Output is whole or absent: each object appears atomically, and the manifest of many objects is
written last. Readers trust manifests, never a listing. Nothing here needs TensorFlow or NumPy,
so that Airflow can read results with it.
"""

from aerotrain.store.errors import (
    ChangedError,
    CorruptError,
    ExistsError,
    MissingError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from aerotrain.store.manifest import (
    MANIFEST,
    Manifest,
    StoredFile,
    fetch,
    fetch_file,
    publish,
)
from aerotrain.store.opening import open_store, probe
from aerotrain.store.protocol import Store, StoredObject, checked_key

__all__ = [
    "MANIFEST",
    "ChangedError",
    "CorruptError",
    "ExistsError",
    "Manifest",
    "MissingError",
    "Store",
    "StoreFull",
    "StoreRefused",
    "StoreUnavailable",
    "StoredFile",
    "StoredObject",
    "checked_key",
    "fetch",
    "fetch_file",
    "open_store",
    "probe",
    "publish",
]
