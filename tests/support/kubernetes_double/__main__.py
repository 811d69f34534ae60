"""The double in a process of its own: ``python -m support.kubernetes_double --imagined running``.

Prints one line of JSON, ``{"url": …, "kubeconfig": …}``, and serves until its standard input is
closed. ``POST /double/METHOD`` with a JSON object calls that method of ``Control``.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from support.kubernetes_double.double import KubernetesDouble, state_named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--imagined", help="the state in which imagined pods begin; else processes")
    given = parser.parse_args()
    everyone = state_named(given.imagined) if given.imagined else None
    with KubernetesDouble(given.folder, everyone=everyone, port=given.port) as double:
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
                state = state_named(given["state"], *given.get("arguments", ()))
                return self._double.become(given["name"], state, given.get("namespace", "default"))
            case "say":
                return self._double.say(given["name"], *given["lines"])
            case "watching":
                return self._double.watching
            case "requests":
                return [
                    {"at": each.at, "verb": each.verb, "resource": each.resource, "name": each.name}
                    for each in self._double.requests[given.get("after", 0) :]
                ]
        raise ValueError(f"a double in another process knows no {method!r}")

    def _create(self, owner: dict[str, Any], others: list[dict[str, Any]]) -> None:
        """Create objects that are owned by one of them."""
        made = self._double.create(owner)
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        }
        for each in others:
            each["metadata"]["ownerReferences"] = [reference]
            self._double.create(each)


if __name__ == "__main__":
    main()
