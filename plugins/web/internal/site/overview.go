package site

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"

	"github.com/pannier/pannier/plugins/web/internal/trend"
)

// overviewData is the first page.
type overviewData struct {
	Status   *hostv1.StatusResponse
	Problems []finding
	// Hidden are the checks that the user's token does not allow.
	Hidden []string
	// Unexamined is true if this host's problems are not among them.
	Unexamined bool
	Nodes      []*hostv1.Node
	Leader     string
	Voters     int
	Slack      int64
	Used       chart
	Stalled    chart
}

// Ready counts the nodes that are.
func (d overviewData) Ready() (n int) {
	for _, node := range d.Nodes {
		if node.GetStatus() == "ready" {
			n++
		}
	}
	return n
}

// DiskUsed is the part of the data directory's file system that is used, in bytes.
func (d overviewData) DiskUsed() uint64 { return d.Status.GetDataDirSize() - d.Status.GetDataDirFree() }

// overviewPatience bounds how long an update of the overview waits for an examination of the host.
const overviewPatience = time.Second

// overview leaves the examination of the host out of its first answer, since it takes longer; its stream has it.
func (s *Site) overview(ctx context.Context, u user, r *http.Request) (any, error) {
	patience := time.Duration(0)
	if r.URL.Query().Has(liveParam) {
		patience = overviewPatience
	}
	f, err := s.host.gather(ctx, u, "", patience)
	if err != nil {
		return nil, err
	}
	all := f.findings()
	d := overviewData{Status: f.status, Nodes: f.nodes.GetNodes(), Unexamined: f.unexamined, Problems: problems(all)}
	d.Slack = f.health.GetFailureTolerance()
	for _, one := range all {
		if one.State == "not shown" {
			d.Hidden = append(d.Hidden, one.Check)
		}
	}
	for _, p := range f.health.GetPeers() {
		if p.GetVoter() {
			d.Voters++
		}
		if p.GetLeader() {
			d.Leader = p.GetName()
		}
	}
	if d.Leader == "" && f.status.GetLeader() {
		d.Leader = f.status.GetName()
	}
	if f.status == nil { // who may not see the agent's state does not see how it was either
		return d, nil
	}
	samples, err := s.Trend.Read(ctx)
	if err != nil {
		s.Log.Warn("the growth of the last day cannot be read", "error", err)
	}
	d.Used = plot(samples, func(p trend.Sample) float64 { return float64(p.Used) },
		func(v float64) string { return size(uint64(v)) })
	d.Stalled = plot(samples, func(p trend.Sample) float64 { return float64(p.Stalled) },
		func(v float64) string { return roughly(time.Duration(v) * time.Second) })
	return d, nil
}

// chart is a line over the last day, or over the time since the first sample.
type chart struct {
	Points string // of a polyline
	Area   string // the polyline with the ground below it
	Dots   string // of a path with a dot for each sample, where they are few
	// Min and Max are the values at the chart's ground and top, First and Last those at its ends.
	Min, Max, First, Last string
	Samples               int
	// Since is when the first sample was taken, and Hours how long before the last.
	Since *timestamppb.Timestamp
	Hours string
}

// The size of a chart's coordinates.
const chartWidth, chartHeight = 300, 64

// fewSamples are drawn as dots too: a line between them has hardly a shape.
const fewSamples = 12

// plot draws a value of the samples: time from left to right, from the first sample to the last.
func plot(samples []trend.Sample, of func(trend.Sample) float64, show func(float64) string) chart {
	if len(samples) == 0 {
		return chart{}
	}
	low, high := of(samples[0]), of(samples[0])
	for _, p := range samples {
		low, high = min(low, of(p)), max(high, of(p))
	}
	// A line that hardly moves is not drawn as a cliff.
	if room := high * 0.02; high-low < room || high == low {
		low = max(low-room-1, 0)
		high = high + room + 1
	}
	last := samples[len(samples)-1]
	begin := samples[0].At
	span := float64(last.At - begin)
	var points, dots strings.Builder
	at := func(p trend.Sample) (x, y float64) {
		if span > 0 {
			x = float64(p.At-begin) / span * chartWidth
		}
		return x, chartHeight - (of(p)-low)/(high-low)*chartHeight
	}
	for _, p := range samples {
		x, y := at(p)
		fmt.Fprintf(&points, "%.1f,%.1f ", x, y)
		if len(samples) <= fewSamples {
			fmt.Fprintf(&dots, "M%.1f %.1fh0", x, y)
		}
	}
	left, _ := at(samples[0])
	right, _ := at(last)
	line := strings.TrimSpace(points.String())
	return chart{
		Points: line, Dots: dots.String(), Area: fmt.Sprintf("%.1f,%d %s %.1f,%d", left, chartHeight, line, right, chartHeight),
		Min: show(low), Max: show(high), First: show(of(samples[0])), Last: show(of(last)), Samples: len(samples),
		Since: timestamppb.New(time.Unix(samples[0].At, 0)),
		Hours: roughly(time.Duration(last.At-samples[0].At) * time.Second),
	}
}
