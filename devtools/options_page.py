"""``python -m devtools.options_page``: docs/options.md, from the declarations in the code."""

import json
from dataclasses import fields

from aerotrain.contract.options import Option, Section, options_of
from aerotrain.contract.retention import RetentionPolicy
from aerotrain_airflow.params import OPTIONS
from aerotrain_airflow.settings import Settings

_OF_RETENTION = ("Params of the DAG `retention`, and flags of `aerotrain retention`.", "")


def page() -> str:
    """The text of docs/options.md: every option and setting, with its default and its meaning."""
    lines = [
        "# Options",
        "",
        "Params of every training pipeline: fields of the trigger form, keys of `conf` over REST,",
        "and keyword arguments of `training_params`, which sets a pipeline's own defaults. Those",
        "marked † are set in the DAG file, as keyword arguments of `prepare` and `train`. All are",
        "flags of the commands.",
        "`make docs` writes this page.",
    ]
    declared = {**OPTIONS, **options_of(RetentionPolicy)}
    for section in Section:
        lines += [
            "",
            f"## {section}",
            "",
            *(_OF_RETENTION if section is Section.RETENTION else ()),
            "| option | type | default | meaning |",
            "|---|---|---|---|",
        ]
        for name, each in declared.items():
            if each.option.section is section:
                mark = "" if each.option.in_form else " †"
                default = json.dumps(each.default, ensure_ascii=False)
                help_ = each.option.full_help.replace("\n", "<br>").replace("|", "\\|")
                lines.append(f"| `{name}`{mark} | {_values(each.option)} | `{default}` | {help_} |")
    lines += [
        "",
        "## Settings",
        "",
        "Of the administrator, in the section `[aerotrain]` of `airflow.cfg` or as environment",
        "variables `AIRFLOW__AEROTRAIN__STORE` and so on. Some concern one launcher only.",
        "",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    for setting in fields(Settings):
        default = setting.metadata["default"]
        shown = "" if callable(default) else f"`{json.dumps(default)}`"
        lines.append(f"| `{setting.name}` | {shown} | {setting.metadata['description']} |")
    return "\n".join(lines) + "\n"


def _values(option: Option) -> str:
    """The type of an option's value, and its bounds."""
    if option.choices:
        return ", ".join(f"`{each}`" for each in option.choices)
    bounds = {"≥": option.minimum, ">": option.above, "≤": option.maximum}
    said = [f"{sign} {value:g}" for sign, value in bounds.items() if value is not None]
    return ", ".join([option.kind.value, *said, *(["or null"] if option.optional else [])])


if __name__ == "__main__":
    print(page(), end="")
