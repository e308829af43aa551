package sdk

import (
	"strings"
	"sync"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
)

// output collects what is written.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// A plugin has go-plugin's health service. What it prints goes to standard error, which is the host's log file, and not
// into go-plugin's pipe, which only a connected host empties. A default logger that it has set stays.
func TestServedByGoPlugin(t *testing.T) {
	var log, piped output
	client, conn, _ := startEmitter(t,
		&goplugin.ClientConfig{Stderr: &log, SyncStdout: &piped, SyncStderr: &piped})
	protocol, err := client.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := protocol.Ping(); err != nil {
		t.Errorf("ping: %v", err)
	}
	emit(t, conn, 7)
	const line = "published to 7\n"
	for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), line); time.Sleep(time.Millisecond) {
		if time.Now().After(end) || piped.String() != "" {
			t.Fatalf("it printed %q, and %q into go-plugin's pipe", log.String(), piped.String())
		}
	}
	if !strings.Contains(log.String(), "level=INFO msg=published to=7\n") {
		t.Errorf("its own logger was replaced: %q", log.String())
	}
}
