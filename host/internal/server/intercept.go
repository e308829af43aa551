package server

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/host/api/proto/pannier/host/v1/hostv1connect"
)

// queries change nothing; every other call is logged.
var queries = map[string]bool{
	hostv1connect.AgentServiceStatusProcedure:           true,
	hostv1connect.AgentServiceEventsProcedure:           true,
	hostv1connect.DriverServiceListDriversProcedure:     true,
	hostv1connect.DriverServiceGetDriverProcedure:       true,
	hostv1connect.PluginServiceListPluginsProcedure:     true,
	hostv1connect.PluginServicePluginLogProcedure:       true,
	hostv1connect.TokenServiceListTokensProcedure:       true,
	hostv1connect.VolumeServiceGetVolumeProcedure:       true,
	hostv1connect.VolumeServiceListVolumesProcedure:     true,
	hostv1connect.VolumeServiceListExternalProcedure:    true,
	hostv1connect.VolumeServiceListSnapshotsProcedure:   true,
	hostv1connect.WorkloadServiceGetWorkloadProcedure:   true,
	hostv1connect.WorkloadServiceListWorkloadsProcedure: true,
}

// interceptor is what every call goes through: who may, the log, the error's
// code, the metrics.
type interceptor struct{ *Server }

func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		procedure, began := req.Spec().Procedure, time.Now()
		defer func() {
			i.calls.observe(procedure, err)
			i.calls.took(procedure, time.Since(began))
		}()
		caller := peerOf(ctx)
		if err := i.access.check(caller); err != nil {
			return nil, err
		}
		i.logChange(procedure, caller, req.Any())
		resp, err = next(ctx, req)
		return resp, withCode(ctx, err)
	}
}

// WrapStreamingHandler also ends the stream when the server is closed.
func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		procedure := conn.Spec().Procedure
		defer func() { i.calls.observe(procedure, err) }()
		caller := peerOf(ctx)
		if err := i.access.check(caller); err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(i.closing, func() { cancel(errStopping) }) //nolint:contextcheck // the server's end, beside the caller's
		defer stop()
		return withCode(ctx, next(ctx, &loggedConn{StreamingHandlerConn: conn, received: func(msg any) {
			i.logChange(procedure, caller, msg)
		}}))
	}
}

func (i interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// loggedConn tells of the request of a stream, which comes as its first message.
type loggedConn struct {
	connect.StreamingHandlerConn
	received func(msg any)
}

func (c *loggedConn) Receive(msg any) error {
	err := c.StreamingHandlerConn.Receive(msg)
	if err == nil {
		c.received(msg)
	}
	return err
}

// logChange logs a call that changes something, before it is made.
func (s *Server) logChange(procedure string, caller peer, msg any) {
	if !queries[procedure] {
		s.log.Info("api call", "procedure", procedure, "object", shortened(object(msg)), "uid", caller.uid, "pid", caller.pid)
	}
}

// object is what a request is about, without anything that could be a secret.
func object(msg any) string {
	switch m := msg.(type) {
	case interface{ GetSpec() *hostv1.VolumeSpec }:
		return qualified(m.GetSpec().GetNamespace(), m.GetSpec().GetId())
	case interface{ GetSpec() *hostv1.WorkloadSpec }:
		return qualified(m.GetSpec().GetNamespace(), m.GetSpec().GetId())
	case interface{ GetSnapshotId() string }:
		return m.GetSnapshotId()
	case interface {
		GetNamespace() string
		GetVolumeId() string
	}:
		return qualified(m.GetNamespace(), m.GetVolumeId())
	case interface {
		GetNamespace() string
		GetId() string
	}:
		return qualified(m.GetNamespace(), m.GetId())
	case interface{ GetId() string }:
		return m.GetId()
	case interface{ GetName() string }:
		return m.GetName()
	case interface{ GetPath() string }:
		return m.GetPath()
	default:
		return ""
	}
}

// maxObject is the longest name in a log line, in bytes: a request may not have
// been checked yet.
const maxObject = 2*claim.MaxID + 1

func shortened(s string) string { return s[:min(len(s), maxObject)] }

// recovered turns a bug into an error of its call.
func (s *Server) recovered(_ context.Context, spec connect.Spec, _ http.Header, reason any) error {
	s.log.Error("a call failed by a bug", "procedure", spec.Procedure, "panic", reason, "stack", string(debug.Stack()))
	return connect.NewError(connect.CodeInternal, fmt.Errorf("a bug in the agent: %v", reason))
}
