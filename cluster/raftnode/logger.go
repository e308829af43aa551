package raftnode

import (
	"log"

	"github.com/hashicorp/go-hclog"
)

// quiet is a logger for raft, whose news are of use to a developer only.
type quiet struct {
	hclog.Logger
	warn hclog.Level // what a warning of raft's becomes
}

// quieter wraps a logger. What raft warns of is nearly always another server,
// so a server alone is not bothered with it ("heartbeat timeout reached" comes with
// each of its starts).
func quieter(l hclog.Logger, cfg Config) quiet {
	if cfg.Streams == nil {
		return quiet{l, hclog.Debug}
	}
	return quiet{l, hclog.Warn}
}

func (q quiet) Info(msg string, args ...any)        { q.Debug(msg, args...) }
func (q quiet) Warn(msg string, args ...any)        { q.Log(q.warn, msg, args...) }
func (q quiet) With(args ...any) hclog.Logger       { return quiet{q.Logger.With(args...), q.warn} }
func (q quiet) Named(name string) hclog.Logger      { return quiet{q.Logger.Named(name), q.warn} }
func (q quiet) ResetNamed(name string) hclog.Logger { return quiet{q.Logger.ResetNamed(name), q.warn} }

func (q quiet) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return q.Logger.StandardLogger(o)
}
