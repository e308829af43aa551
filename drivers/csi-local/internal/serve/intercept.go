package serve

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// quiet are the starts of methods that are polled; they are logged for
// debugging only, unless they fail.
var quiet = []string{"Probe", "Get", "List", "NodeGet", "ControllerGet"}

// logCalls writes one line a call: method, duration and code. Requests and
// responses are written for debugging only, without secrets and mount flags.
func logCalls(log hclog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		start := time.Now()
		resp, err := next(ctx, req)
		method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
		args := []any{"method", method, "duration", time.Since(start).String(), "code", status.Code(err).String()}
		if v, ok := req.(interface{ GetVolumeId() string }); ok {
			args = append(args, "volume_id", v.GetVolumeId())
		}
		if log.IsDebug() {
			args = append(args, "request", Sanitize(req), "response", Sanitize(resp))
		}
		log.Log(level(method, err), "call", appendError(args, err)...)
		return resp, err
	}
}

func appendError(args []any, err error) []any {
	if err == nil {
		return args
	}
	return append(args, "error", status.Convert(err).Message())
}

func level(method string, err error) hclog.Level {
	if err != nil {
		return hclog.Warn
	}
	for _, prefix := range quiet {
		if strings.HasPrefix(method, prefix) {
			return hclog.Debug
		}
	}
	return hclog.Info
}

// Sanitize returns a printable form of a message without secrets (CSI: fields
// marked csi_secret) and without mount flags, which may carry some too.
func Sanitize(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return ""
	}
	m = proto.Clone(m)
	for _, c := range capabilities(m) {
		if mount := c.GetMount(); len(mount.GetMountFlags()) > 0 {
			mount.MountFlags = []string{"***stripped***"}
		}
	}
	return protosanitizer.StripSecrets(m).String()
}

// capabilities are the volume capabilities in a request or a response.
func capabilities(msg any) []*csi.VolumeCapability {
	switch m := msg.(type) {
	case interface{ GetVolumeCapability() *csi.VolumeCapability }:
		return []*csi.VolumeCapability{m.GetVolumeCapability()}
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		return m.GetVolumeCapabilities()
	case *csi.ValidateVolumeCapabilitiesResponse:
		return m.GetConfirmed().GetVolumeCapabilities()
	}
	return nil
}

// recoverPanics answers a call that panicked with Internal. The stack goes to
// the log; the panic's value may hold anything, so it goes nowhere.
func recoverPanics(log hclog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("panic", "method", info.FullMethod, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
				resp, err = nil, status.Errorf(codes.Internal, "%s: the driver has a bug, see its log", info.FullMethod)
			}
		}()
		return next(ctx, req)
	}
}
