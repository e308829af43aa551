package supervisor

import (
	"encoding/json"
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

// lastLine is the last line of a log that was written after from, or the one
// before a panic's stack, or "".
func lastLine(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
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
	last := lines[len(lines)-1]
	for _, l := range lines {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return l
		}
	}
	var entry struct {
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	if json.Unmarshal([]byte(last), &entry) == nil && entry.Message != "" {
		if entry.Error != "" {
			return entry.Message + ": " + entry.Error
		}
		return entry.Message
	}
	return last
}
