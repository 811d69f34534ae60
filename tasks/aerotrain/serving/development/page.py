"""The page of a model: its inputs and outputs, and a form that sends a request."""

import html
import json
from collections.abc import Mapping
from typing import Any

from aerotrain.serving.classes import Classes
from aerotrain.serving.development.models import Loaded

#: The most classes that are named.
_SHOWN = 20

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}, version {version}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem; }}
textarea, pre {{ box-sizing: border-box; width: 100%; font: 13px/1.4 ui-monospace, monospace; }}
textarea {{ height: 18rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
td, th {{ text-align: left; padding: 0 1rem 0 0; overflow-wrap: anywhere; }}
</style></head><body>
<h1>{name}, version {version}</h1>
<table><tr><th></th><th>name</th><th>type</th><th>shape</th><th></th></tr>{rows}</table>
<h2>Request</h2>
<form><textarea aria-label="request" spellcheck="false">{request}</textarea>
<p><button>Predict</button> <span id="took"></span></p></form>
<pre id="answer" aria-live="polite"></pre>
<p>The same from a shell: <code>curl -d @request.json {address}:predict</code></p>
<script>
document.querySelector("form").addEventListener("submit", async (event) => {{
  event.preventDefault();
  const answer = document.getElementById("answer"), took = document.getElementById("took");
  const began = performance.now();
  try {{
    const response = await fetch({path_json} + ":predict",
      {{method: "POST", body: document.querySelector("textarea").value}});
    answer.textContent = await response.text();
    took.textContent = response.status + ", " + Math.round(performance.now() - began) + " ms";
  }} catch (error) {{ answer.textContent = "The server does not answer: " + error; }}
}});
</script></body></html>
"""


def page_of(name: str, loaded: Loaded, signature: Mapping[str, Any], host: str) -> str:
    """The page of a model at a server with that host and port; ``signature`` is as in metadata."""
    rows = "".join(
        f"<tr><td>{kind}</td><td>{html.escape(each)}</td>"
        f"<td>{info['dtype'].removeprefix('DT_').lower()}</td>"
        f"<td>{', '.join(dim['size'] for dim in info['tensor_shape']['dim'])}</td>"
        f"<td>{_meaning(loaded.classes.get(each)) if kind == 'output' else ''}</td></tr>"
        for kind, tensors in (("input", signature["inputs"]), ("output", signature["outputs"]))
        for each, info in sorted(tensors.items())
    )
    path = f"/v1/models/{name}"
    return _PAGE.format(
        name=html.escape(name),
        version=loaded.version,
        rows=rows,
        request=html.escape(loaded.request),
        address=html.escape(f"http://{host}{path}"),
        # A script must not contain what ends it.
        path_json=json.dumps(path).replace("<", "\\u003c"),
    )


def _meaning(classes: Classes | None) -> str:
    """What the numbers of an output mean, if it has classes."""
    if classes is None:
        return ""
    names = [html.escape(each) for each in classes.classes[:_SHOWN]]
    if classes.threshold is not None:
        return f"above {classes.threshold:g}: {names[1]}, else {names[0]}"
    more = ", …" if len(classes.classes) > _SHOWN else ""
    return f"the greatest of: {', '.join(names)}{more}"
