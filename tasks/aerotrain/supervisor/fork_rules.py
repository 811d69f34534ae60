"""Which replicas may be forked from a process that has preloaded their imports.

A fork shares all results of its parent's imports. So a replica whose imports could have other
results is started by running the interpreter instead.
"""

import os
from collections.abc import Mapping

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName

#: The modules of jobs that use TensorFlow, whose imports are preloaded. A module of the user may do
#: anything on import, so it is not forked.
MODULES = (
    "aerotrain.check",
    "aerotrain.training.train",
    "aerotrain.evaluation.evaluate",
    "aerotrain.serving.export",
    "aerotrain.prediction.partition",
    "aerotrain.prediction.plan",
)

#: Those that use none. Their imports are preloaded too, but no process with TensorFlow is started
#: for them.
WITHOUT_TENSORFLOW = (
    "aerotrain.data.prepare.plan",
    "aerotrain.data.prepare.partition",
    "aerotrain.data.prepare.finalize",
    "aerotrain.prediction.finalize",
)

#: Prefixes of variables that exclude a fork: they change the results of an import, or concern
#: devices, whose drivers do not survive a fork.
NEVER_WITH = (
    "TF_USE_LEGACY_KERAS",
    "TF_GPU_",
    "TF_FORCE_GPU",
    "TF_XLA_",
    "XLA_",
    "CUDA",
    "NVIDIA_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "TPU_",
    "LD_PRELOAD",
    "LD_AUDIT",
)

#: Prefixes of other variables that an import may read: a replica is forked only from a process that
#: has the same values.
_READ_BY_IMPORTS = (
    *("PYTHON", "VIRTUAL_ENV", "PATH", "HOME", "LANG", "LC_", "TZ", "LD_", "GLIBC_", "MALLOC_"),
    *("TF_", "KERAS_", "ABSL_", "GRPC_", "ONEDNN_", "DNNL_", "OMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("GOTO_", "BLIS_", "NUMEXPR_", "NPY_"),
)

#: Variables that the imports set, whatever their values were. The children of a process that has
#: imported TensorFlow have them.
_SET_BY_IMPORTS = frozenset(
    {
        "KERAS_BACKEND",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TPU_ML_PLATFORM",
        "TPU_ML_PLATFORM_VERSION",
    }
)

#: Device files of accelerator drivers. If one exists, nothing is forked.
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/dxg")


def may_fork(job: Job, name: ReplicaName, environment: Mapping[str, str]) -> bool:
    """Whether this replica of the job may be forked from a process with ``environment``."""
    own = {**environment, **job.replica(name.role).environment}
    return (
        job.module in (*MODULES, *WITHOUT_TENSORFLOW)
        and not any(variable.startswith(NEVER_WITH) for variable in own.keys() - _SET_BY_IMPORTS)
        and not any(map(os.path.exists, _DEVICES))
        and import_variables(own) == import_variables(environment)
    )


def import_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values the results of the imports may depend on."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_BY_IMPORTS) and name not in _SET_BY_IMPORTS
    }
