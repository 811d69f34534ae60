"""The pod of ``serve_check``: TensorFlow Serving as a sidecar of the replica."""

from aerotrain.contract.environment import Variable
from aerotrain.contract.serving_check import GRPC_PORT, REST_PORT, SERVED, SIDECAR_MODEL
from aerotrain_airflow.kubernetes.identity import CONTAINER
from aerotrain_airflow.kubernetes.pod import SCRATCH
from aerotrain_airflow.kubernetes.template import Template

#: Not root, which is the user of TensorFlow Serving's image.
_USER = 65532


def server_pod(image: str) -> Template:
    """The pod template with a server of that image, which watches the replica's scratch disk.

    It is a sidecar: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/. So the
    pod ends when the replica does.
    """
    folder = f"{SCRATCH}/{SERVED}/{SIDECAR_MODEL}"
    server = {
        "name": "server",
        "image": image,
        "restartPolicy": "Always",
        "command": ["tensorflow_model_server"],
        "args": [
            f"--port={GRPC_PORT}",
            f"--rest_api_port={REST_PORT}",
            f"--model_name={SIDECAR_MODEL}",
            f"--model_base_path={folder}",
            "--file_system_poll_wait_seconds=1",
        ],
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH, "readOnly": True}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi"},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    replica = {"name": CONTAINER, "env": [{"name": Variable.SERVER.value, "value": "1"}]}
    return {"spec": {"initContainers": [server], "containers": [replica]}}
