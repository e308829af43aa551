// Package journald writes the agent's log to systemd's journal with fields, so that journalctl can select the lines of
// one workload, volume or call. Under systemd, standard error alone would reach the journal too, as text.
//
// Invariants: an entry is one line. What the journal does not take is written to standard error instead, so no entry
// is lost when journald is restarted.
package journald

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/internal/printable"
)

// Bounds of one entry's fields, which may be a plugin's.
const (
	maxFields = 32
	maxValue  = 4 << 10 // bytes
)

// Sink is a sink of an hclog.InterceptLogger.
type Sink struct {
	level  func() hclog.Level
	stderr io.Writer
	send   func(message string, priority journal.Priority, fields map[string]string) error

	mu   sync.Mutex
	text bytes.Buffer // what line has written
	line hclog.Logger // renders an entry, as it is in the log's text form
}

// Open returns the journal if logs is this process's standard error and that is connected to the journal
// (JOURNAL_STREAM, systemd.exec(5)), else nil. level is the least level that is written.
func Open(logs io.Writer, level func() hclog.Level) *Sink {
	if logs != os.Stderr {
		return nil
	}
	if is, err := journal.StderrIsJournalStream(); err != nil || !is {
		return nil
	}
	return newSink(logs, level, journal.Send)
}

func newSink(stderr io.Writer, level func() hclog.Level,
	send func(string, journal.Priority, map[string]string) error,
) *Sink {
	s := &Sink{level: level, stderr: stderr, send: send}
	s.line = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, DisableTime: true, Output: printable.Writer(&s.text)})
	return s
}

// Accept implements hclog.SinkAdapter.
func (s *Sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if level < s.level() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Reset()
	s.line.Named(name).Log(level, msg, args...)
	line := s.text.String()
	_, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "]") // the level, which the priority says
	if s.send(strings.TrimSpace(message), priority(level), fields(name, args)) != nil {
		_, _ = io.WriteString(s.stderr, line) // there is nobody left to tell
	}
}

// fields returns the journal's fields of an entry: PANNIER_LOGGER, and for each key PANNIER_ and the key in capitals.
func fields(name string, args []any) map[string]string {
	all := map[string]string{"SYSLOG_IDENTIFIER": "pannier", "PANNIER_LOGGER": printable.String(name)}
	for i := 0; i+1 < len(args) && len(all) < maxFields; i += 2 {
		key, ok := args[i].(string)
		if !ok {
			continue
		}
		value := printable.String(rendered(args[i+1]))
		all["PANNIER_"+strings.Map(capital, key)] = value[:min(len(value), maxValue)]
	}
	return all
}

func rendered(value any) string {
	if format, ok := value.(hclog.Format); ok && len(format) > 0 {
		if pattern, ok := format[0].(string); ok {
			return fmt.Sprintf(pattern, format[1:]...)
		}
	}
	return fmt.Sprint(value)
}

// capital returns the character that a field's name has for one of a key's: names have capitals, digits and
// underscores only (systemd.journal-fields(7)).
func capital(r rune) rune {
	switch {
	case r >= 'a' && r <= 'z':
		return r - 'a' + 'A'
	case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return r
	default:
		return '_'
	}
}

func priority(level hclog.Level) journal.Priority {
	switch level {
	case hclog.Error:
		return journal.PriErr
	case hclog.Warn:
		return journal.PriWarning
	case hclog.Info:
		return journal.PriInfo
	default:
		return journal.PriDebug
	}
}
