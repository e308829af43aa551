package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	agents "github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/internal/printable"
)

// auditEntry is a line of the audit log. It contains no secrets: requests are described by names only.
type auditEntry struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	// Call is in the agent's log too, and in both lines of a stream; Trace is the call's trace, if one is recorded.
	Call  string `json:"call,omitempty"`
	Trace string `json:"trace_id,omitempty"`
	// Accessor and Token are the accessor and name of the caller's token.
	Accessor string `json:"accessor,omitempty"`
	Token    string `json:"token,omitempty"`
	// The process that called over the unix socket, or else the certificate of the caller.
	UID         *uint32 `json:"uid,omitempty"`
	PID         int     `json:"pid,omitempty"`
	Certificate string  `json:"certificate,omitempty"`
	Plugin      string  `json:"plugin,omitempty"`  // the front door that called, for itself or with its user's token
	For         string  `json:"for,omitempty"`     // the original caller, as named by the agent that forwarded the call
	RPC         string  `json:"rpc"`               // such as VolumeService/GetVolume
	Subject     string  `json:"subject,omitempty"` // what the request names, with its namespace
	Force       bool    `json:"force,omitempty"`   // the caller vouches for the change
	// ConsulAccessor is that of the Consul token that a call of another agent made or revoked.
	ConsulAccessor string `json:"consul_accessor,omitempty"`
	// Phase is began or ended for a stream, and empty for a unary call.
	Phase   string `json:"phase,omitempty"`
	Allowed bool   `json:"allowed"`
	// Code is the code of the error, or ok. It is absent when a stream begins.
	Code string `json:"code,omitempty"`
	// LeftOut is the number of lines of callers without a token that were left out since the line before.
	LeftOut int `json:"left_out,omitempty"`
}

// Bounds of the lines of callers without a token: so many at once, and so many in a second. A change that was allowed
// is always written.
const (
	strangerLines = 100
	strangerRate  = 10
)

// The phases of a stream.
const (
	streamBegan = "began"
	streamEnded = "ended"
)

// AuditLog appends to a file. Failed writes are counted and logged, and do not fail calls.
// A nil one writes nothing.
type AuditLog struct {
	path   string
	node   string
	log    hclog.Logger
	failed prometheus.Counter
	left   prometheus.Counter

	mu        sync.Mutex
	file      *os.File
	broken    bool // the last line could not be written
	strangers *rate.Limiter
	leftOut   int // lines since the last one
}

// NewAuditLog returns the audit log of a node; nil for an empty path. Its first line, or a Server, opens the file.
func NewAuditLog(path, node string, log hclog.Logger) *AuditLog {
	if path == "" {
		return nil
	}
	return &AuditLog{
		path: path, node: node, log: log, strangers: rate.NewLimiter(strangerRate, strangerLines),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pannier_audit_failures_total", Help: "Lines of the audit log that could not be written.",
		}),
		left: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pannier_audit_left_out_total",
			Help: "Lines of the audit log about callers without a token that were too many.",
		}),
	}
}

// open creates the file and its folder as needed. Except for the first time it is called with mu held.
func (a *AuditLog) open() error {
	if a == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(a.path), 0o700); err != nil {
		return fmt.Errorf("make the audit log's folder: %w", err)
	}
	file, err := os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = file.Chmod(0o600)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open the audit log %s: %w", a.path, err), file.Close())
	}
	a.file = file
	return nil
}

// write appends a line, unless it is a stranger's and there are too many of them. If the file was moved or removed it
// is created again.
func (a *AuditLog) write(e auditEntry, stranger bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if stranger && !a.strangers.Allow() {
		a.leftOut++
		a.left.Inc()
		return
	}
	e.Time, e.Node, e.LeftOut = time.Now().UTC(), a.node, a.leftOut
	line, err := json.Marshal(e)
	if err == nil {
		err = a.append(append([]byte(printable.String(string(line))), '\n'))
	}
	if err != nil {
		a.failed.Inc()
	} else {
		a.leftOut = 0
	}
	if (err != nil) != a.broken {
		a.broken = err != nil
		if err != nil {
			a.log.Error("the audit log cannot be written; calls go on, and are not in it", "path", a.path, "error", err)
		} else {
			a.log.Warn("the audit log is written again; calls are missing in it", "path", a.path)
		}
	}
}

