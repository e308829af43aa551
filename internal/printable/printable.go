// Package printable escapes what a text from elsewhere, such as a plugin's message or a process's name, could do to
// those who read it: begin a new line that looks like the host's own, move the cursor or set the title of a terminal
// (ECMA-48), or reverse the order of what follows (Unicode's bidirectional overrides).
//
// Escapes are valid in Go and JSON alike, so a line of JSON means the same as before. What is escaped stays as it is
// when it is escaped again.
package printable

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// String escapes all but printable characters (strconv.IsPrint): control characters, newlines and tabs among them,
// characters that only change how others are shown, and bytes that are not UTF-8 (as \xff, which JSON has not: JSON's
// encoders leave none).
func String(text string) string {
	plain := func(r rune) bool { return strconv.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case r == utf8.RuneError || plain(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
		text = text[size:]
	}
	return b.String()
}

// styles are the control sequences of terminals (ECMA-48), such as those of colours.
var styles = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\x1b\[[\d;:?]*[A-Za-z]`) })

// Unstyled returns a text without what sets its style in a terminal.
func Unstyled(text string) string { return styles().ReplaceAllString(text, "") }

// Argument returns a text as one argument of a command that people may copy into a POSIX shell: in quotes if it has
// characters that mean something there.
func Argument(text string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./:@,+", r)
	}
	if text != "" && strings.IndexFunc(text, special) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Writer returns a writer for lines: it escapes what each Write gives to it, as String does, except for a newline at
// the end. So one Write is never more than one line.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ w io.Writer }

// Write returns len(p) also where more bytes were written, as io.Writer requires.
func (w writer) Write(p []byte) (int, error) {
	line, ended := bytes.CutSuffix(p, []byte("\n"))
	text := String(string(line))
	if ended {
		text += "\n"
	}
	if _, err := io.WriteString(w.w, text); err != nil {
		return 0, err
	}
	return len(p), nil
}
