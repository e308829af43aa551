package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// Lines of log/slog have the keys and levels of hclog's, which the host reads.
func TestSlog(t *testing.T) {
	for at, want := range map[hclog.Level][]string{
		hclog.Trace: {"trace", "debug", "info", "warn", "error"}, hclog.Debug: {"debug", "info", "warn", "error"},
		hclog.Info: {"info", "warn", "error"}, hclog.Warn: {"warn", "error"}, hclog.Error: {"error"}, hclog.Off: nil,
	} {
		var text bytes.Buffer
		log := slogTo(&text, at)
		for l := slog.LevelDebug - 4; l <= slog.LevelError; l += 4 {
			log.Log(context.Background(), l, "mounted", "level", 7, "time", "noon", slog.Group("g", "level", 1))
		}
		var levels []string
		for d := json.NewDecoder(&text); d.More(); {
			var line map[string]any
			if err := d.Decode(&line); err != nil {
				t.Fatal(err)
			}
			levels = append(levels, line["@level"].(string))
			delete(line, "@level")
			delete(line, "@timestamp")
			if want := map[string]any{"@message": "mounted", "level": 7.0, "time": "noon", "g": map[string]any{"level": 1.0}}; !reflect.DeepEqual(line, want) {
				t.Errorf("%v, want %v", line, want)
			}
		}
		if !reflect.DeepEqual(levels, want) {
			t.Errorf("at %s: %v, want %v", at, levels, want)
		}
	}
}
