package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// auditEntry is a line of the audit log. It has no secret: what a request is about is
// told by names only.
type auditEntry struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	// Accessor and Token, its name, of the token that the call was made with.
	Accessor string `json:"accessor,omitempty"`
	Token    string `json:"token,omitempty"`
	// Of the process that called over the unix socket; of another caller the certificate.
	UID         *uint32 `json:"uid,omitempty"`
	PID         int     `json:"pid,omitempty"`
	Certificate string  `json:"certificate,omitempty"`
	For         string  `json:"for,omitempty"`     // whom an agent asks for, by its own word
	RPC         string  `json:"rpc"`               // such as VolumeService/GetVolume
	Subject     string  `json:"subject,omitempty"` // what the request names, with its namespace
	// Phase is began and ended of a stream; empty of a call that is answered at once.
	Phase   string `json:"phase,omitempty"`
	Allowed bool   `json:"allowed"`
	// Code of the error, as the API has it; ok: none. Absent where it is not known yet.
	Code string `json:"code,omitempty"`
}

// The phases of a stream.
const (
	streamBegan = "began"
	streamEnded = "ended"
)

// auditLog appends to a file. What cannot be written is counted and told, and keeps no
// call from being made.
type auditLog struct {
	path   string
	log    hclog.Logger
	failed prometheus.Counter

	mu     sync.Mutex
	file   *os.File
	broken bool // the last line could not be written
}

func newAuditLog(path string, log hclog.Logger) *auditLog {
	return &auditLog{path: path, log: log, failed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "pannier_audit_failures_total", Help: "Lines of the audit log that could not be written.",
	})}
}

// open makes the file, and its folder where there is none. It is called with mu held, but
// for the first time.
func (a *auditLog) open() error {
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

// write appends a line, to a new file where the old one was moved or removed.
func (a *auditLog) write(e auditEntry) {
	line, err := json.Marshal(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		err = a.append(append(line, '\n'))
	}
	if err != nil {
		a.failed.Inc()
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

func (a *auditLog) append(line []byte) error {
	if a.file != nil && a.rotated() {
		_ = a.file.Close() // whose lines are all written
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

// rotated says whether the path is another file by now, or none.
func (a *auditLog) rotated() bool {
	at, err := os.Lstat(a.path)
	is, statErr := a.file.Stat()
	return err != nil || statErr != nil || !os.SameFile(at, is)
}

// reopen lets go of the file: the next line opens it anew.
func (a *auditLog) reopen() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.file == nil {
		return nil
	}
	err := a.file.Close()
	a.file = nil
	return err
}

// ReopenAudit opens the audit log anew, as on SIGHUP. Without one it does nothing.
func (s *Server) ReopenAudit() error {
	if s.audit == nil {
		return nil
	}
	return s.audit.reopen()
}

// record writes a call to the audit log, where there is one. err is what the call came to;
// it is not known yet of a stream that begins.
func (s *Server) record(c *caller, procedure string, msg any, phase string, allowed bool, err error) {
	if s.audit == nil {
		return
	}
	e := auditEntry{
		Time: time.Now().UTC(), Node: s.cfg.Name, Accessor: c.Accessor, Token: c.Name,
		RPC: label(procedure), Subject: shortened(object(msg)), Phase: phase, Allowed: allowed,
	}
	switch {
	case c.cert != nil:
		e.Certificate, e.For = c.cert.String(), c.asker
	case c.err == nil:
		e.UID, e.PID = &c.uid, c.pid
	}
	switch {
	case err != nil:
		e.Code = connect.CodeOf(err).String()
	case phase != streamBegan:
		e.Code = "ok"
	}
	s.audit.write(e)
}
