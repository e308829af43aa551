package faultydriver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// dial connects to the real driver.
func (d *Driver) dial() {
	d.t.Helper()
	conn, err := grpc.NewClient(d.config.Forward, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{ // notice a restarted driver at once
			Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond},
		}))
	if err != nil {
		d.t.Fatalf("connect to the driver behind the faulty one: %v", err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	d.behind = conn
}

// forward lets the real driver do the work. method is, for example, /csi.v1.Node/NodeStageVolume.
func (d *Driver) forward(ctx context.Context, method string, req any) (any, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("find method %s: %w", method, err)
	}
	reply, err := protoregistry.GlobalTypes.FindMessageByName(found.(protoreflect.MethodDescriptor).Output().FullName())
	if err != nil {
		return nil, fmt.Errorf("find the reply of %s: %w", method, err)
	}
	resp := reply.New().Interface()
	if err := d.behind.Invoke(ctx, method, req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}
