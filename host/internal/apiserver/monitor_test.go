package apiserver

import (
	"io"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// The agent's log is followed at a level of its own, from the call on until its end.
func TestMonitor(t *testing.T) {
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: hclog.Error})
	following := make(chan int, 2)
	h := openHost(t, func(c *parts) {
		c.Agent.Diagnosis = func() (agentapi.Diagnosis, error) {
			return agentapi.Diagnosis{SecretFiles: []string{"/key"}}, nil
		}
		c.Agent.Follow = func(level hclog.Level, lines io.Writer) func() {
			sink := hclog.NewSinkAdapter(&hclog.LoggerOptions{Level: level, Output: lines, DisableTime: true})
			log.RegisterSink(sink)
			following <- 1
			return func() { log.DeregisterSink(sink); following <- 0 }
		}
	})
	stream, err := h.client.Agent.Monitor(h.ctx, &hostv1.MonitorRequest{LogLevel: "warn"})
	check.NoError(t, err)
	if !stream.Receive() || len(stream.Msg().GetSecretFiles()) != 1 || <-following != 1 {
		t.Fatalf("first %v, %v", stream.Msg(), stream.Err())
	}
	log.Info("not this")
	log.Named("driver").Warn("this", "and", "that")
	if !stream.Receive() || stream.Msg().GetLine() != "[WARN]  driver: this: and=that" {
		t.Errorf("received %v, %v", stream.Msg(), stream.Err())
	}
	check.NoError(t, stream.Close())
	if <-following != 0 {
		t.Error("it goes on after its caller has left")
	}
	stream, err = h.client.Agent.Monitor(h.ctx, &hostv1.MonitorRequest{LogLevel: "loud"})
	check.NoError(t, err)
	stream.Receive()
	wantError(t, stream.Err(), connect.CodeInvalidArgument, "loud", "debug")
}
