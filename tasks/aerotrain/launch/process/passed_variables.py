"""The variables of Airflow's environment that local replicas get: those listed, and no others.

Airflow's process has secrets under any name, and replicas run the code of a pipeline's author.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

#: Names, in which ``*`` stands for any characters.
PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM", "TMPDIR", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "LANG", "LANGUAGE", "LC_*", "TZ", "LD_*"),
    # What TensorFlow, Keras, their libraries and the drivers of accelerators read.
    *("TF_*", "KERAS_*", "XLA_*", "ABSL_*", "GRPC_*", "NCCL_*"),
    *("CUDA*", "NVIDIA_*", "HIP_*", "HSA_*", "ROCR_*", "TPU_*"),
    *("ONEDNN_*", "DNNL_*", "OMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "GOTO_*", "BLIS_*"),
    *("NUMEXPR_*", "NPY_*", "MALLOC_*", "GLIBC_*"),
    # How the store is reached; the credential itself comes from Airflow's connection.
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"),
    *("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"),
    *("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_EC2_METADATA_DISABLED"),
)

#: What of these is not passed: a cluster of Airflow's own process, and secrets of Terraform and of
#: NVIDIA's services.
_EXCLUDED = ("TF_CONFIG", "TF_VAR_*", "TF_TOKEN_*", "NVIDIA_*KEY*", "NVIDIA_*TOKEN*")


def passed(environment: Mapping[str, str], more: Iterable[str]) -> dict[str, str]:
    """The part of ``environment`` that replicas get: ``PASSED``, and the names in ``more``."""
    named = tuple(more)
    return {
        name: value
        for name, value in environment.items()
        if _is_any(name, named) or (_is_any(name, PASSED) and not _is_any(name, _EXCLUDED))
    }


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)
