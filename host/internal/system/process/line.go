package process

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// line logs one line of a process's output: hclog's JSON with its level and
// fields, klog's (which most CSI drivers use) with its level, all else as it is.
func (t *tail) line(raw []byte) {
	text := strings.TrimRight(string(raw), "\r")
	if strings.TrimSpace(text) == "" {
		return
	}
	if level, message, fields, ok := parseHclog(raw); ok {
		t.panicked = false
		t.log.Log(level, message, fields...)
		return
	}
	// After a panic the stack comes, line by line.
	if strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ") {
		t.panicked = true
	}
	level := klogLevel(text)
	if t.panicked {
		level = hclog.Error
	}
	t.log.Log(level, text)
}

// parseHclog reads a line of hclog's JSON format.
func parseHclog(raw []byte) (level hclog.Level, message string, fields []any, ok bool) {
	if len(raw) == 0 || raw[0] != '{' {
		return 0, "", nil, false
	}
	var entry map[string]any
	if json.Unmarshal(raw, &entry) != nil {
		return 0, "", nil, false
	}
	message, ok = entry["@message"].(string)
	name, _ := entry["@level"].(string)
	level = hclog.LevelFromString(name)
	if !ok || level == hclog.NoLevel {
		return 0, "", nil, false
	}
	if module, _ := entry["@module"].(string); module != "" {
		fields = append(fields, "module", module)
	}
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if !strings.HasPrefix(key, "@") {
			fields = append(fields, key, entry[key])
		}
	}
	return level, message, fields, true
}

// klogHeader is "E0102 15:04:05.000000   pid file.go:1] message".
var klogHeader = regexp.MustCompile(`^([IWEF])\d{4} \d\d:\d\d:\d\d`)

func klogLevel(text string) hclog.Level {
	m := klogHeader.FindStringSubmatch(text)
	if m == nil {
		return hclog.Info
	}
	switch m[1] {
	case "W":
		return hclog.Warn
	case "E", "F":
		return hclog.Error
	default:
		return hclog.Info
	}
}
