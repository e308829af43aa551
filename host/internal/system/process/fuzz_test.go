package process

import (
	"bytes"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
)

// A plugin writes its log: a line of hclog's is read with the level and message that it was written with, and any other
// is read as text.
func FuzzLogLine(f *testing.F) {
	f.Add("a message", "value", []byte(`{"@level":"info","@message":1}`))
	f.Fuzz(func(t *testing.T, message, value string, line []byte) {
		_, _, _, _ = parseHclog(line)
		_ = klogLevel(string(line))
		var out bytes.Buffer
		hclog.New(&hclog.LoggerOptions{Output: &out, JSONFormat: true}).Warn(message, "key", value)
		level, got, fields, ok := parseHclog(bytes.TrimSpace(out.Bytes()))
		if !ok || level != hclog.Warn || len(fields) != 2 || utf8.ValidString(message) && got != message {
			t.Errorf("%s is read as %v %q %v, %t", &out, level, got, fields, ok)
		}
	})
}
