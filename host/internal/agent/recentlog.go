package agent

import (
	"bytes"
	"sync"

	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
)

// recentLogSize is how much of the agent's log is kept in memory, in bytes.
const recentLogSize = 256 << 10

// recentLog keeps the end of what is written to it.
type recentLog struct {
	mu   sync.Mutex
	text []byte // up to twice the size, so that it is seldom moved
}

func (l *recentLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if over := len(l.text) - recentLogSize; over > recentLogSize {
		l.text = append(l.text[:0], l.text[over:]...)
	}
	return len(p), nil
}

// lines returns the complete last lines, of about recentLogSize.
func (l *recentLog) lines() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	if over := len(text) - recentLogSize; over > 0 {
		_, text, _ = bytes.Cut(text[over:], []byte("\n"))
	}
	return bytes.Clone(text)
}

// diagnosis describes the agent, with the configuration that counts.
func (a *agent) diagnosis() (d agentapi.Diagnosis, err error) {
	cfg := *a.cfg
	now := a.blocks.Load()
	cfg.Plugins, cfg.Drivers, cfg.LogLevel = now.Plugins, now.Drivers, now.LogLevel
	d.ConfigFiles, d.Log = cfg.Files(), a.recent.lines()
	_, d.SecretFiles = cfg.Secrets()
	d.Configuration, err = cfg.Shown()
	return d, err
}
