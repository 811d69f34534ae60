"""The page of a model: its inputs and outputs, and a form that sends a request."""

import html
import json
from collections.abc import Mapping
from typing import Any

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
<table><tr><th></th><th>name</th><th>type</th><th>shape</th></tr>{rows}</table>
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


def page_of(name: str, version: int, request: str, signature: Mapping[str, Any], host: str) -> str:
    """The page of a model at a server with that host and port.

    ``signature`` is as in the metadata, ``request`` is the body of a POST.
    """
    rows = "".join(
        f"<tr><td>{kind}</td><td>{html.escape(each)}</td>"
        f"<td>{info['dtype'].removeprefix('DT_').lower()}</td>"
        f"<td>{', '.join(dim['size'] for dim in info['tensor_shape']['dim'])}</td></tr>"
        for kind, tensors in (("input", signature["inputs"]), ("output", signature["outputs"]))
        for each, info in sorted(tensors.items())
    )
    path = f"/v1/models/{name}"
    return _PAGE.format(
        name=html.escape(name),
        version=version,
        rows=rows,
        request=html.escape(request),
        address=html.escape(f"http://{host}{path}"),
        # A script must not contain what ends it.
        path_json=json.dumps(path).replace("<", "\\u003c"),
    )
