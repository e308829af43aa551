package drivers

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxLastRead is how much of the end of a driver's output is searched, in bytes.
	maxLastRead = 64 << 10
	// maxLastWords bounds the line that is shown, in bytes.
	maxLastWords = 512
)

// reason begins the line in which a program says why it ends, before its stack: of Go and Python.
var reason = regexp.MustCompile(`(?m)^(panic|fatal error|[A-Za-z_.]+(Error|Exception)): .*$`)

// lastWords returns the last line that an ended process printed after the first bytes of the file, or the one that
// says why it ended if a stack follows that; empty: it printed nothing, or the output cannot be read.
func lastWords(path string, after int64) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	if after > size {
		after = 0 // the file was cut meanwhile
	}
	text := make([]byte, min(size-after, maxLastRead))
	if _, err := f.ReadAt(text, size-int64(len(text))); err != nil {
		return ""
	}
	text = bytes.TrimSpace(text)
	line := string(text[bytes.LastIndexByte(text, '\n')+1:])
	if all := reason.FindAll(text, -1); len(all) > 0 {
		line = string(all[len(all)-1])
	}
	return strings.ToValidUTF8(strings.TrimSpace(line[:min(len(line), maxLastWords)]), "")
}
