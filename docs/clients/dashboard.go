// The first lines of a dashboard in Go: attaches to a process, prints its memory, then what happens in it.
//
//	go mod init dashboard
//	protoc -I proto --go_out=. --go-grpc_out=. proto/memscope/v1/*.proto
//	go mod tidy
//	go run docs/clients/dashboard.go /run/memscope/memscoped.sock 4242
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"

	"dashboard/memscope/v1"
	"google.golang.org/grpc"
)

func main() {
	socket := os.Args[1]
	number, err := strconv.ParseUint(os.Args[2], 10, 32)
	must(err)
	pid, ctx := uint32(number), context.Background()
	// Newer names, since grpc-go 1.63: grpc.NewClient, grpc.WithTransportCredentials(insecure.NewCredentials()).
	connection, err := grpc.Dial("unix:"+socket, grpc.WithInsecure())
	must(err)
	client := memscope.NewMemscopeClient(connection)

	scope := &memscope.AttachRequest_Pid{Pid: &memscope.PidScope{Pid: pid}}
	_, err = client.Attach(ctx, &memscope.AttachRequest{Scope: scope})
	must(err)
	stats, err := client.Stats(ctx, &memscope.StatsRequest{Pid: pid})
	must(err)
	for _, device := range stats.Devices {
		show(map[string]any{"device": device.Device, "allocated_bytes": device.AllocatedBytes})
	}
	events, err := client.Events(ctx, &memscope.EventsRequest{Pid: &pid})
	must(err)
	for {
		event, err := events.Recv()
		must(err)
		fields := event.ProtoReflect()
		if kind := fields.WhichOneof(fields.Descriptor().Oneofs().ByName("body")); kind != nil {
			show(map[string]any{"event": kind.Name(), "time_unix_ns": event.TimeUnixNs})
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func show(line map[string]any) {
	must(json.NewEncoder(os.Stdout).Encode(line))
}
