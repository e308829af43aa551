package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/test/lib/check"
)

// forged is what a hostile plugin or driver prints: lines that begin one of the agent's own, sequences that a terminal
// obeys, and overrides of the direction of writing.
const forged = `{"@level":"info","@message":"ok\n2026-01-01T00:00:00.000Z [INFO]  pannier: all is well","k\n[INFO]":"v\n[INFO]  pannier"}
{"@level":"info","@message":"\u001b[2J\u009b2Jok","@module":"m\r\nx","took":["\u001b]0;title\u0007"]}
` + "\x1b[1A\x1b[2Kraw \x9b \u009b2J\rpannier: fine\x00\x7f\n" + "E0102 15:04:05.000000       1 a.go:7] \u202eevil\u2028x\n"

func TestForgedLogLines(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "driver.log")
			check.NoError(t, os.WriteFile(path, []byte(forged), 0o600))
			var out bytes.Buffer
			log := newLogger(&config.Agent{LogLevel: "info", LogFormat: format}, io.Discard, &out)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // read once
			check.NoError(t, process.Tail(ctx, path, log.Named("driver.evil")))
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if len(lines) != strings.Count(forged, "\n") {
				t.Errorf("%d lines became %d:\n%s", strings.Count(forged, "\n"), len(lines), out.String())
			}
			for _, line := range lines {
				if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("a terminal would obey %q", line)
				}
				if !strings.Contains(line, "pannier.driver.evil") {
					t.Errorf("this is not marked as the driver's: %q", line)
				}
			}
			if format == "json" {
				var entry map[string]any
				check.NoError(t, json.Unmarshal([]byte(lines[0]), &entry))
				if entry["@message"] != "ok\n2026-01-01T00:00:00.000Z [INFO]  pannier: all is well" {
					t.Errorf("the message is %q", entry["@message"])
				}
			}
		})
	}
}
