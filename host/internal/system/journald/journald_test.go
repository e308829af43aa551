package journald

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/hashicorp/go-hclog"
)

func TestEntries(t *testing.T) {
	type entry struct {
		message  string
		priority journal.Priority
		fields   map[string]string
	}
	var (
		entries []entry
		stderr  bytes.Buffer
		down    bool
	)
	log := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "pannier", Output: &bytes.Buffer{}, Level: hclog.Info})
	log.RegisterSink(newSink(&stderr, log.GetLevel, func(m string, p journal.Priority, f map[string]string) error {
		if down {
			return errors.New("there is no journald")
		}
		entries = append(entries, entry{m, p, f})
		return nil
	}))
	log.Named("workload").With("workload", "default/db").Warn("not released yet", "trace-id", "0af7", "error",
		errors.New("two\nlines"), "tries", hclog.Fmt("%d", 3))
	log.Debug("too little")
	if len(entries) != 1 {
		t.Fatalf("%d entries: %+v", len(entries), entries)
	}
	got := entries[0]
	if want := `pannier.workload: not released yet: workload=default/db trace-id=0af7`; !strings.HasPrefix(got.message, want) ||
		strings.Contains(got.message, "\n") {
		t.Errorf("the message is %q, and should begin with %q", got.message, want)
	}
	if got.priority != journal.PriWarning {
		t.Errorf("the priority is %d", got.priority)
	}
	for key, want := range map[string]string{
		"SYSLOG_IDENTIFIER": "pannier", "PANNIER_LOGGER": "pannier.workload", "PANNIER_WORKLOAD": "default/db",
		"PANNIER_TRACE_ID": "0af7", "PANNIER_ERROR": `two\nlines`, "PANNIER_TRIES": "3",
	} {
		if got.fields[key] != want {
			t.Errorf("%s is %q, not %q", key, got.fields[key], want)
		}
	}

	down = true
	log.Error("on its own", "node", "a")
	if text := stderr.String(); text != "[ERROR] pannier: on its own: node=a\n" {
		t.Errorf("without a journal, standard error has %q", text)
	}
	log.SetLevel(hclog.Debug)
	log.Debug("now wanted")
	if !strings.HasSuffix(stderr.String(), "[DEBUG] pannier: now wanted\n") {
		t.Errorf("after a change of the level it has %q", stderr.String())
	}
}

func TestBounds(t *testing.T) {
	args := []any{}
	for i := range 100 {
		args = append(args, strings.Repeat("k", i), strings.Repeat("v", 2*maxValue))
	}
	all := fields("plugin.x", args)
	if len(all) != maxFields {
		t.Errorf("%d fields", len(all))
	}
	for key, value := range all {
		if len(value) > maxValue {
			t.Errorf("%s has %d bytes", key, len(value))
		}
	}
	if len(fields("x", []any{1, "value", "odd"})) != 2 {
		t.Error("what is no key has a field")
	}
}
