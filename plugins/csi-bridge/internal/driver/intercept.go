package driver

import (
	"context"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pannier/pannier/sdk"
)

// call has the information that the interceptor needs about the attempt that an RPC belongs to.
type call struct {
	op      *Op
	attempt int
	// diedBefore is set if an earlier attempt at the RPC, in this operation or before, ended the driver.
	diedBefore bool
}

// DiedBefore reports whether the RPC that was just made with ctx had ended the driver at an earlier attempt, maybe one
// of an earlier operation. It is called inside Do.
func DiedBefore(ctx context.Context) bool {
	info, ok := ctx.Value(callKey{}).(*call)
	return ok && info.diedBefore
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callError is a failed RPC: how far it came, and its status from the driver or from gRPC on this side.
type callError struct {
	method   string
	status   *status.Status
	sent     bool // it was sent on a connection: the driver may have received it
	answered bool // the status is the driver's own
	died     bool // the driver ended in it once more than it may; the status says so
}

func (e *callError) Error() string              { return e.status.Message() }
func (e *callError) GRPCStatus() *status.Status { return e.status }

// uncertain reports whether the driver may have done the work without confirming it. Its own DeadlineExceeded and
// Canceled count too: the work that it gave up on may still be in progress.
func (e *callError) uncertain() bool {
	code := e.status.Code()
	return e.sent && (!e.answered || code == codes.DeadlineExceeded || code == codes.Canceled)
}

// intercept handles every RPC on the connection: it logs it and converts its error for Do. An RPC outside Do,
// which would have no deadline, is refused.
func (c *Conn) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	info, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return status.Errorf(codes.Internal, "%s was called outside Do", path.Base(method))
	}
	var (
		to              peer.Peer
		header, trailer metadata.MD
		started         = time.Now()
	)
	what := deadly{method, info.op.Key + " " + info.op.Object}
	if !mayKill(method) {
		c.asked.Store(true)
	} else {
		c.called.Store(true)
		release, err := c.deaths.admit(ctx, what)
		if err != nil {
			return err
		}
		defer release()
	}
	connection := c.deaths.connection()
	ctx, span := sdk.Span(ctx, "csi "+path.Base(method), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("pannier.driver", info.op.Driver), attribute.String("pannier.volume", info.op.Object),
		attribute.Int("pannier.attempt", info.attempt)))
	defer span.End()
	err := invoke(ctx, method, req, reply, cc,
		append(opts, grpc.Peer(&to), grpc.Header(&header), grpc.Trailer(&trailer))...)
	if err == nil {
		answer := reply.(proto.Message).ProtoReflect()
		endList(req, answer)
		err = bound(answer, info.op.Redactor)
	}
	took := time.Since(started)
	callsTotal.Add(1, info.op.Driver, path.Base(method), status.Code(err).String())
	callDuration.Observe(took.Seconds(), info.op.Driver, path.Base(method))
	c.logCall(info, method, req, reply, err, took)
	failed := &callError{
		method: method,
		status: status.Convert(err),
		sent:   to.Addr != nil,
		// Every answer has a content-type, in its header or, without a body, in its trailer; a status that gRPC
		// made on this side has neither.
		answered: len(header)+len(trailer) > 0,
	}
	c.countDeath(info, what, failed, connection)
	if err == nil {
		return nil
	}
	span.SetStatus(otelcodes.Error, failed.status.Code().String()) // the driver's text may quote a secret
	return failed
}

// countDeath records whether the driver has ended in a call.
func (c *Conn) countDeath(info *call, what deadly, ended *callError, connection int) {
	if !mayKill(what.method) {
		return
	}
	switch code := ended.status.Code(); {
	case code == codes.OK || ended.answered:
		_, _, info.diedBefore = c.deaths.of(what)
		c.deaths.survived(what)
	case ended.sent && code != codes.DeadlineExceeded && code != codes.Canceled:
		c.deaths.charge(what, connection)
		if times, _, _ := c.deaths.of(what); times >= maxDeaths {
			ended.died, ended.status = true, c.deaths.refusal(what)
		}
	}
}

// The host serves them with its own metrics.
var (
	callsTotal = sdk.NewCounter("csi_calls_total", "CSI calls to a driver that have ended, by gRPC code.",
		"driver", "rpc", "code")
	callDuration = sdk.NewHistogram("csi_call_duration_seconds", "Duration of the CSI calls to a driver.",
		[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30, 120}, "driver", "rpc")
)

// logCall writes one line for an RPC: at debug its name and result, at trace also the messages. The driver's error
// text is not logged, because it is returned.
func (c *Conn) logCall(info *call, method string, req, reply any, err error, took time.Duration) {
	args := []any{
		"driver", info.op.Driver, "rpc", path.Base(method), "code", status.Code(err).String(),
		"duration", took.Round(time.Microsecond).String(), "attempt", info.attempt,
	}
	if !c.log.IsTrace() {
		c.log.Debug("csi call", args...)
		return
	}
	hide := info.op.Redactor
	args = append(args, "request", hide.Text(sanitized(req)))
	if err == nil {
		args = append(args, "response", hide.Text(sanitized(reply)))
	}
	c.log.Trace("csi call", args...)
}

// sanitized returns a CSI message as one line of JSON without secrets: without the fields that the spec marks
// csi_secret, and without mount flags, which the spec calls possibly sensitive but does not mark.
func sanitized(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return "?"
	}
	m = proto.Clone(m)
	hideMountFlags(m.ProtoReflect())
	return protosanitizer.StripSecrets(m).String()
}

func hideMountFlags(m protoreflect.Message) {
	if mount, ok := m.Interface().(*csi.VolumeCapability_MountVolume); ok {
		for i := range mount.MountFlags {
			mount.MountFlags[i] = redacted
		}
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap(): // CSI has no map of messages
		case field.IsList():
			for i := range v.List().Len() {
				hideMountFlags(v.List().Get(i).Message())
			}
		default:
			hideMountFlags(v.Message())
		}
		return true
	})
}
