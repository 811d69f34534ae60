"""The double in a process of its own: ``python -m support.kubernetes_double``.

Its pods are imagined, and run from the first. Prints one line of JSON, ``{"url": …, "kubeconfig":
…}``, and serves until its standard input is closed. ``POST /double/METHOD`` with a JSON object
calls that method of ``Control``.
"""

import json
import sys
from typing import Any

from support.kubernetes_double import statuses
from support.kubernetes_double.double import KubernetesDouble
from support.kubernetes_double.objects import Manifest


def main() -> None:
    with KubernetesDouble(everyone=statuses.running()) as double:
        double.serve_control(Control(double))
        said = {"url": double.url, "kubeconfig": str(double.kubeconfig)}
        print(json.dumps(said), flush=True)
        sys.stdin.read()


class Control:
    """The methods of the double that another process may call."""

    def __init__(self, double: KubernetesDouble) -> None:
        self._double = double

    def __call__(self, method: str, given: dict[str, Any]) -> Any:
        match method:
            case "create":
                return self._create(given["owner"], given["others"])
            case "become":
                state = getattr(statuses, given["state"])(*given.get("arguments", ()))
                return self._double.become(given["name"], state)
            case "say":
                return self._double.say(given["name"], *given["lines"])
            case "pods":
                return self._double.pods_of(given["job"])
            case "restarted":
                names = [pod["metadata"]["name"] for pod in self._double.all("pods")]
                own = [each for each in names if each.startswith(f"{given['job']}-")]
                return sum(each.endswith("-r1") for each in own) == given["replicas"]
            case "watching":
                return self._double.watching
            case "requests":
                after = self._double.requests[given.get("after", 0) :]
                return [{"verb": each.verb, "resource": each.resource} for each in after]
        raise ValueError(f"a double in another process knows no {method!r}")

    def _create(self, owner: Manifest, others: list[Manifest]) -> None:
        """Create objects that are owned by one of them."""
        uid = self._double.create(owner)["metadata"]["uid"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": uid,
        }
        for each in others:
            each["metadata"]["ownerReferences"] = [reference]
            self._double.create(each)


if __name__ == "__main__":
    main()
