"""Validates manifests against the schemas of Kubernetes's API, of each version from 1.30 on, strictly: fields that a version does not
know are errors. Reads YAML from standard input; prints the versions, and how many manifests were looked at.
"""

import os
import re
import sys

import kubernetes_validate
import yaml

OLDEST = (1, 30)

folder = os.path.join(os.path.dirname(kubernetes_validate.__file__), "kubernetes-json-schema")
found = (re.fullmatch(r"v(\d+)\.(\d+)\.\d+-local-strict", name) for name in os.listdir(folder))
versions = sorted((int(match[1]), int(match[2])) for match in found if match)
versions = [version for version in versions if version >= OLDEST]
manifests = [manifest for manifest in yaml.safe_load_all(sys.stdin) if manifest]
# Kinds of the Prometheus operator are no part of the API; validate.mjs looks at them.
manifests = [manifest for manifest in manifests if not manifest["apiVersion"].startswith("monitoring.coreos.com/")]
for major, minor in versions:
    for manifest in manifests:
        kubernetes_validate.validate(manifest, f"{major}.{minor}", strict=True)
print(" ".join(f"{major}.{minor}" for major, minor in versions), len(manifests))
