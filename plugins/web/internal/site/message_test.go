package site

import (
	"regexp"
	"strings"
	"testing"
)

// What a browser reads from a stream is what was sent, whichever characters end lines in it.
func TestMessage(t *testing.T) {
	end := regexp.MustCompile("\r\n|\r|\n") // as the standard parses a stream
	for _, text := range []string{
		"one", "one\ntwo", "a driver's\rmessage", "one\r\ntwo\rthree\nfour", "one\n\ntwo\r\rthree", " one\n two", "one\n", "",
	} {
		sent := string(message([]byte(text)))
		lines := end.Split(sent, -1)
		if n := len(lines); n < 3 || lines[n-1] != "" || lines[n-2] != "" {
			t.Errorf("%q: the event does not end: %q", text, sent)
			continue
		}
		var got []string
		for _, line := range lines[:len(lines)-2] {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				t.Errorf("%q: %q is no data", text, line)
			}
			got = append(got, data)
		}
		if want := strings.TrimRight(end.ReplaceAllString(text, "\n"), "\n"); strings.Join(got, "\n") != want {
			t.Errorf("%q is read as %q", text, strings.Join(got, "\n"))
		}
	}
}
