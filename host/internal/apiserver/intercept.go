package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"

	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/tracing"
)

// interceptor wraps every call: it checks permissions, logs changes, filters answers, adds codes to errors, and keeps
// metrics and the audit log.
type interceptor struct{ *Server }

// reauthorizeAfter: queries that run longer are authorized again before they are answered.
const reauthorizeAfter = time.Second

func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		spec, began := req.Spec(), time.Now()
		c, allowed := &call.Caller{}, false
		defer func() {
			i.calls.observe(spec.Procedure, err)
			i.calls.took(spec.Procedure, time.Since(began))
			i.record(c, spec.Procedure, req.Any(), "", allowed, err)
		}()
		need := needOf(spec.Procedure)
		if c, err = i.admit(ctx, spec.Procedure, req.Header()); err != nil {
			return nil, err
		}
		if err := need.check(c, req.Any()); err != nil {
			return nil, err
		}
		if err := holdMessage(ctx, req.Any()); err != nil {
			return nil, err
		}
		allowed = true
		i.logChange(need, spec.Procedure, c, req.Any())
		if resp, err = next(call.WithCaller(ctx, c), req); err != nil {
			attemptOf(ctx).deposed = errors.Is(err, command.ErrNotLeader)
			return nil, call.WithCode(ctx, err)
		}
		if !need.changes && time.Since(began) > reauthorizeAfter {
			if c, err = i.stillMay(ctx, c, spec, req.Header(), req.Any()); err != nil {
				allowed = false
				return nil, err
			}
		}
		if _, err := i.filter(ctx, c, req.Any(), resp.Any()); err != nil {
			return nil, call.WithCode(ctx, err)
		}
		return resp, nil
	}
}

// WrapStreamingHandler also ends the stream when the server is closed or the caller's token expires.
func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		procedure := conn.Spec().Procedure
		s := &stream{StreamingHandlerConn: conn, server: i.Server, need: needOf(procedure), caller: &call.Caller{}}
		defer func() {
			i.calls.observe(procedure, err)
			i.record(s.caller, procedure, s.request, streamEnded, s.allowed, err)
		}()
		if s.caller, err = i.admit(ctx, procedure, conn.RequestHeader()); err != nil {
			return err
		}
		// A client stream names its object in its first message, if at all, so it is checked before.
		if conn.Spec().StreamType != connect.StreamTypeServer {
			if err := s.begin(nil); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(i.closing, func() { cancel(call.ErrStopping) }) //nolint:contextcheck // the server's closing, besides the caller's context
		defer stop()
		if ends := s.caller.ExpiresAt; !ends.IsZero() && !s.need.changes {
			timer := time.AfterFunc(time.Until(ends), func() { cancel(ledger.ErrExpired) })
			defer timer.Stop()
		}
		ctx = call.WithCaller(ctx, s.caller)
		s.ctx = ctx
		return call.WithCode(ctx, next(ctx, s))
	}
}

func (i interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// stream checks and logs its request, and filters its messages.
type stream struct {
	connect.StreamingHandlerConn
	server  *Server
	need    need
	ctx     context.Context // of the call, with its caller
	caller  *call.Caller
	request any
	allowed bool
}

// begin checks the request of a stream, which is its first message.
func (s *stream) begin(msg any) error {
	s.request = msg
	if err := s.need.check(s.caller, msg); err != nil {
		return err
	}
	if err := holdMessage(s.ctx, msg); err != nil {
		return err
	}
	s.allowed = true
	procedure := s.Spec().Procedure
	s.server.logChange(s.need, procedure, s.caller, msg)
	s.server.record(s.caller, procedure, msg, streamBegan, true, nil)
	return nil
}

func (s *stream) Receive(msg any) error {
	if err := s.StreamingHandlerConn.Receive(msg); err != nil || s.allowed {
		return err
	}
	return s.begin(msg)
}

// Send removes what the caller may not see. It checks the caller each time, since a token may be deleted while a
// stream runs. Calls that change something are not cut off by that.
func (s *stream) Send(msg any) (err error) {
	if s.server.cfg.ACL != nil && !s.need.changes {
		if s.caller, err = s.server.stillMay(s.ctx, s.caller, s.Spec(), s.RequestHeader(), s.request); err != nil {
			return err
		}
	}
	if see, err := s.server.filter(s.ctx, s.caller, s.request, msg); err != nil || !see {
		return err
	}
	return s.StreamingHandlerConn.Send(msg)
}

// logChange logs a call that changes something, before it is made.
func (s *Server) logChange(n need, procedure string, c *call.Caller, msg any) {
	if !n.changes {
		return
	}
	from := []any{"uid", c.UID, "pid", c.PID}
	switch {
	case c.Cert != nil:
		from = []any{"certificate", c.Cert.String()}
	case c.Plugin != "":
		from = []any{"plugin", c.Plugin}
	}
	if c.Asker != "" {
		from = append(from, "for", c.Asker)
	}
	if c.Accessor != "" {
		from = append(from, "token", c.Name, "accessor", c.Accessor)
	}
	if c.Trace != "" {
		from = append(from, "trace_id", c.Trace)
	}
	s.log.Info("api call", append([]any{"call", c.ID, "procedure", procedure, "object", call.Shortened(object(msg))}, from...)...)
}

// object names what a request is about, without anything that could be a secret.
func object(msg any) string {
	spec := described(msg)
	if m, ok := spec.(call.Namespaced); ok && spec != msg {
		return call.Qualified(m.GetNamespace(), m.GetId())
	}
	switch m := msg.(type) {
	case interface{ GetSnapshotId() string }:
		return m.GetSnapshotId()
	case interface {
		GetNamespace() string
		GetVolumeId() string
	}:
		return call.Qualified(m.GetNamespace(), m.GetVolumeId())
	case call.Namespaced:
		return call.Qualified(m.GetNamespace(), m.GetId())
	case interface{ GetId() string }:
		return m.GetId()
	case interface{ GetAccessor() string }:
		return m.GetAccessor()
	case interface{ GetName() string }:
		return m.GetName()
	case interface{ GetPath() string }:
		return m.GetPath()
	default:
		return ""
	}
}

// recovered turns a panic into an error of its call.
func (s *Server) recovered(ctx context.Context, spec connect.Spec, _ http.Header, reason any) error {
	s.log.Error("a call panicked", append([]any{
		"procedure", spec.Procedure, "panic", reason, "stack", string(debug.Stack()),
	}, tracing.Logged(ctx)...)...)
	return connect.NewError(connect.CodeInternal, fmt.Errorf("a bug in the agent: %v", reason))
}
