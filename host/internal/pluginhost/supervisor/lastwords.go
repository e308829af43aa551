package supervisor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxWords bounds what is quoted of a plugin's log, in bytes.
const maxWords = 8 << 10

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// lastWords is what a process complained of last in what it printed to a log
// after from: a panic, else its last line, unless that is everyday logging.
func lastWords(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	size := fileSize(path)
	if size < from {
		from = 0 // it was emptied meanwhile
	}
	from = max(from, size-maxWords)
	data, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return l
		}
	}
	last := lines[len(lines)-1]
	var entry struct {
		Level   string `json:"@level"`
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	switch {
	case json.Unmarshal([]byte(last), &entry) != nil || entry.Message == "":
		return last
	case entry.Level != "warn" && entry.Level != "error":
		return ""
	case entry.Error != "":
		return entry.Message + ": " + entry.Error
	default:
		return entry.Message
	}
}

// explain adds to the error of a start how the process ended, if it did, and what
// it printed last.
func (i *instance) explain(err error, run *pluginRunner, logged int64) error {
	if run.proc == nil {
		return err
	}
	if run.ownEnd != "" {
		err = fmt.Errorf("the process ended: %s: %w", run.ownEnd, err)
	}
	if words := lastWords(i.logPath, logged); words != "" {
		err = fmt.Errorf("%w (it printed: %s)", err, words)
	}
	return err
}
