package agentapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// monitoredLines is how many lines a caller may be behind before it loses some.
const monitoredLines = 1024

// Monitor streams what the agent logs from now on.
func (h *Handler) Monitor(ctx context.Context, req *hostv1.MonitorRequest,
	stream *connect.ServerStream[hostv1.MonitorResponse],
) error {
	level := hclog.LevelFromString(cmp.Or(req.GetLogLevel(), "info"))
	if level == hclog.NoLevel || level == hclog.Off {
		return call.Invalid("monitor", "log_level",
			fmt.Sprintf("%q is none of trace, debug, info, warn and error", req.GetLogLevel()))
	}
	d, err := h.Diagnosis()
	if err != nil {
		return err
	}
	lines := &monitored{lines: make(chan *hostv1.MonitorResponse, monitoredLines)}
	defer h.Follow(level, lines)()
	if err := stream.Send(&hostv1.MonitorResponse{SecretFiles: d.SecretFiles}); err != nil {
		return err
	}
	for {
		select {
		case line := <-lines.lines:
			if err := stream.Send(line); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// monitored passes lines of the log on, and counts those for which there is no room. The logger writes one at a time.
type monitored struct {
	lines chan *hostv1.MonitorResponse
	lost  int64
}

func (m *monitored) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		text := strings.ToValidUTF8(strings.TrimSuffix(string(line), "\n"), "\uFFFD")
		select {
		case m.lines <- &hostv1.MonitorResponse{Line: text, Lost: m.lost}:
			m.lost = 0
		default:
			m.lost++
		}
	}
	return len(p), nil
}
