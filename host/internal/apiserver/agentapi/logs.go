package agentapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/pprof"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/common/expfmt"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// longestProfile bounds the profile of the processor.
	longestProfile = time.Minute
	// diagnosisChunk is the size of a message's part of a file, in bytes.
	diagnosisChunk = 256 << 10
)

// Diagnosis is what an agent says of itself to those who look for the cause of a problem.
type Diagnosis struct {
	// Configuration is JSON, without secrets.
	Configuration []byte
	// ConfigFiles and SecretFiles are files, and folders of files: what the configuration was read from, and what has
	// secrets.
	ConfigFiles, SecretFiles []string
	// Log has the agent's last lines.
	Log []byte
}

// Diagnose streams files about the agent. One that cannot be had does not keep back the others.
func (h *Handler) Diagnose(ctx context.Context, req *hostv1.DiagnoseRequest,
	stream *connect.ServerStream[hostv1.DiagnoseResponse],
) error {
	cpu := req.GetCpu().AsDuration()
	if cpu < 0 || cpu > longestProfile {
		return call.Invalid("diagnose", "cpu", fmt.Sprintf("must be 0 to %s", longestProfile))
	}
	d, err := h.Diagnosis()
	if err != nil {
		return err
	}
	if err := stream.Send(&hostv1.DiagnoseResponse{
		ConfigFiles: d.ConfigFiles, SecretFiles: d.SecretFiles,
	}); err != nil {
		return err
	}
	for _, file := range []struct {
		name  string
		write func(w io.Writer) error
	}{
		{"configuration.json", text(d.Configuration)},
		{"agent.log", text(d.Log)},
		{"mounts.txt", h.writeMounts},
		{"metrics.txt", h.writeMetrics},
		{"goroutines.txt", func(w io.Writer) error { return pprof.Lookup("goroutine").WriteTo(w, 2) }},
		{"heap.pprof", pprof.WriteHeapProfile},
		{"cpu.pprof", func(w io.Writer) error { return profileCPU(ctx, w, cpu) }},
	} {
		if err := sendFile(stream, file.name, file.write); err != nil {
			return err
		}
	}
	return nil
}

// text returns a function that writes a text.
func text(content []byte) func(w io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// sendFile sends what write writes. It returns the stream's error.
func sendFile(stream *connect.ServerStream[hostv1.DiagnoseResponse], name string, write func(w io.Writer) error) error {
	var content bytes.Buffer
	failed := write(&content)
	for content.Len() > 0 {
		if err := stream.Send(&hostv1.DiagnoseResponse{File: name, Chunk: content.Next(diagnosisChunk)}); err != nil {
			return err
		}
	}
	if failed != nil {
		return stream.Send(&hostv1.DiagnoseResponse{File: name, Error: failed.Error()})
	}
	return nil
}

// writeMounts writes the mounts below the data directory as the agent sees them, which may be in a mount namespace of
// its own.
func (h *Handler) writeMounts(w io.Writer) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(h.DataDir))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if _, err := fmt.Fprintln(w, m.Mountpoint, m.FSType, m.Source, m.Root, m.Options,
			strings.TrimSpace(m.Optional), m.VFSOptions); err != nil {
			return err
		}
	}
	return nil
}

// writeMetrics writes the agent's metrics. Metrics that could be read are written even if others could not.
func (h *Handler) writeMetrics(w io.Writer) error {
	families, failed := h.Metrics.Gather()
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

// profileCPU writes a profile of the processor's use for a while; nothing for none.
func profileCPU(ctx context.Context, w io.Writer, during time.Duration) error {
	if during == 0 {
		return nil
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(during):
	case <-ctx.Done():
	}
	return nil
}

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
