"""Renders the chart with Helm's own library, and prints what it says and makes as JSON.

usage: render.py CHART VALUES-AS-JSON
"""

import json
import sys

import helm_python

chart, values = sys.argv[1], json.loads(sys.argv[2])
findings = helm_python.lint(chart)
with helm_python.Chart.load(chart) as loaded:
    loaded.validate_schema(values)
    rendered = loaded.render(values, name="memscope", namespace="memscope")
print(json.dumps({"findings": findings, "rendered": rendered, "helm": helm_python.helm_sdk_version()}))
