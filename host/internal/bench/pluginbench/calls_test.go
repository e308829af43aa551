package pluginbench

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/bench/goplugin"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// measureCalls makes the same call in three ways, alternately, each to a separate process.
func measureCalls(b *testing.B, r *table.Section) {
	const turns, each = 60, 200
	rig := newRig(b, "identity")
	rig.open(b)
	plugin := catalog.New(rig.host)
	server := testbin.BuildDir(b, "testdata/server")
	bare, theirs := newBare(b, server), goplugin.Start(b, server)

	ways := []struct {
		times table.Samples
		call  func() error
	}{
		{call: func() error { return read(b.Context(), bare) }},
		{call: func() error { return read(b.Context(), theirs) }},
		{call: func() error {
			return catalog.Do(b.Context(), plugin, catalog.Identity, "", func(ctx context.Context, client identity.Identity) error {
				_, err := client.Read(ctx, service.Consul{}, "secret")
				return err
			})
		}},
	}
	for turn := range measure.Turns(turns, 20*time.Second) {
		for i := range ways {
			way := &ways[(turn+i)%len(ways)]
			for range each {
				began := time.Now()
				check.NoError(b, way.call())
				if turn > 0 {
					way.times = append(way.times, time.Since(began))
				}
			}
		}
	}
	p50 := func(way int, what string) table.Row { return ways[way].times.Row(what, 0.5).In("µs", 1000) }
	r.Add(
		p50(0, "a bare gRPC call on a unix socket, p50"),
		p50(1, "through go-plugin's own client with AutoMTLS, p50"),
		p50(2, "through the host, p50"),
		ways[2].times.Row("through the host, p99", 0.99).In("µs", 1000),
		table.Minus("added by the host to a bare call, p50", p50(2, ""), p50(0, "")).Most(60),
		table.Over("ratio to go-plugin's own client, p50", p50(2, ""), p50(1, "")).Most(1.15),
		table.Row{What: "a span while traces are off", Value: spanOff(b.Context()), Unit: "ns", AtMost: 1000},
	)
}

// spanOff is what a span takes outside a trace, in nanoseconds: where traces are off, all spans are.
func spanOff(ctx context.Context) float64 {
	const spans = 1_000_000
	began := time.Now()
	for range spans {
		_, span := tracing.Span(ctx, "step stage", tracing.Workload.String("w"))
		tracing.End(span, nil)
	}
	return float64(time.Since(began)) / spans
}

func read(ctx context.Context, client identity.Identity) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := client.Read(ctx, service.Consul{}, "secret")
	return err
}

// newBare starts a plain gRPC server and connects to it.
func newBare(b *testing.B, program string) identity.Identity {
	b.Helper()
	socket := filepath.Join(shortDir(b), "bare.sock")
	cmd := exec.Command(program, "bare", socket)
	check.NoError(b, cmd.Start())
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	check.NoError(b, err)
	b.Cleanup(func() {
		_ = conn.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := identity.NewClient(conn)
	check.NoError(b, read(b.Context(), client))
	return client
}
