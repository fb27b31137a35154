// Validates manifests of the Prometheus operator's kinds against the schemas of its custom resources. Reads a JSON list from standard
// input; prints how many there were, or fails with what is wrong.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const kinds = join(resolve(process.argv[2]), "node_modules/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1");
const manifests = JSON.parse(readFileSync(0, "utf8"));
for (const manifest of manifests) {
  const loaded = await import(pathToFileURL(join(kinds, `${manifest.kind}.js`)));
  new loaded[manifest.kind](manifest).validate();
}
console.log(manifests.length);