func (a *AuditLog) append(line []byte) error {
	if a.file != nil && a.rotated() {
		_ = a.file.Close() // its lines are all written
		a.file = nil
	}
	if a.file == nil {
		if err := a.open(); err != nil {
			return err
		}
	}
	_, err := a.file.Write(line)
	return err
}

// rotated reports whether the path is no longer the open file.
func (a *AuditLog) rotated() bool {
	at, err := os.Lstat(a.path)
	is, statErr := a.file.Stat()
	return err != nil || statErr != nil || !os.SameFile(at, is)
}

// close closes the file. A further line would open the path again.
func (a *AuditLog) close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// record writes a call to the audit log, if there is one. err is the result of the call, which is not known when a
// stream begins.
func (s *Server) record(c *call.Caller, procedure string, msg any, phase string, allowed bool, err error) {
	e := auditEntry{
		Call: c.ID, Trace: c.Trace, Accessor: c.Accessor, Token: c.Name,
		RPC: label(procedure), Subject: call.Shortened(object(msg)), Phase: phase, Allowed: allowed,
	}
	if m, ok := msg.(interface{ GetForce() bool }); ok {
		e.Force = m.GetForce()
	}
	switch {
	case c.Cert != nil:
		e.Certificate, e.For = c.Cert.String(), c.Asker
	case c.Plugin != "":
		e.Plugin = c.Plugin
	case c.Err == nil:
		e.UID, e.PID = &c.UID, c.PID
	}
	switch {
	case err != nil:
		e.Code = connect.CodeOf(err).String()
	case phase != streamBegan:
		e.Code = "ok"
	}
	stranger := c.Accessor == "" && !c.IsManagement()
	s.cfg.Audit.write(e, stranger && (!allowed || !needOf(procedure).changes))
}

// Peer writes what was done for another agent.
func (a *AuditLog) Peer(ctx context.Context, c agents.Change) {
	code := "ok"
	if c.Code != codes.OK {
		code = connect.Code(c.Code).String()
	}
	a.write(auditEntry{
		Trace: tracing.TraceID(ctx), Certificate: c.By.String(), RPC: label(c.Method), Subject: call.Shortened(c.Object),
		ConsulAccessor: c.Accessor, Allowed: c.Allowed, Code: code,
	}, !c.Allowed)
}

// callMetrics count the calls.
type callMetrics struct {
	total *prometheus.CounterVec
	time  *prometheus.HistogramVec
}

func newCallMetrics() *callMetrics {
	return &callMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pannier_api_requests_total", Help: "Calls of the API by procedure and code.",
		}, []string{"procedure", "code"}),
		time: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pannier_api_request_duration_seconds", Help: "Duration of calls of the API, without streams.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 30, 120},
		}, []string{"procedure"}),
	}
}

// label returns a procedure's label, such as VolumeService/GetVolume.
func label(procedure string) string { return procedure[strings.LastIndexByte(procedure, '.')+1:] }

func (m *callMetrics) observe(procedure string, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	m.total.WithLabelValues(label(procedure), code).Inc()
}

func (m *callMetrics) took(procedure string, d time.Duration) {
	m.time.WithLabelValues(label(procedure)).Observe(d.Seconds())
}

// register adds the server's metrics to the registry.
func (s *Server) register() error {
	s.calls = newCallMetrics()
	all := []prometheus.Collector{s.calls.total, s.calls.time, collector{s}}
	if s.cfg.Audit != nil {
		all = append(all, s.cfg.Audit.failed, s.cfg.Audit.left)
	}
	for _, c := range all {
		if err := s.cfg.Metrics.Register(c); err != nil {
			return fmt.Errorf("register the metrics: %w", err)
		}
	}
	return nil
}

// collector reads the host's state when it is scraped.
type collector struct{ *Server }

// Describe leaves the metrics to be checked with each scrape.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) { c.cfg.Agent.Collect(c.running, ch) }
