// The first lines of a dashboard in TypeScript: attaches to a process, prints its memory, then what happens in it.
//
//     npm install @grpc/grpc-js @grpc/proto-loader typescript @types/node
//     npx tsc --module nodenext --skipLibCheck docs/clients/dashboard.ts
//     node docs/clients/dashboard.js proto /run/memscope/memscoped.sock 4242

import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

const [protos, socket, pid] = process.argv.slice(2);
const options = { includeDirs: [protos], keepCase: true, longs: Number, oneofs: true };
const described = loader.loadSync("memscope/v1/memscope.proto", options);
const { memscope } = grpc.loadPackageDefinition(described) as any;
const client = new memscope.v1.Memscope(`unix:${socket}`, grpc.credentials.createInsecure());
const ask = (call: string, request: object): Promise<any> =>
    new Promise((answered, failed) =>
        client[call](request, (error: Error | null, answer: any) => (error ? failed(error) : answered(answer))));

await ask("Attach", { pid: { pid } });
for (const { device, allocated_bytes } of (await ask("Stats", { pid })).devices) {
    console.log(JSON.stringify({ device, allocated_bytes }));
}
for await (const event of client.Events({ pid })) {
    console.log(JSON.stringify({ event: event.body, time_unix_ns: event.time_unix_ns }));
}
